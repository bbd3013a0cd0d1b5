# SPDX-License-Identifier: MIT
"""Toy operators and fake compiled modules for the tests of dispatch. They need no compiler and no GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from aiter_like import check, paths
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op

HARDWARE = Target("hip", "gfx942", 304, 64)
SIMULATED = Target("hip", "gfx942", 304, 64, simulated=True)
HOST = Target("cpu", "cpu", 0, 1)

FIELDS = ("rows", "hidden", "dtype")

_numbers = itertools.count()


def scale_ref(out: Tensor, x: Tensor, factor: float, flag: int = 0) -> None:
    """out = factor · x."""
    out.copy_(x * factor)


def scale_check(out: Tensor, x: Tensor, factor: float, flag: int = 0) -> object:
    check.tensor("scale", "x", x, rank=2, dtypes=(torch.float32, torch.bfloat16))
    check.tensor("scale", "out", out, dtypes=(x.dtype,), shape=x.shape, device=x.device)
    check.real("scale", "factor", factor)
    check.integer("scale", "flag", flag)
    return SKIP if x.numel() == 0 else None


def scale_key(out: Tensor, x: Tensor, factor: float, flag: int = 0) -> dict[str, int | str]:
    return {"rows": x.shape[0], "hidden": x.shape[1], "dtype": str(x.dtype).removeprefix("torch.")}


class FakeJit:
    """What `compile_ops` returns, as far as dispatch looks at it; runs `function`, or raises `error` in bind."""

    source = paths.csrc() / "norm/rms_norm.hip"

    def __init__(self, function: Callable = scale_ref, error: Exception | None = None,
                 instance: Callable | None = None):
        self.function, self.error, self.instance = function, error, instance
        self.binds: list[dict] = []
        self.calls = 0

    def kernel_name(self, args: tuple, **params: object) -> str:
        return f"scale[{self.instance(*args, **params)}]" if self.instance else "scale"

    def module_key(self, target: Target, args: tuple, **params: object) -> str:
        return f"key-{self.kernel_name(args, **params)}"

    def bind(self, target: Target, args: tuple, **params: object) -> Callable:
        if self.error is not None:
            raise self.error
        self.binds.append(params)

        def call(*args: object) -> None:
            self.calls += 1
            self.function(*args)

        return call


def self_check_case(device: torch.device) -> tuple:
    x = torch.arange(12, dtype=torch.float32, device=device).reshape(3, 4)
    return torch.empty_like(x), x, 2.0, 0


def make_op(*backends: Backend, **options: object) -> Op:
    """A toy operator of a new name: `backends`, then torch."""
    settings = {"check": scale_check, "tune_key": scale_key, "tune_fields": FIELDS, "self_check": self_check_case}
    torch_backend = Backend("torch", scale_ref, differentiable=True)
    return Op(f"toy_{next(_numbers)}", reference=scale_ref, backends=(*backends, torch_backend), **(settings | options))


def run(op, x=None, factor=3.0, flag=0, **options):
    """What an operator made by `make_op` writes for `x`."""
    x = torch.randn(2, 4) if x is None else x
    out = torch.empty_like(x)
    op(out, x, factor, flag, **options)
    return out


def public(op):
    """A public function around a toy operator."""

    def scale(x, factor=3.0, flag=0, *, out=None, backend=None):
        out = torch.empty_like(x) if out is None else out
        op(out, x, factor, flag, backend=backend)
        return out

    return scale
