# SPDX-License-Identifier: MIT
"""Lanes that hold one sum of weighted products hold it alike."""

import pytest
import torch

from aiter_like import fused_moe, sim

pytest.importorskip("triton")


@pytest.mark.parametrize("slots", (6, 8))
def test_a_sum_over_experts_is_the_same_in_all_lanes(simulated, slots):
    generator = torch.Generator().manual_seed(slots)
    x, gates, down = (torch.randn(shape, generator=generator).bfloat16() for shape in
                      ((1, 256), (8, 96, 256), (8, 256, 48)))
    ids = torch.randperm(8, generator=generator)[None, :slots].int()
    with sim.enabled("all"):
        fused_moe(x, gates, down, torch.rand(1, slots, generator=generator), ids, backend="triton")
