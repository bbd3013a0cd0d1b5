# SPDX-License-Identifier: MIT
"""A backend's `address_refusal` names a tensor that begins where its kernel, which moves several elements at once,
cannot move them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def begin_at(elements: Mapping[str, int] | Callable[[Any], Mapping[str, int]], limit: int = 16,
             ) -> Callable[[Any], str | None]:
    """The `address_refusal` of a kernel that moves so many elements of its tensors at once, or `limit` bytes of them.

    Args:
        elements: name of a tensor → elements; a function of the call, where they depend on it.
    """
    def address_refusal(call: Any) -> str | None:
        for name, count in (elements(call) if callable(elements) else elements).items():
            tensor = getattr(call, name)
            if tensor is not None and tensor.numel():
                size = min(count * tensor.element_size(), limit)
                if tensor.data_ptr() % size:
                    return f"{name} does not begin at a multiple of {size} bytes"
        return None

    return address_refusal
