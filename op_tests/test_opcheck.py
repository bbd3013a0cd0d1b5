# SPDX-License-Identifier: MIT
"""Every operator as torch.library has it: what its schema says is written, its fake function, and compiled graphs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from public_calls import call_of
from torch.testing._internal.optests.generate_tests import OpCheckError

from aiter_like.dispatch import OPS, torch_ops
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import elements
from aiter_like.ops.index import OPERATORS


def has_fp8(args: Any) -> bool:
    return any(one.dtype in elements.FP8 for one in torch_ops.each_tensor(args))


def check(operator: Any, args: tuple, backends: Iterable[str]) -> None:
    """What a call writes is compared for each backend, unless there is fp8, which opcheck cannot; the rest, once."""
    torch.library.opcheck(operator, args, test_utils=("test_autograd_registration", "test_faketensor",
                                                      "test_aot_dispatch_dynamic"))
    for backend in () if has_fp8(args) else backends:
        try:
            torch.library.opcheck(operator, args, {"backend": backend}, test_utils="test_schema")
        except OpCheckError as error:
            if not isinstance(error.__cause__, UnsupportedError):
                raise


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_what_is_written(device, name):
    """Of the operator's first case, if there is one without fp8."""
    op = OPS[name]
    check(getattr(torch.ops.aiter_like, f"{name}_out"), tuple(min(op.cases(device).values(), key=has_fp8)),
          [each.name for each in op.backends])


@pytest.mark.parametrize("name", [name for name in sorted(OPERATORS) if hasattr(torch.ops.aiter_like, name)])
def test_what_is_returned(device, name):
    operator = getattr(torch.ops.aiter_like, name)
    names = {argument.name for argument in operator.default._schema.arguments}
    function = next(one for one in OPS[name].public if {*inspect.signature(one).parameters} - {"out"} == names)
    check(operator, tuple(arg.to(device) if isinstance(arg, torch.Tensor) else arg
                          for arg in call_of(function.__name__)[1]), ("torch",))
