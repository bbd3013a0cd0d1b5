# SPDX-License-Identifier: MIT
"""Every operator's cases with one argument damaged: a right result or a refusal in the operator's words, and nothing
written where it is refused. Plain calls come first, so that their plans are there to be taken wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from aiter_like.dispatch import OPS
from aiter_like.errors import UnsupportedError

KINDS_OF_CASES = 3  # of an operator: those whose arguments are of different types come first
# Positions and offsets beyond the table are not looked at: the reference fails, and a kernel reads what is there.
NOT_CHECKED = {("rope", "positions", "none"), ("rope", "positions", "list")}

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
    "fewer rows": lambda x: x[:-1],
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "requires grad": lambda x: x.clone().requires_grad_(),
}
NUMBERS = (None, "x", b"x", [1], (), float("nan"), float("inf"), -1, 0, 10**400, -10**5000, 2**40, 1.5, True, 1,
           torch.ones(2))


def _damaged(arg: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(arg, Tensor):
        yield from ((f"number {index}", number) for index, number in enumerate(NUMBERS))
        return
    for name, damage in TENSORS.items():
        try:
            yield name, damage(arg.clone())
        except (RuntimeError, IndexError, NotImplementedError):  # not for this shape or dtype
            continue


def _bits(arg: Any) -> bytes:
    is_dense = (isinstance(arg, Tensor) and arg.layout is torch.strided and arg.device.type == "cpu"
                and not arg.is_nested and not arg.is_quantized)
    return bytes(arg.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).numpy()) \
        if is_dense and arg.numel() else b""


def _chosen(name: str) -> list[tuple]:
    cases = [*OPS[name].cases(torch.device("cpu")).values()]
    kinds = {tuple(map(type, case)): case for case in reversed(cases)}
    return [*kinds.values()][-KINDS_OF_CASES:]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", sorted(OPS))
def test_one_damaged_argument(name):
    op = OPS[name]
    for case in _chosen(name):
        fresh = lambda case=case: [arg.clone() if isinstance(arg, Tensor) else arg for arg in case]  # noqa: E731
        for _ in range(2):
            op(fresh(), backend="torch")
        for index, field in enumerate(op.call._fields):
            for damage, value in _damaged(case[index]):
                if (name, field, damage) in NOT_CHECKED:
                    continue
                args = fresh()
                args[index] = value
                before = [*map(_bits, args)]
                try:
                    op(args, backend="torch")
                except (ValueError, TypeError, UnsupportedError) as refusal:
                    words = str(refusal)
                    assert name in words or name == "flash_attn_bwd" and "flash_attn_fwd" in words, (field, damage)
                    assert [*map(_bits, args)] == before, (field, damage)
                except Exception as error:  # noqa: BLE001
                    pytest.fail(f"{field}, {damage}: {type(error).__name__}: {error}")
