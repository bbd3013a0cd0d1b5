# SPDX-License-Identifier: MIT
"""Slots that the cycle model of the simulated MI300X gives a key block of flash_attn_fwd: modelled, not measured.

A slot is 4 clk, and two waves of a SIMD share the time: what more keys take, per block, in clk / 8, of fewer keys than
are divided among workgroups. Matrix instructions alone take 768 slots at head dimension 128 and 512 at 64.
"""

import json
import os
import shutil
import subprocess
import sys

import attention_gates as gates
import pytest

from aiter_like import paths

PROGRAM = """
import json, sys
import torch
import aiter_like
from aiter_like import device
from aiter_like.sim import modelling

device.use_simulator(True)
torch.manual_seed(0)
head_dim, rounding = int(sys.argv[1]), int(sys.argv[2])
q = torch.randn(1, {128: 384, 64: 512}[head_dim], 1, head_dim).bfloat16()
clk = []
for keys in (448, 960):
    k, v = (torch.randn(1, keys, 1, head_dim).bfloat16() for _ in range(2))
    launches = []
    with modelling.modelled(launches), aiter_like.use_backend("hip"):
        aiter_like.flash_attn_func(q, k, v, how_v3_bf16_cvt=rounding)
    [launch] = launches
    clk.append(launch["modelled_clk"])
print(json.dumps((clk[1] - clk[0]) / 8 / 8))
"""

MOST = {(128, 1): 850, (64, 1): 670, (128, 0): 865, (64, 0): 750, (128, 2): 850, (64, 2): 605}


def modelled_slots(compiler: str, head_dim: int, rounding: int) -> float:
    """Of a wave and key block, with a compiler's build of the kernel."""
    environment = {**os.environ, "AITER_LIKE_TOOLCHAIN": shutil.which(compiler),
                   "PYTHONPATH": str(paths.csrc().parent)}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(head_dim), str(rounding)], env=environment, check=True,
                          capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("head_dim", (64, 128))
def test_slots_of_a_block(head_dim):
    assert {64: 512, 128: 768}[head_dim] < modelled_slots(gates.COMPILERS[1], head_dim, 1) <= MOST[head_dim, 1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiler", gates.COMPILERS)
@pytest.mark.parametrize(("head_dim", "rounding"), MOST)
def test_slots_of_a_block_by_every_compiler(compiler, head_dim, rounding):
    assert modelled_slots(compiler, head_dim, rounding) <= MOST[head_dim, rounding]
