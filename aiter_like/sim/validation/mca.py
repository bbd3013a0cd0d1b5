# SPDX-License-Identifier: MIT
"""The cycle model beside llvm-mca, LLVM's static model of a straight line of instructions.

One cycle of llvm-mca stands for four clk. It models neither what runs beside a matrix operation nor memory, and has
quarter-rate instructions at full rate: where it is known to be wrong, the case says so.
"""

from __future__ import annotations

import re
import shutil
import subprocess

from aiter_like.sim.validation.case import Slope
from aiter_like.sim.validation.cases import mfma
from aiter_like.sim.validation.kernels import Kernel

_CLK = 4
_RUNS = 200

_VALU, _EXP = "v_add_u32 v20, v1, v1", "v_exp_f32 v20, v1"

# Body → why llvm-mca is wrong there; "" = the two must agree.
BODIES = {
    _VALU: "",
    "v_fma_f32 v20, v21, v22, v23": "",
    "v_pk_fma_f32 v[20:21], v[22:23], v[24:25], v[26:27]": "",
    "v_fma_f64 v[20:21], v[22:23], v[24:25], v[26:27]": "",
    mfma("16x16x16_f16"): "",
    mfma("16x16x16_bf16"): "",
    mfma("16x16x32_fp8_fp8"): "",
    mfma("16x16x32_i8"): "",
    mfma("32x32x8_f16", registers=16): "",
    mfma("32x32x16_fp8_fp8", registers=16): "",
    mfma("16x16x4_f32", "v2, v3"): "",
    mfma("32x32x2_f32", "v2, v3", registers=16): "",
    _EXP: "it has transcendental functions at full rate; published: 16 clk",
    "v_mul_lo_u32 v20, v21, v22": "it has them at full rate; here a quarter is assumed, for want of a measurement",
}


def tool() -> str | None:
    """llvm-mca's path, or None where it is not installed (Debian: llvm-22)."""
    return next(filter(None, map(shutil.which, ("llvm-mca-22", "llvm-mca", "/opt/rocm/llvm/bin/llvm-mca"))), None)


def slopes() -> list[Slope]:
    """The bodies as cases; llvm-mca's figure, where there is one, stands for the published one."""
    return [Slope(body.split(" ")[0], "llvm-mca", mca(body), Kernel(body)) for body in BODIES]


def mca(body: str) -> float:
    """llvm-mca's clk of a body that repeats.

    Raises:
        RuntimeError: it is not installed, or does not understand the body.
    """
    found = tool()
    if not found:
        raise RuntimeError("llvm-mca is not installed (Debian: llvm-22)")
    command = [found, "-mtriple=amdgcn-amd-amdhsa", "-mcpu=gfx942", f"-iterations={_RUNS}"]
    done = subprocess.run(command, input=body, capture_output=True, text=True, check=False)
    cycles = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if done.returncode or not cycles:
        raise RuntimeError(f"llvm-mca: {done.stderr.strip() or 'no cycles'}")
    return _CLK * round(int(cycles.group(1)) / _RUNS)
