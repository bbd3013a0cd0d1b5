# SPDX-License-Identifier: MIT
"""What the launches for a few long rows take on the cycle model, which their samplers are cut into."""

import pytest
import torch

from aiter_like import sim
from aiter_like.dispatch import OPS

MODELLED_US = {("renorm_probs", "top_k"): 33.5, ("renorm_probs", "top_p"): 42.0,
               ("sampling_from_probs", "top_k"): 31.5, ("sampling_from_probs", "top_p"): 39.0,
               ("sampling_from_probs", "none"): 7.6}
"""Of 8 rows of 128,256 fp32 at 2100 MHz, all launches together: at most."""

SEARCH_LDS = {"filter_mass_kernel": 24, "filter_slice_kernel": 24}
"""LDS instructions of a wave of launches after the search, at most: they have its result, or one level of it to find.
By the random numbers, which differ from machine to machine, these are 5 to 19; a level of the search itself has 28."""


@pytest.mark.parametrize("operator, limit", MODELLED_US)
def test_rows_in_slices(simulated, operator, limit):
    key = {"rows": 8, "columns": 128256, "dtype": "fp32", "features": limit}
    call = OPS[operator].tuning.case(key, torch.device("cpu"), 0)
    with sim.enabled(checks=False, counters=True, model="whole") as session:
        OPS[operator].run(*call, backend="hip")
    assert sum(one["modelled_us"] for one in session.modelled) <= MODELLED_US[operator, limit]
    for launch in session.launches:
        kinds = launch["totals"]["by_class"]
        most = next((lds for name, lds in SEARCH_LDS.items() if name in launch["kernel"]), None)
        assert most is None or kinds.get("ds", 0) <= most * kinds["end"]
