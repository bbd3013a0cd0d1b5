# SPDX-License-Identifier: MIT
"""Tests of the tile library repeat exactly."""

import pytest
import torch


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
