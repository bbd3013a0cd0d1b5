# SPDX-License-Identifier: MIT
"""Finds the compilers and says who they are: hipcc (ROCm), clang in HIP mode (no ROCm), nvcc (portable sources).

Nothing is probed before the first build; a compiler's version text is kept in the cache until its file changes.
Read by build.py, recipe.py and `aiter-like doctor`.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aiter_like import env
from aiter_like.errors import BuildError
from aiter_like.modules import processes, trust
from aiter_like.modules.cache import cache_root, read_json, sha256, write_json

ROCM_MIN = (6,)
CLANG_MIN = (19,)  # the first with gfx942 code generation that all sources here were tried with
_VERSION_SECONDS = 30.0  # a busy machine and a compiler on a network's disk take a few
_TOLD_LINES = 3  # The last lines of what is no compiler say why.
_EXIT_STATUS = "exit status"  # begins the last line of a version text, where the compiler has failed
_NO_SUCH_COMMAND = 127  # a shell's exit status: a hipcc without its clang says no more the next time
CLANG_MAX = 30  # newest versioned name looked for, as in clang++-30

_PLATFORMS = {"hipcc": ("hip", "host"), "clang": ("hip", "host"), "nvcc": ("cuda",)}
_MINIMUM = {"hipcc": ROCM_MIN, "clang": CLANG_MIN, "nvcc": (12,)}
_ORDER = {"hip": ("hipcc", "clang"), "cuda": ("nvcc",), "host": ("clang", "hipcc")}
# Texts that `--version` prints. hipcc prints clang's line too, after its own.
_VERSIONS = {"hipcc": r"HIP version: (\d+(?:\.\d+)*)", "nvcc": r"release (\d+\.\d+)",
             "clang": r"clang version (\d+(?:\.\d+)*)"}
_HINT = {
    "hip": "install clang-22 lld-22 llvm-22 clang-tools-22 (apt.llvm.org or the distribution), or ROCm >= 6",
    "cuda": "install the CUDA toolkit >= 12",
    "host": "install clang-22 lld-22",
}


@dataclass(frozen=True)
class Toolchain:
    """A usable compiler.

    Attributes:
        name: "hipcc", "clang" or "nvcc".
        path: the executable as it is run.
        version: e.g. (22, 1, 8); of ROCm for hipcc.
        identity: what enters the cache key: path, size, time and version text of the compiler.
        host_compiler: the C++ compiler for host-only modules ("" for nvcc).
        lent: for a hipcc that is handed another clang than its own, that clang as it is shown, else "".
        environment: "NAME=value" of what it is run with, in front of the environment that is there.
    """

    name: str
    path: str
    version: tuple[int, ...]
    identity: str
    host_compiler: str
    lent: str = ""
    environment: tuple[str, ...] = ()

    @property
    def command(self) -> tuple[str, ...]:
        """The beginning of a command line that runs it."""
        return ("env", *self.environment, self.path) if self.environment else (self.path,)

    @property
    def clang_version(self) -> tuple[int, ...]:
        """That of the clang which compiles, behind hipcc too; () where there is none or it does not say."""
        match = None if self.name == "clang" else re.search(_VERSIONS["clang"], self.identity)
        return self.version if self.name == "clang" else _numbers(match[1]) if match else ()

    def __str__(self) -> str:
        own = f"{self.name} {'.'.join(map(str, self.version))} ({self.path})"
        return f"{own}, by HIP_CLANG_PATH over {self.lent}" if self.lent else own


@dataclass(frozen=True)
class Candidate:
    """One line of the doctor's report: a compiler that was looked for, and either the toolchain or the reason."""

    name: str
    toolchain: Toolchain | None
    reason: str


def find(platform: str) -> Toolchain:
    """The toolchain that builds for `platform` ("hip", "cuda", or "host" for plain C++).

    Raises:
        BuildError: none is usable; the message lists each one tried with the reason, and what to install.
    """
    forced = env.get("AITER_LIKE_TOOLCHAIN")
    candidates = _candidates(platform, forced, *_search())
    for candidate in candidates:
        if candidate.toolchain is not None:
            return candidate.toolchain
    tried = "; ".join(f"{candidate.name}: {candidate.reason}" for candidate in candidates)
    raise BuildError(f"no compiler for {platform} targets ({tried}). {_HINT[platform]}")


def report() -> list[Candidate]:
    """Every known compiler with its version or the reason why it is not usable, in order of preference."""
    return [_probe(name, *_search()) for name in _PLATFORMS]


def find_ninja() -> str:
    """Path of the ninja binary: from the `ninja` Python package, else from PATH.

    Raises:
        BuildError: there is none.
    """
    scripts = Path(sys.executable).parent / "ninja"
    if scripts.is_file():
        return str(scripts)
    if importlib.util.find_spec("ninja") is not None:
        import ninja

        if ninja.BIN_DIR:
            return str(Path(ninja.BIN_DIR) / "ninja")
    found = shutil.which("ninja")
    if found is None:
        raise BuildError("no ninja binary. Install it: pip install ninja, or apt install ninja-build")
    return found


def _search() -> tuple[str, str, str]:
    """The environment that decides which compilers are found, and which clang is behind hipcc."""
    return tuple(os.environ.get(name, "") for name in ("PATH", "ROCM_PATH", "HIP_CLANG_PATH"))


@cache
def _candidates(platform: str, forced: str, path: str, rocm_path: str, clang_path: str) -> tuple[Candidate, ...]:
    search = (path, rocm_path, clang_path)
    if not forced:
        return tuple(_probe(name, *search) for name in _ORDER[platform])
    if forced in _PLATFORMS:
        candidate = _probe(forced, *search)
    elif os.sep in forced:
        candidate = _identify(forced, *search)
    else:
        raise ValueError(f"AITER_LIKE_TOOLCHAIN={forced!r}: expected one of {', '.join(_PLATFORMS)}, or a path to one")
    if candidate.toolchain is not None and platform not in _PLATFORMS[candidate.name]:
        if platform == "host":  # the simulator still needs a C++ compiler when nvcc is forced for kernels
            return _candidates("host", "", *search)
        reason = f"forced by AITER_LIKE_TOOLCHAIN={forced}, but it does not build for {platform} targets"
        candidate = Candidate(candidate.name, None, reason)
    return (candidate,)


def _probe(name: str, path: str, rocm_path: str, clang_path: str) -> Candidate:
    """The first executable of that kind that is new enough; a hipcc with a clang of its own before one without."""
    rejected = Candidate(name, None, f"not found in PATH{_elsewhere(rocm_path) if name == 'hipcc' else ''}")
    usable = []
    for executable in _executables(name, path, rocm_path):
        candidate = _identify(executable, path, rocm_path, clang_path)
        if candidate.toolchain is None or candidate.name != name:
            rejected = candidate
        elif not candidate.toolchain.lent:
            return candidate
        else:
            usable.append(candidate)
    return usable[0] if usable else Candidate(name, None, rejected.reason)


def _elsewhere(rocm_path: str) -> str:
    """Names the places outside of PATH in which hipcc is looked for."""
    if not rocm_path:
        return " or /opt/rocm/bin"
    missing = "" if Path(rocm_path).is_dir() else ", which is no folder"
    return f", /opt/rocm/bin or ROCM_PATH ({rocm_path}{missing})"


def _executables(name: str, path: str, rocm_path: str) -> list[str]:
    if name == "clang":
        names = [f"clang++-{major}" for major in range(CLANG_MAX, CLANG_MIN[0] - 1, -1)] + ["clang++"]
    else:
        names = [name]
    found = [shutil.which(entry, path=path) for entry in names]
    if name == "hipcc":
        found += [shutil.which(name, path=f"{root}/bin") for root in (rocm_path, "/opt/rocm") if root]
    if name == "nvcc":
        found.append(shutil.which(name, path="/usr/local/cuda/bin"))
    return [executable for executable in found if executable]


def _identify(executable: str, path: str, rocm_path: str, clang_path: str) -> Candidate:
    """Tells from an executable's version text which kind of compiler it is."""
    try:
        text = _version_text(executable, clang_path)
    except TimeoutError as error:
        return Candidate(Path(executable).name, None, str(error))
    matches = {name: match for name, pattern in _VERSIONS.items() if (match := re.search(pattern, text))}
    if not matches:
        told = "; ".join(text.strip().splitlines()[-_TOLD_LINES:]) or "no output"
        return Candidate(Path(executable).name, None, f"{executable} --version does not look like a compiler: {told}")
    name, match = next(iter(matches.items()))
    version = _numbers(match[1])
    if name == "hipcc":
        clang = _probe("clang", path, rocm_path, clang_path).toolchain
        return _identify_hipcc(executable, version, text, clang, clang_path)
    if version < _MINIMUM[name]:
        needed = ".".join(map(str, _MINIMUM[name]))
        return Candidate(name, None, f"{executable} is version {match[1]}, needed is >= {needed}")
    identity = "\n".join([*map(str, _stamp(executable, text)), text])
    return Candidate(name, Toolchain(name, executable, version, identity, "" if name == "nvcc" else executable), "")


def _identify_hipcc(executable: str, version: tuple[int, ...], text: str, clang: Toolchain | None,
                    clang_path: str) -> Candidate:
    """hipcc is a driver, and what it builds is a matter of the clang behind it: that of ROCm 6 or later, or one that is
    new enough itself. A hipcc that has neither, such as a distribution's older one, is handed the clang found here."""
    own = re.search(_VERSIONS["clang"], text)
    behind = _numbers(own[1]) if own else ()
    place = _installed_dir(text)
    if place and (version >= ROCM_MIN or behind >= CLANG_MIN):
        identity = "\n".join([*map(str, _stamp(executable, text)), text])
        return Candidate("hipcc", Toolchain("hipcc", executable, version, identity, f"{place}/clang++"), "")
    number = ".".join(map(str, version))
    is_elsewhere = clang_path and not any(Path(clang_path).glob("clang++*"))
    if place:
        problem = (f"{executable} is version {number} over clang {own[1] if own else 'of no known version'}, needed is "
                   f"hipcc >= {ROCM_MIN[0]} or any over clang >= {CLANG_MIN[0]}")
    else:
        problem = f"{executable} --version does not say where its clang is (InstalledDir)"
    if is_elsewhere:
        problem += f"; HIP_CLANG_PATH={clang_path} has no clang++"
    if clang is None:
        return Candidate("hipcc", None, f"{problem}; there is no other clang to hand to it")
    environment = _lend(clang)
    try:
        lent = _version_text(executable, "", environment)
    except TimeoutError as error:
        return Candidate("hipcc", None, f"{problem}; handed another clang, {error}")
    taken = re.search(_VERSIONS["clang"], lent)
    if not taken or _numbers(taken[1]) != clang.version or not _installed_dir(lent):
        return Candidate("hipcc", None, f"{problem}; by HIP_CLANG_PATH it does not take {clang.path}")
    identity = "\n".join([*map(str, _stamp(executable, lent)), lent])
    found = Toolchain("hipcc", executable, version, identity, clang.path, str(clang), environment)
    return Candidate("hipcc", found, "")


def _lend(clang: Toolchain) -> tuple[str, ...]:
    """Makes a hipcc run `clang`: a folder that has it under every name that a driver looks for, and the variables that
    name the folder.

    A distribution's driver looks for the clang of its own release (Debian's 5.2 for clang++-15), and for that clang's
    headers by its full version. HIP_ROCCLR_HOME: it would take the clang in its own folder before HIP_CLANG_PATH's.
    HIP_PLATFORM: it might find nvcc.
    """
    home = cache_root() / "hipcc" / sha256(clang.identity.encode())[:16]
    real = Path(os.path.realpath(clang.path))
    numbers = [f"-{major}" for major in range(CLANG_MAX + 1)]
    links = {home / "bin" / f"{name}{suffix}": real for name in ("clang", "clang++") for suffix in ("", *numbers)}
    resources = real.parent.parent / "lib" / "clang" / str(clang.version[0])
    if resources.is_dir():
        links[home / "lib" / "clang" / ".".join(map(str, clang.version))] = resources
    for folder in {link.parent for link in links}:
        trust.own_folder(folder)
    for link, target in links.items():
        if not os.path.islink(link) or os.readlink(link) != str(target):
            fresh = link.with_name(f".{link.name}.{os.getpid()}")
            os.symlink(target, fresh)
            os.replace(fresh, link)
    return (f"HIP_CLANG_PATH={home}/bin", f"HIP_ROCCLR_HOME={home}", "HIP_PLATFORM=amd")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _version_text(executable: str, clang_path: str = "", environment: tuple[str, ...] = ()) -> str:
    """Output of `executable --version`; from the cache while its files are unchanged (a run costs 20 to 300 ms).

    Args:
        executable: the compiler.
        clang_path: HIP_CLANG_PATH as it is set, on which the answer of a hipcc depends.
        environment: "NAME=value" of what it gets besides.

    Raises:
        TimeoutError: it does not end.
    """
    record_path = cache_root() / "compilers.json"
    records = read_json(record_path) or {}
    record = " ".join([*environment, *([f"HIP_CLANG_PATH={clang_path}"] if clang_path else []), executable])
    known = records.get(record)
    if known and known["stamp"] == _stamp(executable, known["text"]):
        return known["text"]
    variables = dict(variable.split("=", 1) for variable in environment)
    try:
        with processes.child([executable, "--version"], env=os.environ | variables, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
            out, err = (text.decode(errors="replace") for text in run.communicate(timeout=_VERSION_SECONDS))
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{executable} --version has not ended after {_VERSION_SECONDS:g} s") from None
    except OSError as error:
        return f"{error}"
    # Some drivers say on stderr who they are, and all of them what went wrong.
    is_told = any(re.search(pattern, out) for pattern in _VERSIONS.values())
    text = out if is_told and run.returncode == 0 else f"{out}{err}"
    if run.returncode:
        text = f"{text.rstrip()}\n{_EXIT_STATUS} {run.returncode}\n"
    if run.returncode == 0 or (run.returncode == _NO_SUCH_COMMAND and "HIP version:" in text):
        records[record] = {"stamp": _stamp(executable, text), "text": text}
        write_json(record_path, records)
    return text


def _stamp(executable: str, version_text: str) -> list[list]:
    """Path, size and time of the executable and, for a wrapper such as hipcc, of the clang that it says it runs."""
    files = [executable]
    if _installed_dir(version_text):
        files.append(f"{_installed_dir(version_text)}/clang++")
    stamp = []
    for name in files:
        path = os.path.realpath(name)
        try:
            status = os.stat(path)
        except OSError:
            stamp.append([path, 0, 0])
        else:
            stamp.append([path, status.st_size, status.st_mtime_ns])
    return stamp


def _installed_dir(version_text: str) -> str:
    match = re.search(r"^InstalledDir: (.+)$", version_text, re.MULTILINE)
    return match[1].strip() if match else ""
