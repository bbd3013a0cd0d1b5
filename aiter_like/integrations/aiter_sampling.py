# SPDX-License-Identifier: MIT
"""AITER's samplers that have other parameters here. Named by aiter_names.txt."""

from __future__ import annotations

from torch import Tensor

import aiter_like


def softmax(x: Tensor) -> Tensor:
    """`aiter_like.softmax` as AITER's Triton module has it."""
    return aiter_like.softmax(x)
