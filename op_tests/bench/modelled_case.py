# SPDX-License-Identifier: MIT
"""A case of bench_modelled.py: a call and what it needs at least."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like.dispatch import OPS


class Case(NamedTuple):
    """One call, and the bytes that it must read and write.

    Attributes:
        call: makes the call.
        read, written: bytes; of rows, those that all rows share left out.
        is_mixed: workgroups of several kinds: all of one XCD are replayed, since parts of the grid stand for no others.
        is_whole: all workgroups run, since launches do what earlier ones leave in memory, as a plan.
        flops: of matrix operations, 0 where there are none.
        matrix: the roof above them (modelling.roofs).
    """

    call: Callable[[], Any]
    read: int
    written: int
    is_mixed: bool = False
    is_whole: bool = False
    flops: int = 0
    matrix: str = "bf16"


def bytes_of(*tensors: Tensor) -> int:
    """All elements of some tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def of_key(operator: str, key: Mapping[str, Any], backend: str | None = None, *, is_whole: bool = False,
           matrix: str = "bf16", changed: Callable[[Any], Any] | None = None) -> Case:
    """A call as the tuner makes it for a key, on random numbers, and then `changed`, with what the operator says that
    it needs.
    """
    op = OPS[operator]
    call = op.tuning.case(key, torch.device("cpu"), 0)
    call = changed(call) if changed else call
    needed, flops = op.tuning.needs(call)
    results = {op.call._fields[index] for index in op.write_indices} - set(op.tuning.scratch)
    written = bytes_of(*(tensor for name in results if (tensor := getattr(call, name)) is not None))
    return Case(lambda: op(call, backend=backend), needed - written, written, is_whole=is_whole, flops=flops,
                matrix=matrix)
