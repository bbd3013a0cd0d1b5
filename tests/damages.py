# SPDX-License-Identifier: MIT
"""What an argument is replaced by in the tests of damaged calls."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

TENSORS: dict[str, Callable[[Tensor], Any]] = {
    "none": lambda x: None,
    "list": lambda x: [1.0],
    "text": lambda x: "x",
    "number": lambda x: 3,
    "another dimension": lambda x: x[None],
    "no dimension": lambda x: x.new_zeros(()),
    "no rows": lambda x: x[:0],
    "another device": lambda x: x.to("meta"),
    "float64": lambda x: x.double(),
    "integers": lambda x: x.to(torch.int8) if x.dtype != torch.int8 else x.float(),
    "flags": lambda x: x.bool(),
    "complex": lambda x: torch.zeros(x.shape, dtype=torch.complex64),
    "one element for all": lambda x: x.new_zeros(1).as_strided(x.shape, [0] * x.ndim),
    "rows that overlap": lambda x: x.new_zeros(x.numel() + 1).as_strided(x.shape, [1] * x.ndim),
    "sparse": lambda x: torch.zeros(x.shape).to_sparse(),
    "quantised": lambda x: torch.quantize_per_tensor(torch.zeros(x.shape), 1.0, 0, torch.qint8),
    "nested": lambda x: torch.nested.nested_tensor([torch.zeros(3, 4)]),
    "shorter": lambda x: x[..., :-1],
    "no columns": lambda x: x[..., :0],
    "every other column": lambda x: x.new_zeros(*x.shape[:-1], 2 * x.shape[-1])[..., ::2].copy_(x),
    "one element on": lambda x: x.new_zeros(x.numel() + 1)[1:].view(x.shape).copy_(x),
    "fewer rows": lambda x: x[:-1],
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "requires grad": lambda x: x.clone().requires_grad_(),
}
NUMBERS = (None, "x", b"x", [1], (), float("nan"), float("inf"), -1, 0, 10**400, -10**5000, 2**40, 1.5, True, 1,
           torch.ones(2))


def damaged(arg: Any, parameter: inspect.Parameter | None = None) -> Iterator[tuple[str, Any]]:
    """(name, value) of what may stand for the argument; parameter: of a function, which may ask for a tensor."""
    if arg is None and parameter is not None and "Tensor" in str(parameter.annotation):
        arg = torch.ones(2)
    if not isinstance(arg, Tensor):
        yield from ((f"number {index}", number) for index, number in enumerate(NUMBERS))
        return
    for name, damage in TENSORS.items():
        try:
            yield name, damage(arg.clone())
        except (RuntimeError, IndexError, NotImplementedError):  # not for this shape or dtype
            continue


def bits(arg: Any) -> bytes:
    """What is in a tensor, b"" of anything else."""
    is_dense = (isinstance(arg, Tensor) and arg.layout is torch.strided and arg.device.type == "cpu"
                and not arg.is_nested and not arg.is_quantized)
    return bytes(arg.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy()) \
        if is_dense and arg.numel() else b""
