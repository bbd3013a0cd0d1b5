# SPDX-License-Identifier: MIT
"""What the compiler makes of csrc/moe/moe_gemm_skinny.hip: registers and banks, and the modelled share of the read
rate; and what Triton's kernel for weights of few bits and pairs that are not sorted takes, modelled."""

import pytest
import torch
from kernel_gates import COMPILERS, READ_TB_PER_S, counted, modelled_us

from aiter_like.dispatch import OPS
from aiter_like.ops.moe.moe_gemm_call import MoeGemmCall
from aiter_like.ops.moe.moe_gemm_hip import moe_gemm_hip

pytestmark = pytest.mark.rotating

SLOTS, EXPERTS, HIDDEN, INNER = 8, 32, 2048, 768
"""Qwen3-30B-A3B with a quarter of its experts."""


def gates(block: int) -> MoeGemmCall:
    """Of one token, or of as many experts' blocks as there are, each full."""
    weights = torch.empty(EXPERTS, 2 * INNER, HIDDEN, dtype=torch.bfloat16)
    if block == 0:
        a, out = torch.ones(1, HIDDEN).bfloat16(), torch.empty(SLOTS, INNER, dtype=torch.bfloat16)
        return MoeGemmCall(out, a, weights, torch.arange(SLOTS, dtype=torch.int32), slots=SLOTS,
                           activation="silu_and_mul")
    tokens = EXPERTS * block // SLOTS
    a, out = torch.ones(tokens, HIDDEN).bfloat16(), torch.empty(tokens * SLOTS, INNER, dtype=torch.bfloat16)
    pairs = torch.arange(tokens * SLOTS)
    ids = ((pairs // tokens) << 24 | pairs % tokens).int()
    return MoeGemmCall(out, a, weights, torch.arange(EXPERTS, dtype=torch.int32), sorted_ids=ids,
                       valid=torch.tensor([len(ids)], dtype=torch.int32), slots=SLOTS, block=block,
                       activation="silu_and_mul")


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("block, share", ((0, 0.75), (16, 0.78)), ids=str)
def test_modelled_share_of_the_read_rate(simulated, compiled_by, compiler, block, share):
    """One token's 50 MB, start and end included, and 201 MB of all experts, whose blocks are full."""
    compiled_by(compiler, moe_gemm_hip)
    call = gates(block)
    read = len(call.experts) * call.b[0].nbytes
    assert read / modelled_us(OPS["moe_gemm"], call, "hip") / 1e6 > share * READ_TB_PER_S


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("block", (0, 16))
def test_registers(simulated, compiled_by, compiler, block):
    compiled_by(compiler, moe_gemm_hip)
    call = gates(block)
    small = call._replace(b=call.b[:, :64].contiguous(), out=call.out[:, :32].contiguous())
    launch = counted(OPS["moe_gemm"], small, "hip")
    assert launch["occupancy"]["workgroups_per_cu"] >= 2 and launch["private_bytes"] == 0


@pytest.mark.parametrize("b_dtype, group_size, most", (("int4", 0, 7.7), ("int4", 128, 8.0), ("mxfp4", 32, 9.2)))
def test_modelled_time_of_pairs_with_weights_of_four_bits(simulated, b_dtype, group_size, most):
    """Gates of one token; with the programs of four rows that suit an H100 8.1, 8.7 and 9.8 us."""
    key = {"pairs": SLOTS, "experts": EXPERTS, "n": 2 * INNER, "k": HIDDEN, "slots": SLOTS, "block": 1,
           "dtype": "bf16", "b_dtype": b_dtype, "group_size": group_size, "is_gated": 1, "is_of_pairs": 0,
           "is_shuffled": 0}
    call = OPS["moe_gemm"].tuning.case(key, torch.device("cpu"), 0)
    assert modelled_us(OPS["moe_gemm"], call, "triton") <= most
