# SPDX-License-Identifier: MIT
"""The cycle model beside llvm-mca, LLVM's static model of a straight line of instructions.

One cycle of llvm-mca stands for four clk. It models neither what runs beside a matrix operation nor memory, and has
quarter-rate instructions at full rate: where it is known to be wrong, the case says so.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess

from aiter_like.sim.validation.case import Slope
from aiter_like.sim.validation.cases import mfma
from aiter_like.sim.validation.kernels import Kernel

CLK = 4
"""For one cycle of llvm-mca."""

_RUNS = 200
_RUNS_OF_LINE = 4  # enough for what overlaps from one run of a loop to the next

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
    (cycles,) = _total_cycles(body, _RUNS)
    return CLK * round(cycles / _RUNS)


@functools.lru_cache(maxsize=256)
def cycles(lines: tuple[tuple[str, ...], ...]) -> list[float] | None:
    """llvm-mca's cycles of each of some straight lines of instructions; None where it is not installed, or does not
    know one of the instructions.
    """
    if not tool() or not lines:
        return None
    regions = (f"# LLVM-MCA-BEGIN {index}\n" + "\n".join(line) + "\n# LLVM-MCA-END\n"
               for index, line in enumerate(lines))
    try:
        found = _total_cycles("".join(regions), _RUNS_OF_LINE)
    except RuntimeError:
        return None
    return [total / _RUNS_OF_LINE for total in found] if len(found) == len(lines) else None


def _total_cycles(text: str, runs: int) -> list[int]:
    """llvm-mca's cycles of each region, over all runs."""
    found = tool()
    if not found:
        raise RuntimeError("llvm-mca is not installed (Debian: llvm-22)")
    command = [found, "-mtriple=amdgcn-amd-amdhsa", "-mcpu=gfx942", f"-iterations={runs}"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    totals = [int(cycles) for cycles in re.findall(r"Total Cycles:\s+(\d+)", done.stdout)]
    if done.returncode or not totals:
        raise RuntimeError(f"llvm-mca: {done.stderr.strip() or 'no cycles'}")
    return totals
