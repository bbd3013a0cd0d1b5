# SPDX-License-Identifier: MIT
"""Derivatives of rms_norm and layer_norm. Kernel: ops/norm/triton/norm_backward.py. Read by both families."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common import elements, rows, tune_shapes

__all__ = ["layer_norm_backward", "rms_norm_backward"]

_OP = "norm_backward"
_LONGEST_BLOCK = 16384  # elements of a row that a Triton program keeps


def norm_backward_ref(dx: Tensor, dweight: Tensor | None, dbias: Tensor | None, dout: Tensor, x: Tensor,
                      weight: Tensor | None, epsilon: float, has_mean: bool, parts: int) -> None:
    """The formulas in torch, in fp32; writes `dx`, and `dweight` and `dbias` [parts, hidden], to which the rows are
    dealt out in turn and whose sums count.
    """
    values, slope = x.float(), dout.float()
    if has_mean:
        values = values - values.mean(-1, keepdim=True)
    scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + epsilon)
    normed = values * scale
    for part, terms in ((dweight, slope * normed), (dbias, slope)):
        if part is not None:
            rows_of = terms.reshape(-1, x.shape[-1])
            whole = torch.nn.functional.pad(rows_of, (0, 0, 0, -rows_of.shape[0] % parts))
            part.copy_(whole.unflatten(0, (-1, parts)).sum(0))
    if weight is not None:
        slope = slope * weight.float()
    result = slope - normed * (slope * normed).mean(-1, keepdim=True)
    dx.copy_((result - slope.mean(-1, keepdim=True) if has_mean else result) * scale)


def _check(dx: Tensor, dweight: Tensor | None, dbias: Tensor | None, dout: Tensor, x: Tensor, weight: Tensor | None,
           epsilon: float, has_mean: bool, parts: int) -> object:
    check.tensor(_OP, "x", x, dtypes=elements.FLOATS)
    hidden = x.shape[-1]
    for name, tensor in (("dout", dout), ("dx", dx)):
        check.tensor(_OP, name, tensor, dtypes=(x.dtype,), shape=x.shape, device=x.device)
    if weight is not None:
        check.tensor(_OP, "weight", weight, dtypes=tuple(dict.fromkeys((x.dtype, torch.float32))), shape=(hidden,),
                     device=x.device)
    check.integer(_OP, "parts", parts, low=1)
    for name, part in (("dweight", dweight), ("dbias", dbias)):
        if part is not None:
            check.tensor(_OP, name, part, dtypes=(torch.float32,), shape=(parts, hidden), device=x.device)
            if not part.is_contiguous():
                raise ValueError(f"{_OP}: {name} must be contiguous, got strides {part.stride()}")
    check.real(_OP, "epsilon", epsilon, low=0.0)
    check.flag(_OP, "has_mean", has_mean)
    return SKIP if x.numel() == 0 else None


def _triton_refusal(target: Target, dx: Tensor, dweight: Tensor | None, dbias: Tensor | None, dout: Tensor,
                        x: Tensor, *_: object) -> str | None:
    return rows.refusal(x=x, dout=dout, dx=dx)


def _tune_key(dx: Tensor, dweight: Tensor | None, dbias: Tensor | None, dout: Tensor, x: Tensor,
              weight: Tensor | None, epsilon: float, has_mean: bool, parts: int) -> dict[str, int | str]:
    hidden = x.shape[-1]
    return {"rows": x.numel() // hidden, "hidden": hidden, "dtype": dtypes.name(x.dtype), "has_mean": has_mean}


def _triton_space(target: Target, dx: Tensor, *_: object) -> list[dict[str, int]]:
    return tune_shapes.wave_space(target, dx.shape[-1], _LONGEST_BLOCK)


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    """All derivatives, those of a bias where there is a mean."""
    random, has_mean = tune_shapes.normal(device, seed, key["dtype"]), bool(key["has_mean"])
    x, dout = (random(key["rows"], key["hidden"]) for _ in range(2))
    parts = _parts(x)
    dweight, dbias = (torch.zeros(parts, key["hidden"], device=device) if is_there else None
                      for is_there in (True, has_mean))
    return torch.empty_like(x), dweight, dbias, dout, x, random(key["hidden"]), 1e-6, has_mean, parts


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A layer's norms, as RMSNorm and as LayerNorm."""
    for has_mean in (0, 1):
        yield {"rows": tokens, "hidden": model.hidden_size, "dtype": model.dtype, "has_mean": has_mean}


_norm_backward = Op(
    _OP, reference=norm_backward_ref, check=_check, tune_key=_tune_key,
    tune_fields=("rows", "hidden", "dtype", "has_mean"), round_field="rows", writes=("dx", "dweight", "dbias"),
    tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("triton", "ops.norm.triton.norm_backward:norm_backward",
                      refusal=_triton_refusal, space=_triton_space),
              Backend("torch", norm_backward_ref)))


def needs_grad(*tensors: Tensor | None) -> bool:
    """Grad mode is on and one of the tensors requires grad."""
    return torch.is_grad_enabled() and any(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors)


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
        dx, dweight, dbias = _derivatives(dout, x, weight, ctx.epsilon, ctx.has_mean, *ctx.needs_input_grad[4:6], None)
        return (None, None, None, dx if ctx.needs_input_grad[3] else None,
                None if dweight is None else dweight.to(weight.dtype),
                None if dbias is None else dbias.to(ctx.bias_dtype))


def _derivatives(dout: Tensor, x: Tensor, weight: Tensor | None, epsilon: float, has_mean: bool, for_weight: bool,
                 for_bias: bool, backend: str | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dx, and in fp32 dweight and dbias where they are wanted: each workgroup's part is added up at the end."""
    hidden = x.shape[-1]
    parts = _parts(x)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    new = torch.empty if x.numel() else torch.zeros  # without rows nothing is launched
    wanted = new(for_weight + for_bias, parts, hidden, dtype=torch.float32, device=x.device)
    dweight, dbias = (wanted[0] if for_weight else None), (wanted[-1] if for_bias else None)
    if not rows.is_even(dout) or hidden > 1 and dout.stride(-1) != 1:  # as the derivative of a sum, expanded
        dout = dout.contiguous()
    _norm_backward(dx, dweight, dbias, dout, x, weight, epsilon, has_mean, parts, backend=backend)
    sums = wanted.sum(1) if for_weight or for_bias else wanted
    return dx, sums[0] if for_weight else None, sums[-1] if for_bias else None


def _parts(x: Tensor) -> int:
    """Workgroups that fill the device, each with rows of its own."""
    return max(min(x.numel() // max(x.shape[-1], 1), 2 * target_of(x.device).cu_num), 1)


def rms_norm_backward(dout: Tensor, input: Tensor, weight: Tensor, epsilon: float, *,
                      backend: str | None = None) -> tuple[Tensor, Tensor]:
    """The derivative of `rms_norm`.

    With r = 1 / sqrt(mean(input²) + epsilon), n = input · r, g = dout · weight: `dinput = r · (g - n · mean(g · n))`,
    `dweight = Σ dout · n` over the rows.

    Args:
        dout: [..., hidden], dtype of `input`: the derivative with respect to the result.
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        weight: [hidden], dtype of `input` or fp32, contiguous.
        epsilon: as in the call of `rms_norm`.
        backend: "triton" or "torch" instead of the automatic choice.

    Returns:
        `dinput`, shape and dtype of `input`, and `dweight` [hidden] fp32.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or epsilon do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        In fp32; deterministic on one device: the order of additions depends on the number of CUs.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
    """
    for name, tensor in (("dout", dout), ("input", input)):
        check.tensor(_OP, name, tensor, dtypes=elements.FLOATS, last_contiguous=False)
    return _derivatives(dout, input, weight, epsilon, False, True, False, backend)[:2]


def layer_norm_backward(dout: Tensor, input: Tensor, weight: Tensor | None, epsilon: float, *,
                        backend: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The derivative of `layer_norm`.

    With r = 1 / sqrt(var(input) + epsilon), n = (input - mean(input)) · r, g = dout · weight:
    `dinput = r · (g - mean(g) - n · mean(g · n))`, `dweight = Σ dout · n`, `dbias = Σ dout` over the rows.

    Args:
        dout: [..., hidden], dtype of `input`: the derivative with respect to the result.
        input: [..., hidden] bf16|fp16|fp32, last dimension contiguous, rows evenly spaced.
        weight: [hidden], dtype of `input` or fp32, contiguous; None: 1.
        epsilon: as in the call of `layer_norm`.
        backend: "triton" or "torch" instead of the automatic choice.

    Returns:
        `dinput`, shape and dtype of `input`; `dweight` and `dbias`, [hidden] fp32.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices, layout or epsilon do not fit.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        In fp32; deterministic on one device: the order of additions depends on the number of CUs.

    Source: Ba, Kiros and Hinton, Layer Normalization (2016).
    """
    for name, tensor in (("dout", dout), ("input", input)):
        check.tensor(_OP, name, tensor, dtypes=elements.FLOATS, last_contiguous=False)
    return _derivatives(dout, input, weight, epsilon, True, True, True, backend)
