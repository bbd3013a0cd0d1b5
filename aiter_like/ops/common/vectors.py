# SPDX-License-Identifier: MIT
"""Addresses that kernels cannot take, as csrc/include/aiter_like/address.h has them."""

from __future__ import annotations

from typing import Any


def address_refusal(call: Any, names: tuple[str, ...], elements: int) -> str | None:
    """Why a kernel that reads `elements`, or 16 bytes of them, at once cannot take a call's tensors; None: it can."""
    for name in names:
        tensor = getattr(call, name)
        if tensor is not None and tensor.numel():
            size = min(16, elements * tensor.element_size())
            if tensor.data_ptr() % size:
                return f"{name} does not begin at a multiple of {size} bytes"
    return None
