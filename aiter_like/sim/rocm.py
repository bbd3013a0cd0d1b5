# SPDX-License-Identifier: MIT
"""A folder laid out as ROCm is, whose runtime is the simulator: clang, CMake and makefiles that know ROCm's layout
compile and link HIP programs by it, unchanged. Read by cli/sim/compile.py. A BuildError says what cannot be built.

    include/            csrc/sim/include: HIP headers of this project
    lib/                libamdhip64.so, the simulator, and its libhiprtc.so; CMake's packages hip and hip-lang
    amdgcn/bitcode/     the device library: ocml and ockl of Triton's wheel, and the settings that they read
    share/hip/version   what makes it a ROCm for clang
    bin/, llvm/         hipcc and hipconfig, as small scripts; clang's own folder
"""

import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from aiter_like import paths
from aiter_like.errors import BuildError
from aiter_like.modules import cache, toolchain
from aiter_like.modules.build import load_or_build
from aiter_like.sim.library import load, module_spec, rtc_spec

ARCH = "gfx942"
HIP_VERSION = (7, 1, 0)  # the same as in csrc/sim/include/hip/hip_version.h
_DEVICE_LIBRARIES = ("ocml.bc", "ockl.bc")
_BITCODE_CLANG = (20,)  # whose bitcode they are: an older clang cannot read them
_LOCK = "0" * cache.REQUEST_DIGITS
_LOCK_SECONDS = 120.0

# Settings that ocml and ockl ask for at compile time; clang links the files that its options name.
_SETTINGS = {
    **{f"oclc_{file}_{state}": (f"__oclc_{name}", "i8", int(state == "on"))
       for file, name in (("correctly_rounded_sqrt", "correctly_rounded_sqrt32"), ("daz_opt", "daz_opt"),
                          ("finite_only", "finite_only_opt"), ("unsafe_math", "unsafe_math_opt"),
                          ("wavefrontsize64", "wavefrontsize64")) for state in ("on", "off")},
    "opencl": (),  # clang looks whether it is there
    "oclc_isa_version_942": ("__oclc_ISA_version", "i32", 9402),
    "oclc_isa_version_906": ("__oclc_ISA_version", "i32", 9006),  # clang's default, for compilations that name none
    **{f"oclc_abi_version_{abi}": ("__oclc_ABI_version", "i32", abi) for abi in (400, 500, 600)},
}
_WAVE_BITS = {"oclc_wavefrontsize64_on": 6, "oclc_wavefrontsize64_off": 5}


def include_folder() -> Path:
    """Folder of `hip/hip_runtime.h`."""
    return paths.csrc() / "sim" / "include"


def library_path() -> Path:
    """The simulator as a file, `libamdhip64.so`, built when necessary."""
    return load_or_build(module_spec())


def run_path() -> str:
    """The folders of the simulator and of its hipRTC, for a program that is linked to them."""
    return ":".join(str(path.parent) for path in (library_path(), load_or_build(rtc_spec())))


def device_libraries() -> tuple[Path | None, str]:
    """Folder of ocml.bc and ockl.bc, which Triton's wheel brings; None, and why, where there is none that serves."""
    compiler = toolchain.find("hip")
    if compiler.name == "clang" and compiler.version < _BITCODE_CLANG:
        return None, f"Triton's wheel has it for clang {_BITCODE_CLANG[0]} or later, and this is {compiler}"
    found = importlib.util.find_spec("triton")
    place = Path(found.origin).parent / "backends" / "amd" / "lib" if found and found.origin else None
    if place is None or not all((place / name).is_file() for name in _DEVICE_LIBRARIES):
        return None, "Triton's wheel brings it: pip install triton"
    return place, ""


@functools.cache
def folder() -> Path:
    """The folder, made when it is not there yet."""
    compiler, (bitcode, _) = toolchain.find("hip"), device_libraries()
    libraries = (library_path(), load_or_build(rtc_spec()))
    parts = [compiler.identity, compiler.host_compiler, *map(str, libraries), str(include_folder()), str(bitcode)]
    parts += [cache.sha256_of(path) for path in (Path(__file__), *_templates())]
    parts += [*(str((bitcode / name).stat().st_mtime_ns) for name in
                                                 _DEVICE_LIBRARIES if bitcode)]
    home = cache.cache_root() / "rocm"
    place = home / cache.sha256("\n".join(parts).encode())[:16]
    if not place.is_dir():
        with cache.locked(home, _LOCK, _LOCK_SECONDS):
            if not place.is_dir():
                _make(home, place, compiler.host_compiler, libraries, bitcode)
    return place


@functools.cache
def load_rtc() -> ctypes.CDLL:
    """hipRTC beside the simulator: programs that look for `libhiprtc.so` find this one. It runs the clang that is found
    here; a program without Python takes the newest in HIP_CLANG_PATH or PATH.

    Raises:
        BuildError: it cannot be built, or there is no compiler for gfx942.
    """
    load()
    compiler = toolchain.find("hip").host_compiler
    library = ctypes.CDLL(str(load_or_build(rtc_spec())), mode=ctypes.RTLD_GLOBAL)
    library.aiter_like_sim_rtc_compiler(compiler.encode(), str(folder()).encode())
    return library


def _templates() -> list[Path]:
    """Texts of the folder, in which places are to be filled in."""
    return sorted((paths.csrc() / "sim" / "rocm").rglob("*.in"))


def _make(home: Path, place: Path, compiler: str, libraries: tuple[Path, Path], bitcode: Path | None) -> None:
    """The folder beside its place, renamed when it is whole."""
    scratch = Path(tempfile.mkdtemp(dir=home, prefix=".tmp-rocm-"))
    try:
        for name in ("lib/cmake/hip", "lib/cmake/hip-lang", "share/hip", "bin", "amdgcn/bitcode"):
            (scratch / name).mkdir(parents=True)
        os.symlink(include_folder(), scratch / "include")
        os.symlink(Path(os.path.realpath(compiler)).parent.parent, scratch / "llvm")
        for library in libraries:
            os.symlink(library, scratch / "lib" / library.name)
        major, minor, patch = HIP_VERSION
        version = f"HIP_VERSION_MAJOR={major}\nHIP_VERSION_MINOR={minor}\nHIP_VERSION_PATCH={patch}\n"
        (scratch / "share/hip/version").write_text(version)
        if bitcode:
            for name in _DEVICE_LIBRARIES:
                os.symlink(bitcode / name, scratch / "amdgcn/bitcode" / name)
            _make_settings(scratch / "amdgcn/bitcode", compiler)
        values = {"@CLANG@": compiler, "@ROCM@": str(place), "@VERSION@": ".".join(map(str, HIP_VERSION)),
                  "@LIBRARY@": str(libraries[0]),
                  "@RUN_PATH@": run_path()}
        for source in _templates():
            target = scratch / source.relative_to(paths.csrc() / "sim" / "rocm").with_suffix("")
            text = source.read_text()
            for name, value in values.items():
                text = text.replace(name, value)
            target.write_text(text)
            if target.parent.name == "bin":
                target.chmod(0o755)
        scratch.chmod(0o755)
        os.rename(scratch, place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _make_settings(target: Path, compiler: str) -> None:
    """The files of settings: one constant each."""
    names = []
    for name, setting in _SETTINGS.items():
        lines = [_constant(*setting)] if setting else []
        if name in _WAVE_BITS:
            lines.append(_constant("__oclc_wavefrontsize_log2", "i32", _WAVE_BITS[name]))
        (target / f"{name}.ll").write_text('target triple = "amdgcn-amd-amdhsa"\n' + "\n".join(lines) + "\n")
        names.append(f"{name}.ll")
    command = [compiler, "--target=amdgcn-amd-amdhsa", "-nogpulib", "-x", "ir", "-c", "-emit-llvm", *names]
    done = subprocess.run(command, cwd=target, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError("the device library's settings cannot be compiled", command=" ".join(command),
                         output=done.stderr)
    for name in names:
        (target / name).unlink()


def _constant(name: str, kind: str, value: int) -> str:
    return f"@{name} = linkonce_odr protected local_unnamed_addr addrspace(4) constant {kind} {value}"
