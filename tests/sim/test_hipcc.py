# SPDX-License-Identifier: MIT
"""A hipcc that was not written here, as its distribution has it, over the clang of this machine: .ci/setup.sh unpacks
Debian's into .venv, and one in PATH will do. Its kernels run on the simulated MI300X, against float64."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jit_project import real_clang

_PROGRAM = """
import json, sys
import torch
import aiter_like
from aiter_like.modules import build

generator = torch.Generator().manual_seed(int(sys.argv[1]))
def rand(*shape):
    return torch.randn(*shape, generator=generator).bfloat16()

x, weight = rand(5, 300), rand(300)
q, k, v = rand(1, 33, 4, 64), rand(1, 33, 2, 64), rand(1, 33, 2, 64)
with aiter_like.use_backend("hip"):
    norm = aiter_like.rms_norm(x, weight, 1e-6)
    attention = aiter_like.flash_attn_func(q, k, v, causal=True)

wide = x.double()
expected = wide * (wide.square().mean(1, keepdim=True) + 1e-6).rsqrt() * weight.double()
scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double().repeat_interleave(2, 2)) / 8
scores += torch.full((33, 33), -torch.inf, dtype=torch.float64).triu(1)
out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.double().repeat_interleave(2, 2))
print(json.dumps({
    "norm": ((norm.double() - expected).abs() / (1 + expected.abs())).max().item(),
    "attention": (attention.double() - out).abs().max().item(),
    "built": {one.spec.name: [one.entry.meta["toolchain"], one.entry.meta["build"]["commands"]] for one in build.built
              if one.spec.kind == "hip"}}))
"""


def _real_hipcc() -> Path:
    """One of a distribution or of ROCm; the test is skipped where there is none."""
    for found in (Path(sys.prefix, "hipcc/usr/bin/hipcc"), shutil.which("hipcc"), "/opt/rocm/bin/hipcc"):
        if found and Path(found).is_file():
            return Path(found)
    pytest.skip("needs a hipcc: apt-get download hipcc && dpkg -x hipcc_*.deb .venv/hipcc")


@pytest.fixture
def environment() -> dict[str, str]:
    """hipcc is found, and the clang for the host is the one that has made the simulator already."""
    real_clang()
    own = {name: value for name, value in os.environ.items() if name != "AITER_LIKE_TOOLCHAIN"}
    return own | {"PATH": f"{_real_hipcc().parent}:{os.environ['PATH']}"}


def test_norm_and_attention_by_a_real_hipcc(environment):
    run = subprocess.run([sys.executable, "-c", _PROGRAM, str(os.getpid())], env=environment, capture_output=True,
                         text=True)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["norm"] < 2 ** -8 and found["attention"] < 2 ** -6
    assert [name.partition("-")[0] for name in found["built"]] == ["norm/rms_norm", "attention/flash_attn_fwd"]
    for compiler, commands in found["built"].values():
        assert compiler.startswith("hipcc ") and f"({_real_hipcc()})" in compiler
        assert f"{_real_hipcc()} -x hip" in commands[0], "the device code is hipcc's"
        assert "-amdgpu-kernarg-preload-count=" in commands[0], "the newest clang here knows it"


def test_doctor_names_it_and_its_clang(environment):
    code = "from aiter_like.modules import toolchain; print(*(one.toolchain for one in toolchain.report()), sep='\\n')"
    lines = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True,
                           check=True).stdout.splitlines()
    hipcc = next(line for line in lines if line.startswith("hipcc "))
    version = int(hipcc.split()[1].partition(".")[0])
    assert version >= 6 or "by HIP_CLANG_PATH over clang " in hipcc
