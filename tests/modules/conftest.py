# SPDX-License-Identifier: MIT
"""No test here sees a cache or a compiler that another one left behind."""

import pytest


@pytest.fixture(autouse=True)
def own_folders(jit_folders) -> None:
    """Every test has its own."""
