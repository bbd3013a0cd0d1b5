# SPDX-License-Identifier: MIT
"""Instructions of a wave of kernels that memory bounds: what their modelled times rest on, which
op_tests/bench/bench_modelled.py prints.
"""

from __future__ import annotations

import modelled_rows
import pytest

from aiter_like import device as devices
from aiter_like import sim

ROWS = 640  # more than CUs can hold, so that lanes take as much of a row as of many rows
# Case → vector arithmetic and LDS instructions of a wave. Reductions by DPP use the LDS for one word of each wave.
GATES = {"rms_norm 4096": (224, 2), "layer_norm 4096": (318, 3), "rms_norm_quant fp8 4096": (288, 3),
         "per_token_quant fp8": (206, 2), "reshape_and_cache_flash fp8": (100, 0),
         "reshape_and_cache shuffled fp8 +3": (170, 8.2)}


@pytest.fixture(scope="module")
def cases():
    devices.use_simulator(True)
    yield dict(modelled_rows.cases(ROWS))
    devices.reset()


@pytest.mark.parametrize("name", GATES)
def test_instructions_of_a_wave(cases, name):
    with sim.enabled(checks=False) as session:
        cases[name].call()
    (counts,) = session.counters.values()
    kinds, waves = counts["by_class"], counts["waves"]
    arithmetic = (kinds.get("valu", 0) + kinds.get("trans", 0)) / waves
    vector, lds = GATES[name]
    assert arithmetic <= vector and kinds.get("ds", 0) / waves <= lds, counts
