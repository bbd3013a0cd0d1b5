# SPDX-License-Identifier: MIT
"""Other people's HIP samples, unmodified and by their own makefiles: AITER_LIKE_TEST_HIP_SAMPLES names a folder of
them, such as a checkout of github.com/ROCm/rocm-examples. They are no part of this repository."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from jit_project import real_clang

from aiter_like.sim import rocm

VARIABLE = "AITER_LIKE_TEST_HIP_SAMPLES"
SECONDS = 300

# What a sample may need and nobody has here: another interface, a library of ROCm's, what refuses, a compiler.
NOT_HERE = re.compile(r"'(?:GLFW|glad|vulkan|omp|cuda|CL|(?:hip|roc)(?:cub|rand|prim|blas|solver|fft|sparse|thrust)|"
                      r"thrust)[\w/]*\.(?:h|hpp)' file not found"
                      r"|(?:undeclared identifier|unknown type name) 'hip\w+'"
                      r"|(?:hip|tex)\w*Texture|tex2D|hipArray|hipify-perl|nvcc|glslangValidator|cmake")


def folders() -> list[Path]:
    """Those with a makefile and sources beside it."""
    root = Path(os.environ[VARIABLE])
    assert root.is_dir(), f"{VARIABLE}={root} is no folder"
    return sorted(path.parent for path in root.rglob("Makefile")
                  if any(file.suffix in (".hip", ".cpp", ".cu") for file in path.parent.iterdir()))


@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no folder of samples")
def test_public_samples(tmp_path, capsys):
    real_clang()
    root, told = Path(os.environ[VARIABLE]), {}
    copy = tmp_path / "samples"
    shutil.copytree(root, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    for folder in folders():
        name = str(folder.relative_to(root))
        told[name] = outcome(copy / name)
        with capsys.disabled():
            print(f"{name}: {told[name]}", flush=True)
    assert told, "no folder with a makefile and sources"
    wrong = {name: text for name, text in told.items() if not text.startswith(("runs", "needs "))}
    ran = sum(text.startswith("runs") for text in told.values())
    assert not wrong, f"{ran} of {len(told)} run; {wrong}"


def outcome(folder: Path) -> str:
    """"runs", what it needs that is not here, or what went wrong."""
    place = str(rocm.folder())
    environment = os.environ | {"ROCM_PATH": place, "HIP_PLATFORM": "amd", "LD_LIBRARY_PATH": f"{place}/lib",
                                "PATH": f"{place}/bin:{os.environ['PATH']}"}
    before = programs(folder)
    words = ["make", f"ROCM_INSTALL_DIR={place}", f"ROCM_PATH={place}", f"HIP_PATH={place}"]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        needed = NOT_HERE.search(done.stdout + done.stderr)
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        return f"needs {needed[0]}" if needed else f"does not build: {errors[:2]}"
    made = sorted(programs(folder) - before)
    for program in made:
        try:
            run = subprocess.run([program], cwd=folder, env=environment, capture_output=True, text=True, check=False,
                                 errors="replace", timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return f"{program.name} has not ended after {SECONDS} s"
        if run.returncode:
            return f"{program.name} ends with {run.returncode}: {(run.stdout + run.stderr)[-300:]!r}"
    return f"runs ({', '.join(program.name for program in made)})" if made else "does not build: no program"


def programs(folder: Path) -> set[Path]:
    """Executable files of the ELF kind."""
    files = [path for path in folder.rglob("*") if path.is_file() and os.access(path, os.X_OK)]
    return {path for path in files if path.suffix == "" and path.read_bytes()[:4] == b"\x7fELF"}
