# SPDX-License-Identifier: MIT
"""What compilers make of csrc/mla/mqa_logits.hip: registers, bytes, the modelled share of what bounds it."""

import pytest
import torch
from kernel_gates import COMPILERS, READ_TB_PER_S, counted, modelled_us

from aiter_like.ops.mla import mqa_logits as operator
from aiter_like.sim import modelling

pytestmark = pytest.mark.rotating

KEY = {"num_heads": 64, "head_dim": 128, "page_size": 64, "layout": "rows", "dtype": "fp8_e4m3fnuz"}
"""DeepSeek-V3.2's index."""


def call_of(rows: int, tokens: int, columns: int, **changed) -> operator.MqaLogitsCall:
    key = {**KEY, "rows": rows, "seqlen_q": tokens, "columns": columns, **changed}
    return operator.mqa_logits_op.tuning.case(key, torch.device("cpu"), 0)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("heads, dim, tokens", ((64, 128, 1), (64, 128, 2), (64, 128, 4), (64, 128, 16), (128, 128, 16),
                                                (32, 64, 16)), ids=str)
def test_registers(simulated, compiled_by, compiler, heads, dim, tokens):
    """Two workgroups fit a CU, and nothing is in local memory."""
    compiled_by(compiler, operator._mqa_logits_ck)
    launch = counted(operator.mqa_logits_op, call_of(tokens, tokens, 64, num_heads=heads, head_dim=dim))
    assert launch["occupancy"]["workgroups_per_cu"] >= 2 and launch["private_bytes"] == 0


@pytest.mark.parametrize("tokens", (1, 2))
def test_bytes(simulated, tokens):
    """The keys of sequences that fill the device are read once, whatever tokens they have. Each of a workgroup's four
    waves reads its queries, and 16 lanes of it their weights; the rest is 4 % at most.
    """
    call = call_of(608 * tokens, tokens, 512)
    launch = counted(operator.mqa_logits_op, call)
    moved = sum(tensor.nbytes for tensor in (call.keys, call.k_scale, call.logits))
    moved += 4 * (call.q.nbytes + 16 * call.weights.nbytes)
    assert moved <= launch["totals"]["global_bytes"] <= 1.04 * moved


@pytest.mark.parametrize("compiler", COMPILERS)
def test_modelled_share_of_the_read_rate(simulated, compiled_by, compiler):
    """Of 138 MB of keys and their scales, start and end included."""
    compiled_by(compiler, operator._mqa_logits_ck)
    call = call_of(16, 1, 65536)
    moved = call.keys.nbytes + call.k_scale.nbytes
    assert moved / modelled_us(operator.mqa_logits_op, call) / 1e6 > 0.76 * READ_TB_PER_S


@pytest.mark.parametrize("compiler", COMPILERS)
def test_modelled_share_of_the_matrix_cores(simulated, compiled_by, compiler):
    """Of a prompt's part, 1024 tokens that see 16384 keys."""
    compiled_by(compiler, operator._mqa_logits_ck)
    call = call_of(1024, 1024, 16384, page_size=0)
    peak = next(roof["per_second"] for roof in modelling.roofs(modelling.PEAK_MHZ) if roof["name"] == "fp8_fp8")
    _, flops = operator.mqa_logits_op.tuning.needs(call)
    assert flops / modelled_us(operator.mqa_logits_op, call) * 1e6 > 0.52 * peak
