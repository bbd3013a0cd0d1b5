# SPDX-License-Identifier: MIT
"""Quantises rows for AITER's ragged products, which are not served themselves."""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, dtypes
from aiter_like.device import target_of
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common import elements


@aiter("aiter.ops.triton.[moe.]quant_moe", callers="V S")
def downcast_to_static_fp8(x: Tensor, scale: Tensor) -> Tensor:
    """`aiter_like.static_per_tensor_quant` into a new tensor of the device's fp8."""
    check.tensor("downcast_to_static_fp8", "x", x, dtypes=elements.FLOATS)
    out = torch.empty(x.shape, dtype=dtypes.fp8_of(target_of(x.device).arch), device=x.device)
    aiter_like.static_per_tensor_quant(out, x, scale.reshape(1))
    return out
