# SPDX-License-Identifier: MIT
"""AITER's decorator of operators: what it makes is one of torch's, in eager mode and in graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import aiter_like as aiter
from aiter_like.integrations.aiter import torch_guard
from aiter_like.integrations.aiter.torch_guard import torch_compile_guard


def test_functions_become_operators():
    @torch_compile_guard()
    def guard_test_scaled(x: Tensor, factor: float = 2.0) -> tuple[Tensor, Tensor]:
        """Twice."""
        return x * factor, x + factor

    x = torch.arange(3.0)
    for found in (guard_test_scaled(x), torch.ops.aiter.guard_test_scaled(x, 2.0)):
        assert torch.equal(found[0], 2 * x) and torch.equal(found[1], x + 2)
    assert guard_test_scaled.__doc__ == "Twice."
    assert torch.equal(torch.compile(guard_test_scaled, backend="eager", fullgraph=True)(x, factor=3.0)[0], 3 * x)


def test_what_graphs_see_instead():
    calls = []

    @torch_compile_guard(mutates_args=[], gen_fake=lambda x, rows: x.new_empty(rows, x.shape[1]))
    def guard_test_first(x: Tensor, rows: int) -> Tensor:
        calls.append(type(x))
        return x[:rows].clone()

    x = torch.ones(4, 2)
    compiled = torch.compile(lambda x: guard_test_first(x, 3) * 2, backend="eager", fullgraph=True)
    assert compiled(x).shape == (3, 2) and calls == [Tensor]


def test_writes_and_numbers():
    @torch_compile_guard(mutates_args=["x"], gen_fake=lambda *a, **k: None)
    def guard_test_filled(x: Tensor, value: float) -> None:
        x.fill_(value)

    @torch_compile_guard()
    def guard_test_number(size: int) -> int:
        return size + 1

    x = torch.zeros(2)
    torch.compile(guard_test_filled, backend="eager", fullgraph=True)(x, 3.0)
    assert x.tolist() == [3, 3] and guard_test_number(4) == 5


def test_the_first_function_of_a_name_stays():
    made = []
    for factor in (2, 3):
        def guard_test_again(x: Tensor, factor: int = factor) -> Tensor:
            return x * factor

        made.append(torch_compile_guard()(guard_test_again))
    assert [one(torch.ones(1)).item() for one in made] == [2, 2]


def test_annotations_without_a_type_of_torch():
    def guard_test_unknown(x: Tensor, options: dict) -> Tensor:
        return x

    with pytest.raises(ValueError, match="options"):
        torch_compile_guard()(guard_test_unknown)


def test_versions(monkeypatch):
    for version, wanted, is_newer in (("2.13.0+cpu", "2.8.0", True), ("2.7.1", "2.8.0", False), ("2.8", "2.8", True),
                                      ("2.10.0a0+git1", "2.9.1", True)):
        monkeypatch.setattr(torch_guard.torch, "__version__", version)
        assert aiter.is_torch_equal_or_newer(wanted) == is_newer
