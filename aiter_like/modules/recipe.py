# SPDX-License-Identifier: MIT
"""A module as data, and the command lines that build it: the only place that knows compiler flags. Read by build.py."""

import functools
import importlib.util
import os
import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiter_like import paths
from aiter_like.errors import BuildError
from aiter_like.modules import cache
from aiter_like.modules.toolchain import Toolchain

_PCH = "precompiled.pch"
_BINDING = "include/aiter_like/ffi.h"  # the host half of each HIP module begins with it
BINDING_PCH = "binding.pch"  # its name in the folder of a build that reads it
_PRELOAD = ("-mllvm", "-amdgpu-kernarg-preload-count=16")
_PRELOAD_CLANG = (20,)
SCHEMA = 2  # version of keys and meta.json; a change makes every older entry invisible


@dataclass(frozen=True)
class ModuleSpec:
    """A module to build, complete but for the compiler.

    Attributes:
        name: "norm/rms_norm"; an instance appends its own name: "attention/flash_attn_fwd-bf16_d64".
        sources: files relative to `root` (or absolute, below it). One for a device module.
        kind: "hip", "cuda", "asm" for AMD assembly, "host" for plain C++ that this process loads, or "binding":
            the header of the boundary to Python, parsed for the host halves of all HIP modules.
        arch: "gfx942", "sm_90"; for "host" the x86-64 level of this machine unless given.
        defines: preprocessor macros, the generator's inputs: a mapping or pairs.
        output: file name of the library.
        flags: further compiler flags.
        link_flags: further linker flags ("host" only).
        precompiled: a header below `root`, parsed once for all sources and put before each of them ("host" only).
        own_flags: folder or source below `root` → what its sources get after `flags` ("host" only).
        root: folder of the project's sources, with `include/` below it.
    """

    name: str
    sources: tuple[str | Path, ...]
    kind: str = "hip"
    arch: str = ""
    defines: Mapping[str, Any] | tuple[tuple[str, str], ...] = ()
    output: str = "module.so"
    flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    precompiled: str = ""
    own_flags: Mapping[str, tuple[str, ...]] | tuple[tuple[str, tuple[str, ...]], ...] = ()
    root: Path = field(default_factory=paths.csrc)

    def __post_init__(self):
        fill = functools.partial(object.__setattr__, self)
        fill("root", Path(self.root).resolve())
        fill("sources", tuple(str(Path(self.root, source).resolve().relative_to(self.root)) for source in self.sources))
        fill("defines", tuple(sorted((name, _macro(value)) for name, value in dict(self.defines).items())))
        fill("flags", tuple(self.flags))
        fill("link_flags", tuple(self.link_flags))
        fill("own_flags", tuple(sorted(dict(self.own_flags).items())))
        if self.kind == "host":
            fill("arch", self.arch or host_arch())
        elif len(self.sources) != 1:
            raise ValueError(f"{self.name}: a device module has one source, got {len(self.sources)}")

    @property
    def folder(self) -> str:
        """Name of the module's folder in the cache."""
        return self.name.replace("/", ".")

    @property
    def title(self) -> str:
        """The module's name in messages to users."""
        names = {"sim": "the simulator", "sim_rtc": "hipRTC for it",
                 "binding": "the boundary to Python, parsed once for all modules"}
        return names.get(self.name, f"{self.name} for {self.arch}")

    @property
    def platform(self) -> str:
        """Whose compiler builds it, as `toolchain.find` calls them: assembly is a matter of the HIP compiler."""
        return platform_of(self.kind)

    def inputs(self) -> dict[str, Any]:
        """All that the result depends on and that is known without a compiler.

        Raises:
            BuildError: a source is missing.
        """
        try:
            sources = {name: cache.sha256_of(self.root / name) for name in self.sources}
        except OSError as error:
            raise BuildError(f"{self.name}: {error}", module=self.name) from error
        own = [" ".join((place, *flags)) for place, flags in self.own_flags]
        abi = "" if self.kind == "host" else binding_abi()  # plain C++, loaded by ctypes
        return {"schema": SCHEMA, "name": self.name, "kind": self.kind, "arch": self.arch, "abi": abi,
                "defines": dict(self.defines), "flags": [*self.flags, *own, *self.link_flags], "output": self.output,
                "sources": sources}


def platform_of(kind: str) -> str:
    """Whose compiler builds a kind of module, as `toolchain.find` calls them."""
    return "hip" if kind in ("asm", "binding") else kind


@dataclass(frozen=True)
class Step:
    """One command: it runs in the private build directory, all its outputs are there.

    Attributes:
        output: the file that it makes.
        needs: files of other steps that it reads.
        command: argument list.
        depfile: where it leaves the headers that it read ("" for none).
    """

    output: str
    needs: tuple[str, ...]
    command: tuple[str, ...]
    depfile: str = ""


def steps(spec: ModuleSpec, toolchain: Toolchain) -> list[Step]:
    """The commands that make `spec.output`, the last one making it."""
    makers = {"hip": _hip_steps, "asm": _asm_steps, "cuda": _cuda_steps, "host": _host_steps,
              "binding": _binding_steps}
    return makers[spec.kind](spec, toolchain)


def binding(spec: ModuleSpec, toolchain: Toolchain) -> ModuleSpec | None:
    """The module whose library the steps of `spec` read as BINDING_PCH; None where they do not.

    Parsing the binding takes more than half of the time of a host half, and its text is the same for all of them. Flags
    of a module's own might change what it means. ROCm's clang may have headers before it, of which nothing is known
    here; one that is lent to hipcc has none.
    """
    known = toolchain.name == "clang" or toolchain.lent
    if spec.kind != "hip" or spec.flags or not known or not (spec.root / _BINDING).is_file():
        return None
    return ModuleSpec("binding", (_BINDING,), "binding", "host", output="binding.ast", root=spec.root)


def normalised(spec: ModuleSpec, build: list[Step]) -> list[str]:
    """The command lines without the folders of this installation, as they enter the key. Those of the binding keep
    them: a precompiled header knows the files in it by their paths."""
    lines = [shlex.join(step.command) for step in build]
    if spec.kind == "binding":
        return lines
    places = {str(spec.root): "{root}"} | ({} if spec.kind == "host" else {str(_tvm_ffi().parent): "{packages}"})
    for path, name in places.items():
        lines = [line.replace(path, name) for line in lines]
    return lines


def ninja_file(build: list[Step]) -> str:
    """The steps as text for ninja."""
    lines = ["rule run", "  command = $run", ""]
    for step in build:
        needs = "".join(f" {name}" for name in step.needs)
        lines += [f"build {step.output}: run{needs}", "  run = " + shlex.join(step.command).replace("$", "$$")]
    return "\n".join(lines) + "\n"


def parse_depfile(text: str) -> list[str]:
    """The files that a make-style rule names after its colon."""
    text = text.replace("\\\n", " ").partition(":")[2]
    escaped = text.replace("\\ ", "\0").replace("\\#", "#").replace("$$", "$")
    return [name.replace("\0", " ") for name in escaped.split()]


def binding_abi() -> str:
    """Version of the binding that modules are compiled against."""
    import tvm_ffi

    return f"tvm-ffi {tvm_ffi.__version__}"


_LEVELS = ("x86-64-v4", "x86-64-v3", "x86-64-v2")


def runs_on(spec: ModuleSpec) -> tuple[str, ...]:
    """The architectures whose code runs where that of `spec` does, the best first."""
    return _LEVELS[_LEVELS.index(spec.arch):] if spec.arch in _LEVELS else (spec.arch,)


@functools.cache
def host_arch() -> str:
    """The x86-64 level of this machine (x86-64 psABI); elsewhere the machine's name."""
    if platform.machine() != "x86_64":
        return platform.machine()
    try:
        flags = set(Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split())
    except OSError:
        flags = set()
    if flags >= {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}:
        return "x86-64-v4"
    if flags >= {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}:
        return "x86-64-v3"
    return "x86-64-v2"


def _hip_steps(spec: ModuleSpec, toolchain: Toolchain) -> list[Step]:
    """Device code, then the host half around it.

    Two commands, because the depfile of a combined HIP compilation names the headers of the host pass only. No HIP
    header and no device library is used (gpu.h declares what it needs), so neither ROCm nor triton has to be there.
    -no-hip-rt: the library names no runtime and takes the one of the process, simulated or real. For the same reason
    the host half goes to the clang under hipcc: hipcc itself would link ROCm's runtime.
    -cuid: by default a hash of path and options; both commands must have the same, wherever the source lies.
    -gline-tables-only: lines for the simulator's reports and for profilers; the machine code is the same without.
    _PRELOAD: a kernel's first parameters are in scalar registers when it starts, as far as these reach
    (include/aiter_like/preload.h). LLVM's AMDGPU usage guide, "Preloaded Kernel Arguments": the descriptor has their
    number (.amdhsa_user_sgpr_kernarg_preload_length), and firmware that does as it says skips a kernel's first 256
    bytes. From clang 20 on these load the arguments (llvm-project#119167), so that the code runs with other firmware,
    too; clang 18 and 19 put a trap there, and older ones do not know the option.
    """
    source = str(spec.root / spec.sources[0])
    common = [*_hip_flags(spec), f"-cuid={cache.sha256(spec.name.encode())[:16]}", *_defines(spec), *spec.flags]
    parsed = ["-include-pch", BINDING_PCH, "-fno-validate-pch"] if binding(spec, toolchain) else []
    # The driver ignores -MF for a device-only compilation; its front end does not.
    depfile = ["-dependency-file", "device.d", "-sys-header-deps", "-MT", "device.hipfb"]
    device = [*toolchain.command, *common, f"--offload-arch={spec.arch}", "--offload-device-only", "-gline-tables-only",
              *(_PRELOAD if toolchain.clang_version >= _PRELOAD_CLANG else ()),
              *_through("-Xclang", depfile), "-c", "-o", "device.hipfb", source]
    host = [toolchain.host_compiler, *common, "--offload-host-only",
            *_through("-Xclang", ["-fcuda-include-gpubinary", "device.hipfb", *parsed]),
            "-MD", "-MF", "host.d", "-shared", "-no-hip-rt", "-o", spec.output, source]
    return [Step("device.hipfb", (), tuple(device), "device.d"),
            Step(spec.output, ("device.hipfb",), tuple(host), "host.d")]


def _hip_flags(spec: ModuleSpec) -> list[str]:
    """Flags that set the language of both halves, and with it the meaning of the binding's header."""
    return ["-x", "hip", "-std=c++17", "-O3", "-Wall", "-fPIC", "-fvisibility=hidden", "-nogpuinc", "-nogpulib",
            *_mapped(spec, "csrc"), *_include(spec)]


def _binding_steps(spec: ModuleSpec, toolchain: Toolchain) -> list[Step]:
    """The driver makes no precompiled header of HIP; its front end does. Templates are instantiated in it, once for all
    that read it."""
    own = _through("-Xclang", ["-emit-pch", "-fno-pch-timestamp"])
    command = (toolchain.host_compiler, *_hip_flags(spec), "--offload-host-only", "-fpch-instantiate-templates", *own,
               "-MD", "-MF", "host.d", "-c", "-o", spec.output, str(spec.root / spec.sources[0]))
    return [Step(spec.output, (), command, "host.d")]


def _asm_steps(spec: ModuleSpec, toolchain: Toolchain) -> list[Step]:
    """Assembler and linker: clang runs its own llvm-mc and ld.lld, so both have the version that the key names.

    Through the C preprocessor: names for registers, and a depfile of what is included (`.include` would be in none).
    -g: lines for the simulator's reports and for debuggers.
    """
    command = [toolchain.host_compiler, "-x", "assembler-with-cpp", "--target=amdgcn-amd-amdhsa", f"-mcpu={spec.arch}",
               "-nogpulib", "-g", *_mapped(spec, "hsa"), *_defines(spec), *spec.flags,
               "-MD", "-MF", "module.d", "-o", spec.output, str(spec.root / spec.sources[0])]
    return [Step(spec.output, (), tuple(command), "module.d")]


def _cuda_steps(spec: ModuleSpec, toolchain: Toolchain) -> list[Step]:
    """nvcc makes the module in one command; its depfile is the host pass's, so a second one lists the device pass's."""
    source = str(spec.root / spec.sources[0])
    common = [toolchain.path, "-x", "cu", f"-arch={spec.arch}", "-std=c++17", "-O3",
              "--expt-relaxed-constexpr",  # constexpr functions are for both sides, as in clang
              "-Xcompiler=-fPIC,-fvisibility=hidden", *_include(spec), *_defines(spec), *spec.flags]
    number = spec.arch.removeprefix("sm_").rstrip("af")  # sm_90a → 90 → __CUDA_ARCH__ 900
    return [Step("device.d", (), (*common, f"-D__CUDA_ARCH__={number}0", "-M", "-MF", "device.d", source), "device.d"),
            Step(spec.output, (), (*common, "-MD", "-MF", "host.d", "-shared", "-o", spec.output, source), "host.d")]


def _host_steps(spec: ModuleSpec, toolchain: Toolchain) -> list[Step]:
    """A precompiled header where there is one, an object per source, in parallel, and a link. The sources' common
    folder is on the include path.

    -ffp-contract=off: the same results with and without host FMA.
    """
    folder = spec.root / os.path.commonpath([os.path.dirname(source) for source in spec.sources])
    march = [f"-march={spec.arch}"] if spec.arch.startswith("x86-64") else []
    common = [toolchain.host_compiler, "-std=c++20", "-O3", "-ffp-contract=off", *march, "-Wall", "-fPIC", "-pthread",
              f"-ffile-prefix-map={spec.root}=csrc", f"-I{folder}", *_include(spec), *_defines(spec), *spec.flags]
    header, use = [], ()
    if spec.precompiled:  # it is this build's own, and its files are compared afterwards: it need not be validated
        header = [_precompiled(common, f"{spec.root}/{spec.precompiled}")]
        use = ("-include-pch", header[0].output, "-Xclang", "-fno-validate-pch")
    compiles = []
    for index, source in enumerate(spec.sources):
        name = f"{index}.o"
        command = (*common, *_own_flags(spec, source), *use, "-MD", "-MF", f"{name}.d", "-c", "-o", name,
                   f"{spec.root}/{source}")
        compiles.append(Step(name, tuple(step.output for step in header), command, f"{name}.d"))
    objects = [step.output for step in compiles]
    link = (toolchain.host_compiler, "-shared", "-pthread", "-o", spec.output, *objects, "-ldl", *spec.link_flags)
    return [*header, *compiles, Step(spec.output, tuple(objects), link)]


def _precompiled(common: list[str], header: str) -> Step:
    """Its templates are instantiated in it, once for all that read it. No times: the same bytes of the same text."""
    own = ("-fpch-instantiate-templates", "-Xclang", "-fno-pch-timestamp", "-x", "c++-header")
    return Step(_PCH, (), (*common, *own, "-MD", "-MF", f"{_PCH}.d", "-o", _PCH, header), f"{_PCH}.d")


def _own_flags(spec: ModuleSpec, source: str) -> list[str]:
    """The flags that `own_flags` gives a source; those of a deeper place come last, and win."""
    return [flag for place, flags in spec.own_flags for flag in flags
            if source == place or source.startswith(f"{place}/")]


def _include(spec: ModuleSpec) -> list[str]:
    binding = [] if spec.kind == "host" else ["-isystem", str(_tvm_ffi() / "include")]
    return [f"-I{spec.root}/include", *binding]


def _mapped(spec: ModuleSpec, name: str) -> list[str]:
    """The same paths in macros and debug information wherever the sources and the build folder lie."""
    return [f"-ffile-prefix-map={spec.root}={name}", "-fdebug-compilation-dir=."]


def _defines(spec: ModuleSpec) -> list[str]:
    return [f"-D{name}={value}" for name, value in spec.defines]


def _through(option: str, arguments: list[str]) -> list[str]:
    return [word for argument in arguments for word in (option, argument)]


def _macro(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


@functools.cache
def _tvm_ffi() -> Path:
    """Folder of the tvm_ffi package, without importing it."""
    return Path(importlib.util.find_spec("tvm_ffi").origin).parent
