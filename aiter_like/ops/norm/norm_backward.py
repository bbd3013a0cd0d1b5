# SPDX-License-Identifier: MIT
"""Derivatives of rms_norm and layer_norm, whose files import this one. Kernel: ops/norm/triton/norm_backward.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import elements, rows, tune_shapes

__all__ = ["layer_norm_backward", "rms_norm_backward"]

_OP = "norm_backward"
_LONGEST_BLOCK = 16384  # elements of a row that a Triton program keeps


class NormBackwardCall(NamedTuple):
    """One call of norm_backward. Rows are evenly spaced.

    Attributes:
        dweight: fp32 [parts, hidden]; None: not wanted.
        dbias: as `dweight`.
        dout: shape and dtype of `x`.
        weight: None: 1.
        has_mean: the norm subtracts the mean, as LayerNorm does.
        parts: the rows are dealt out in turn to so many rows of `dweight` and `dbias`, whose sums are the derivatives.
    """

    dx: Annotated[Tensor, "*rows hidden", "x"]
    dweight: Tensor | None
    dbias: Tensor | None
    dout: Tensor
    x: Annotated[Tensor, "*rows hidden", elements.FLOATS]
    weight: Annotated[Tensor | None, "hidden", ("x", torch.float32)]
    epsilon: float
    has_mean: bool
    parts: int


def norm_backward_ref(call: NormBackwardCall) -> None:
    """The formulas in torch, in fp32; writes `dx`, `dweight` and `dbias`."""
    values, slope = call.x.float(), call.dout.float()
    if call.has_mean:
        values = values - values.mean(-1, keepdim=True)
    scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + call.epsilon)
    normed = values * scale
    for part, terms in ((call.dweight, slope * normed), (call.dbias, slope)):
        if part is not None:
            rows_of = terms.reshape(-1, call.x.shape[-1])
            whole = torch.nn.functional.pad(rows_of, (0, 0, 0, -rows_of.shape[0] % call.parts))
            part.copy_(whole.unflatten(0, (-1, call.parts)).sum(0))
    if call.weight is not None:
        slope = slope * call.weight.float()
    result = slope - normed * (slope * normed).mean(-1, keepdim=True)
    call.dx.copy_((result - slope.mean(-1, keepdim=True) if call.has_mean else result) * scale)


def _check(call: NormBackwardCall) -> object:
    x = call.x
    check.tensor(_OP, "dout", call.dout, dtypes=(x.dtype,), shape=x.shape, device=x.device)
    check.integer(_OP, "parts", call.parts, low=1)
    for name, part in (("dweight", call.dweight), ("dbias", call.dbias)):
        if part is not None:
            check.tensor(_OP, name, part, dtypes=(torch.float32,), shape=(call.parts, x.shape[-1]), device=x.device)
            if not part.is_contiguous():
                raise ValueError(f"{_OP}: {name} must be contiguous, got strides {part.stride()}")
    check.real(_OP, "epsilon", call.epsilon, low=0.0)
    return SKIP if x.numel() == 0 else None


def _triton_refusal(target: Target, call: NormBackwardCall) -> str | None:
    return rows.refusal(x=call.x, dout=call.dout, dx=call.dx)


class NormBackwardKey(NamedTuple):
    """The fields that a tuned row of norm_backward is chosen by."""

    rows: int
    hidden: int
    dtype: str
    has_mean: bool

    @classmethod
    def of(cls, call: NormBackwardCall) -> NormBackwardKey:
        return cls(*tune_shapes.row_sizes(call.x), call.has_mean)

    def make(self, device: torch.device, seed: int, parts: int | None = None) -> NormBackwardCall:
        """All derivatives, those of a bias where there is a mean."""
        random = tune_shapes.normal(device, seed, self.dtype)
        x, dout = (random(self.rows, self.hidden) for _ in range(2))
        parts = _parts(x) if parts is None else parts
        dweight, dbias = torch.zeros(2, parts, self.hidden, device=device)
        return NormBackwardCall(torch.empty_like(x), dweight, dbias if self.has_mean else None, dout, x=x,
                                weight=random(self.hidden), epsilon=1e-6, has_mean=bool(self.has_mean), parts=parts)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[NormBackwardKey]:
        """A layer's norms, as RMSNorm and as LayerNorm."""
        return (cls(tokens, model.hidden_size, model.dtype, has_mean) for has_mean in (0, 1))


def _cases(device: torch.device) -> dict[str, NormBackwardCall]:
    """The derivatives of RMSNorm and of LayerNorm, with fewer parts than rows; and dx alone."""
    rms, layer = (NormBackwardKey(5, 256, "bf16", has_mean).make(device, 0, parts=2) for has_mean in (False, True))
    return {"rms": rms, "layer": layer, "dx alone": rms._replace(dweight=None, weight=None)}


_norm_backward = Op(
    _OP, call=NormBackwardCall, reference=norm_backward_ref, check=_check, key=NormBackwardKey, round_field="rows",
    writes=("dx", "dweight", "dbias"), cases=_cases,
    backends=(Backend("triton", "ops.norm.triton.norm_backward:norm_backward",
                      refusal=_triton_refusal, space=tune_shapes.waves_of("dx", _LONGEST_BLOCK)),
              Backend("torch", norm_backward_ref)))


class Norm(torch.autograd.Function):
    """A norm with its derivative: `Norm.apply(forward, has_mean, epsilon, input, weight, bias)`.

    `forward(input, weight, bias)` computes the result, by any backend. The derivative treats roundings inside the norm
    as if there were none, and has no derivative of its own.
    """

    @staticmethod
    def forward(forward: Callable[..., Tensor], has_mean: bool, epsilon: float, input: Tensor, weight: Tensor | None,
                bias: Tensor | None) -> Tensor:
        return forward(input, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, ctx.has_mean, ctx.epsilon, input, weight, bias = inputs
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(input, weight)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():  # create_graph
            raise UnsupportedError("the derivative of a norm has no derivative: take backend='torch'", _OP)
        x, weight = ctx.saved_tensors
        for_weight, for_bias = ctx.needs_input_grad[4:6]
        dx, dweight, dbias = _derivatives(dout, x, weight, ctx.epsilon, has_mean=ctx.has_mean, for_weight=for_weight,
                                          for_bias=for_bias)
        return (None, None, None, dx if ctx.needs_input_grad[3] else None,
                None if dweight is None else dweight.to(weight.dtype),
                None if dbias is None else dbias.to(ctx.bias_dtype))


def _derivatives(dout: Tensor, x: Tensor, weight: Tensor | None, epsilon: float, *, has_mean: bool, for_weight: bool,
                 for_bias: bool, backend: str | None = None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dx, and in fp32 dweight and dbias where they are wanted: the workgroups' parts are added up at the end."""
    hidden = x.shape[-1]
    parts = _parts(x)
    dx = torch.empty_like(x, memory_format=torch.contiguous_format)
    new = torch.empty if x.numel() else torch.zeros  # without rows nothing is launched
    wanted = new(for_weight + for_bias, parts, hidden, dtype=torch.float32, device=x.device)
    dweight, dbias = (wanted[0] if for_weight else None), (wanted[-1] if for_bias else None)
    if not rows.is_even(dout) or hidden > 1 and dout.stride(-1) != 1:  # a sum's derivative is one number, expanded
        dout = dout.clone(memory_format=torch.contiguous_format)
    _norm_backward.run(dx, dweight, dbias, dout, x=x, weight=weight, epsilon=epsilon, has_mean=has_mean, parts=parts,
                       backend=backend)
    sums = wanted.sum(1) if for_weight or for_bias else wanted
    return dx, sums[0] if for_weight else None, sums[-1] if for_bias else None


def _parts(x: Tensor) -> int:
    """Workgroups that fill the device, each with rows of its own."""
    return max(min(x.numel() // max(x.shape[-1], 1), 2 * target_of(x.device).cu_num), 1)


def _check_rows(dout: Tensor, input: Tensor) -> None:
    for name, tensor in (("dout", dout), ("input", input)):
        check.tensor(_OP, name, tensor, dtypes=elements.FLOATS, last_contiguous=False)
        if tensor.ndim == 0:
            raise ValueError(f"{_OP}: {name} must have at least 1 dimension, got shape ()")


def rms_norm_backward(dout: Tensor, input: Tensor, weight: Tensor, epsilon: float, *,
                      backend: str | None = None) -> tuple[Tensor, Tensor]:
    """The derivative of `rms_norm`.

    With r = 1 / sqrt(mean(input²) + epsilon), n = input · r, g = dout · weight: `dinput = r · (g - n · mean(g · n))`,
    `dweight = Σ dout · n` over the rows.

    Args:
        dout: [..., hidden], dtype of `input`: the derivative with respect to the result.
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        weight: [hidden], dtype of `input` or fp32, contiguous.
        epsilon: as in the call of the norm.

    Returns: `dinput`, shape and dtype of `input`, and `dweight` [hidden] fp32.

    Notes:
        In fp32; deterministic on one device: the order of additions depends on the number of CUs.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
    """
    _check_rows(dout, input)
    return _derivatives(dout, input, weight, epsilon, has_mean=False, for_weight=True, for_bias=False,
                        backend=backend)[:2]


def layer_norm_backward(dout: Tensor, input: Tensor, weight: Tensor | None, epsilon: float, *,
                        backend: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The derivative of `layer_norm`. Like `rms_norm_backward` otherwise.

    With r = 1 / sqrt(var(input) + epsilon), n = (input - mean(input)) · r, g = dout · weight:
    `dinput = r · (g - mean(g) - n · mean(g · n))`, `dweight = Σ dout · n`, `dbias = Σ dout` over the rows.

    Args:
        weight: [hidden], dtype of `input` or fp32, contiguous; None: 1.

    Returns: `dinput`, shape and dtype of `input`; `dweight` and `dbias`, [hidden] fp32.

    Source: Ba, Kiros and Hinton, Layer Normalization (2016).
    """
    _check_rows(dout, input)
    return _derivatives(dout, input, weight, epsilon, has_mean=True, for_weight=True, for_bias=True, backend=backend)
