# SPDX-License-Identifier: MIT
"""Finds the compilers and says who they are: hipcc (ROCm), clang in HIP mode (no ROCm), nvcc (portable sources).

Nothing is probed before the first build; a compiler's version text is kept in the cache until its file changes.
Read by build.py, recipe.py and `aiter-like doctor`.
"""

from __future__ import annotations

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
from aiter_like.build import processes
from aiter_like.build.cache import cache_root, read_json, write_json
from aiter_like.errors import BuildError

ROCM_MIN = (6,)
CLANG_MIN = (19,)  # the first with gfx942 code generation that all sources here were tried with
_VERSION_SECONDS = 30.0  # a busy machine and a compiler on a network's disk take a few
CLANG_MAX = 30  # newest versioned name looked for, as in clang++-30

_PLATFORMS = {"hipcc": ("hip", "host"), "clang": ("hip", "host"), "nvcc": ("cuda",)}
_MINIMUM = {"hipcc": ROCM_MIN, "clang": CLANG_MIN, "nvcc": (12,)}
_ORDER = {"hip": ("hipcc", "clang"), "cuda": ("nvcc",), "host": ("clang", "hipcc")}
# What `--version` prints. hipcc prints clang's line too, after its own.
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
    """

    name: str
    path: str
    version: tuple[int, ...]
    identity: str
    host_compiler: str

    def __str__(self) -> str:
        return f"{self.name} {'.'.join(map(str, self.version))} ({self.path})"


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
    candidates = _candidates(platform, forced, os.environ.get("PATH", ""), os.environ.get("ROCM_PATH", ""))
    for candidate in candidates:
        if candidate.toolchain is not None:
            return candidate.toolchain
    tried = "; ".join(f"{candidate.name}: {candidate.reason}" for candidate in candidates)
    raise BuildError(f"no compiler for {platform} targets ({tried}). {_HINT[platform]}")


def report() -> list[Candidate]:
    """Every known compiler with its version or the reason why it is not usable, in order of preference."""
    search = (os.environ.get("PATH", ""), os.environ.get("ROCM_PATH", ""))
    return [_probe(name, *search) for name in _PLATFORMS]


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


@cache
def _candidates(platform: str, forced: str, path: str, rocm_path: str) -> tuple[Candidate, ...]:
    if not forced:
        return tuple(_probe(name, path, rocm_path) for name in _ORDER[platform])
    if forced in _PLATFORMS:
        candidate = _probe(forced, path, rocm_path)
    elif os.sep in forced:
        candidate = _identify(forced)
    else:
        raise ValueError(f"AITER_LIKE_TOOLCHAIN={forced!r}: expected one of {', '.join(_PLATFORMS)}, or a path to one")
    if candidate.toolchain is not None and platform not in _PLATFORMS[candidate.name]:
        if platform == "host":  # the simulator still needs a C++ compiler when nvcc is forced for kernels
            return _candidates("host", "", path, rocm_path)
        reason = f"forced by AITER_LIKE_TOOLCHAIN={forced}, but it does not build for {platform} targets"
        candidate = Candidate(candidate.name, None, reason)
    return (candidate,)


def _probe(name: str, path: str, rocm_path: str) -> Candidate:
    """The first executable of that kind that is new enough."""
    rejected = Candidate(name, None, "not found in PATH" + (" or /opt/rocm/bin" if name == "hipcc" else ""))
    for executable in _executables(name, path, rocm_path):
        candidate = _identify(executable)
        if candidate.toolchain is not None and candidate.name == name:
            return candidate
        rejected = candidate
    return Candidate(name, None, rejected.reason)


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


def _identify(executable: str) -> Candidate:
    """What kind of compiler an executable is, from its version text."""
    try:
        text = _version_text(executable)
    except TimeoutError as error:
        return Candidate(Path(executable).name, None, str(error))
    matches = {name: match for name, pattern in _VERSIONS.items() if (match := re.search(pattern, text))}
    if not matches:
        first = (text.strip().splitlines() or ["no output"])[0]
        return Candidate(Path(executable).name, None, f"{executable} --version does not look like a compiler: {first}")
    name, match = next(iter(matches.items()))
    version = tuple(int(part) for part in match[1].split("."))
    if version < _MINIMUM[name]:
        needed = ".".join(map(str, _MINIMUM[name]))
        return Candidate(name, None, f"{executable} is version {match[1]}, needed is >= {needed}")
    if name == "hipcc" and not _installed_dir(text):
        return Candidate(name, None, f"{executable} --version does not say where its clang is (InstalledDir)")
    host_compiler = "" if name == "nvcc" else executable if name == "clang" else f"{_installed_dir(text)}/clang++"
    identity = "\n".join([*map(str, _stamp(executable, text)), text])
    return Candidate(name, Toolchain(name, executable, version, identity, host_compiler), "")


def _version_text(executable: str) -> str:
    """Output of `executable --version`; from the cache while its files are unchanged (a run costs 20 to 300 ms).

    Raises:
        TimeoutError: it does not end.
    """
    record_path = cache_root() / "compilers.json"
    records = read_json(record_path) or {}
    known = records.get(executable)
    if known and known["stamp"] == _stamp(executable, known["text"]):
        return known["text"]
    try:
        with processes.child([executable, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE) as run:
            out, err = (text.decode(errors="replace") for text in run.communicate(timeout=_VERSION_SECONDS))
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{executable} --version has not ended after {_VERSION_SECONDS:g} s") from None
    except OSError as error:
        return f"{error}"
    text = out + (err if run.returncode else "")
    if run.returncode == 0:
        records[executable] = {"stamp": _stamp(executable, text), "text": text}
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
