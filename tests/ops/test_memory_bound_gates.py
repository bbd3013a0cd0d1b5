# SPDX-License-Identifier: MIT
"""Instructions of a wave of kernels that memory bounds, and what launches for few rows take on the cycle model: what
the times of op_tests/bench/bench_modelled.py rest on.
"""

import modelled_rows
import pytest

from aiter_like import device as devices
from aiter_like import sim
from aiter_like.modules import toolchain

ROWS = 640  # more than CUs can hold, so that lanes take as much of a row as of many rows
# Case → vector arithmetic and LDS instructions of a wave. Reductions by DPP use the LDS for one word of each wave.
GATES = {"rms_norm 4096": (224, 2), "rms_norm 4100": (132, 5), "layer_norm 4096": (318, 3),
         "rms_norm_quant fp8 4096": (288, 3), "per_token_quant fp8": (206, 2), "reshape_and_cache_flash fp8": (100, 0),
         "reshape_and_cache shuffled fp8 +3": (170, 8.2)}

FEW_ROWS = 64
MODELLED_US = {"rms_norm 4096": 1.70, "rms_norm add 4096": 2.03, "layer_norm 4096": 2.04,
               "rms_norm_quant fp8 by 128": 2.25, "silu_and_mul": 2.14, "per_group_quant fp8 by 128": 1.44,
               "reshape_and_cache_flash bf16": 1.06, "rope 2c cached": 3.6}
"""Of FEW_ROWS rows at 2100 MHz, at most: 0.3 to 0.5 more where a kernel waits for its arguments before it loads rows
(include/aiter_like/preload.h), 0.35 where rope waits for positions before it loads heads, 0.01 of a norm where
lanes without an element choose another address (rows/rows.h)."""


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


@pytest.mark.skipif(toolchain.find("hip").clang_version < (20,), reason="needs a compiler that is asked to preload")
def test_launches_for_few_rows():
    devices.use_simulator(True)
    calls, found = dict(modelled_rows.cases(FEW_ROWS)), {}
    for name in MODELLED_US:
        with sim.enabled(checks=False, model="whole") as session:
            calls[name].call()
        found[name] = sum(one["modelled_us"] for one in session.modelled)
    devices.reset()
    assert {name: us for name, us in found.items() if us > MODELLED_US[name]} == {}
