# SPDX-License-Identifier: MIT
"""What latent attention's plan and the sum of its parts take on the cycle model: both are chains of waits."""

import pytest
import torch

from aiter_like import sim
from aiter_like.dispatch import OPS

PLAN_US, PLAN_INSTRUCTIONS, PLAN_LDS = 4.7, 620, 20
"""Of 64 sequences: modelled time at 2100 MHz; instructions and LDS instructions of a wave; at most."""

SUMS = {(64, 16): (5, 7.2, 640), (16, 128): (10, 16.2, 920)}
"""Sequences and heads → parts of each, of 512 columns; modelled us and instructions of a wave, at most."""


def modelled(call: tuple, operator: str, backend: str) -> list[dict]:
    with sim.enabled(checks=False, counters=True, model="whole") as session:
        OPS[operator].run(*call, backend=backend)
    return [{**counted, **one} for counted, one in zip(session.launches, session.modelled, strict=True)]


def test_plan(simulated):
    key = {"batch": 64, "seqlen_q": 1, "seqlen_k": 320, "num_heads": 16, "head_dim": 160, "head_dim_v": 128,
           "page_size": 64, "features": "none", "dtype": "bf16", "kv_dtype": "bf16"}
    plan, *_ = modelled(OPS["mla_decode"].tuning.case(key, torch.device("cpu"), 0), "mla_decode", "ck")
    assert "mla_metadata" in plan["kernel"] and plan["modelled_us"] <= PLAN_US
    counts, waves = plan["totals"], plan["totals"]["by_class"]["end"]
    assert counts["executed"] <= PLAN_INSTRUCTIONS * waves and counts["by_class"]["ds"] <= PLAN_LDS * waves


@pytest.mark.parametrize("tiles, heads", SUMS)
def test_sum(simulated, tiles, heads):
    parts, most_us, most_instructions = SUMS[tiles, heads]
    key = {"tiles": tiles, "seqlen_q": 1, "num_heads": heads, "head_dim_v": 512, "parts": tiles * parts,
           "dtype": "bf16"}
    (one,) = modelled(OPS["mla_reduce"].tuning.case(key, torch.device("cpu"), 0), "mla_reduce", "hip")
    assert one["modelled_us"] <= most_us and one["private_bytes"] == 0
    assert one["totals"]["executed"] <= most_instructions * one["totals"]["by_class"]["end"]
