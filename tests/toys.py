# SPDX-License-Identifier: MIT
"""Toy operators and fake compiled modules for the tests of dispatch. They need no compiler and no GPU."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target
from aiter_like.dispatch import OPS, SKIP, Backend, Op

HARDWARE = Target("hip", "gfx942", 304, 64)
SIMULATED = Target("hip", "gfx942", 304, 64, simulated=True)
HOST = Target("cpu", "cpu", 0, 1)


_numbers = itertools.count()


class ScaleCall(NamedTuple):
    """A call of a toy operator."""

    out: Tensor
    x: Tensor
    factor: float
    flag: int = 0


def scale_ref(out: Tensor, x: Tensor, factor: float, flag: int = 0) -> None:
    """out = factor · x."""
    out.copy_(x * factor)


def scale_check(out: Tensor, x: Tensor, factor: float, flag: int = 0) -> object:
    check.tensor("scale", "x", x, rank=2, dtypes=(torch.float32, torch.bfloat16))
    check.tensor("scale", "out", out, dtypes=(x.dtype,), shape=x.shape, device=x.device)
    check.real("scale", "factor", factor)
    check.integer("scale", "flag", flag)
    return SKIP if x.numel() == 0 else None


class ScaleKey(NamedTuple):
    """What a call of a toy is tuned by."""

    rows: int
    hidden: int
    dtype: str

    @classmethod
    def of(cls, call: ScaleCall) -> ScaleKey:
        return cls(*call.x.shape, str(call.x.dtype).removeprefix("torch."))

    def make(self, device: torch.device, seed: int) -> ScaleCall:
        x = torch.randn(self.rows, self.hidden, generator=torch.Generator(device).manual_seed(seed), device=device)
        x = x.to(getattr(torch, self.dtype))
        return ScaleCall(torch.empty_like(x), x, 2.0)


class FakeJit:
    """What `compile_ops` returns, as far as dispatch looks at it; runs `function`, or raises `error` in bind."""

    def __init__(self, function: Callable = scale_ref, error: Exception | None = None,
                 instance: Callable | None = None):
        self.function, self.error, self.instance = function, error, instance
        self.binds: list[dict] = []
        self.calls = 0

    def text_revision(self, platform: str) -> str:
        return f"{platform:0<8}"

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


def takes_call(function: Callable | None, before: int = 0) -> Callable | None:
    """The tests' functions take fields by position; an operator's take the call object."""
    if function is None:
        return None
    return functools.wraps(function)(lambda *args, **params: function(*args[:before], *args[before], **params))


def make_op(*backends: Backend, **options: object) -> Op:
    """A toy operator of a new name: `backends`, then torch. All functions take the fields of a call."""
    assert not OPS.index, "the fixture `machine` keeps toys away from other tests"
    settings = {"check": scale_check, "key": ScaleKey, "in_place": {"out": ("x",)},
                "cases": lambda device: {"only": self_check_case(device)}} | options
    settings["check"] = takes_call(settings["check"])
    settings["prefers"] = takes_call(settings.get("prefers"), 1)
    found = []
    for backend in (*backends, Backend("torch", scale_ref, differentiable=True)):
        changes = {name: takes_call(getattr(backend, name), 1)
                   for name in ("refusal", "kernels", "space", "cost", "self_check")}
        if callable(backend.function) and not backend.is_jit:
            changes["function"] = takes_call(backend.function)
        found.append(dataclasses.replace(backend, address_refusal=takes_call(backend.address_refusal), **changes))
    return Op(f"toy_{next(_numbers)}", call=ScaleCall, reference=takes_call(scale_ref), backends=found, **settings)


def run(op, x=None, factor=3.0, flag=0, **options):
    """What an operator made by `make_op` writes for `x`."""
    x = torch.randn(2, 4) if x is None else x
    out = torch.empty_like(x)
    op.run(out, x, factor, flag, **options)
    return out


def public(op):
    """A public function around a toy operator."""

    def scale(x, factor=3.0, flag=0, *, out=None, backend=None):
        out = torch.empty_like(x) if out is None else out
        op.run(out, x, factor, flag, backend=backend)
        return out

    return scale
