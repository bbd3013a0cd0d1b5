# SPDX-License-Identifier: MIT
"""moe_gemm: what the operator's own formula says in every format, against float64; and refusals."""

from __future__ import annotations

import pytest
import torch
from experts import FORMATS, check, random_call

from aiter_like.dispatch import OPS
from aiter_like.ops.moe.moe_gemm_cases import sorted_case


def sorted_order(device, tokens, slots, experts, block, seed=0):
    """The fields of a call that say which pairs are of which expert, and a weight for each place."""
    numbers, weights, of_blocks, valid = sorted_case(device, tokens, slots, experts, block, seed)
    return {"experts": of_blocks, "sorted_ids": numbers, "valid": valid, "slots": slots, "block": block}, weights


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("activation", ("none", "silu_and_mul", "swiglu_and_mul"))
def test_reference(device, form, activation):
    order, weights = sorted_order(device, 9, 2, 4, 8)
    call = random_call(device, form, order, 9, 4, 36, 160, activation, weights=weights)
    OPS["moe_gemm"].run(*call, backend="torch")
    check(call)


def test_reference_of_pairs_that_are_not_sorted(device):
    ids = torch.tensor([0, 3, -1, 2, 4, 1], dtype=torch.int32, device=device)
    call = random_call(device, "bf16", {"experts": ids, "slots": 2}, 3, 4, 20, 96, is_of_pairs=True, sums_slots=True,
                       weights=torch.rand(6, device=device))
    OPS["moe_gemm"].run(*call, backend="torch")
    check(call)
