# SPDX-License-Identifier: MIT
"""The hot list: at most 40 shapes of an operator, of which each is one that the tuner can make."""

import tomllib

import pytest
import torch

import aiter_like  # noqa: F401  (declares the operators)
from aiter_like import paths
from aiter_like.dispatch import OPS
from aiter_like.tuning import hot_list

LISTED = tomllib.loads((paths.configs() / "hot_list.toml").read_text())
TUNED = sorted(name for name, op in OPS.items() if name in LISTED["shapes"] or op.tuning and op.tuning.shapes)


@pytest.mark.parametrize("name", TUNED)
def test_shapes_of_an_operator(name):
    keys = hot_list.keys(OPS[name])
    assert 0 < len(keys) <= 40 == LISTED["most"]
    assert len({tuple(key.values()) for key in keys}) == len(keys)
    assert all(tuple(key) == OPS[name].tune_fields for key in keys)


def test_operators_of_the_file():
    assert set(LISTED["shapes"]) <= set(OPS)
    assert len(TUNED) >= 35


def test_models_and_others_have_their_part():
    rows = {(key["rows"], key["hidden"]) for key in hot_list.keys(OPS["rms_norm"])}
    assert rows >= {(32760, 5120), (64, 4096), (8192, 8192), (64, 2048), (1, 7168)}


def test_a_shape_of_the_file_makes_a_call():
    """Small enough for this machine: queries and keys of the text that Wan2.1 looks at."""
    key = hot_list.keys(OPS["rms_norm"])[1]
    assert key["rows"] == 512
    assert OPS["rms_norm"].tuning.case(key, torch.device("cpu"), 0).input.shape == (512, 5120)
