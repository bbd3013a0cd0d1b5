# SPDX-License-Identifier: MIT
"""Rotary position embedding whose every product is rounded, as a program of 16-bit tensors does.

Kernels: csrc/rope/rope_rounded.hip, ops/rope/triton/rope_rounded.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements
from aiter_like.ops.rope import parts

__all__ = ["rope_rounded"]

_OP = "rope_rounded"
_DTYPES = (torch.bfloat16, torch.float16)


class RopeRoundedCall(NamedTuple):
    """One call of rope_rounded: its arguments in the order of the function that rope_rounded.hip exports.

    Attributes:
        out, out_y: written; shape and dtype of `x` and of `y`.
        x, y: [tokens, heads, head_dim], each with a number of heads of its own.
        cos, sin: tables of rows, [rows, 1, 1, width] or [rows, width], dtype of `x`.
        positions: [tokens], each token's row of the tables.
        offsets: [tokens], added to the row.
        rotate_style, reuse_freqs_front_part, nope_first, is_backward: as of RopeCall.
    """

    out: Tensor
    out_y: Tensor
    x: Tensor
    y: Tensor
    cos: Tensor
    sin: Tensor
    positions: Tensor
    offsets: Tensor | None = None
    rotate_style: int = 0
    reuse_freqs_front_part: bool = True
    nope_first: bool = False
    is_backward: bool = False


def rope_rounded_ref(call: RopeRoundedCall) -> None:
    """The formula in torch, whose products of 16-bit tensors are rounded; writes `out` and `out_y`."""
    rows = call.positions if call.offsets is None else call.positions + call.offsets
    cos, sin = (parts.table_rows(table, rows, table.dtype)[:, None] for table in (call.cos, call.sin))
    for out, x in ((call.out, call.x), (call.out_y, call.y)):
        out.copy_(parts.rotated(x, cos, sin, call.rotate_style, call.reuse_freqs_front_part, call.nope_first,
                                call.is_backward))


def _instance(call: RopeRoundedCall, *, heads: int | None = None, share: int | None = None) -> Instance:
    return parts.instance_of(call.x.dtype, call.cos.dtype, heads=heads, share=share)


@compile_ops("rope/rope_rounded.hip", gen_func=_instance)
def _rope_rounded_hip(call: RopeRoundedCall) -> None: ...


def _check(call: RopeRoundedCall) -> object:
    x, y = call.x, call.y
    check.tensor(_OP, "x", x, dtypes=_DTYPES, rank=3)
    check.tensor(_OP, "y", y, dtypes=(x.dtype,), shape=(x.shape[0], None, x.shape[2]), device=x.device)
    for name, out, like in (("out", call.out, x), ("out_y", call.out_y, y)):
        check.tensor(_OP, name, out, dtypes=(x.dtype,), shape=like.shape, device=x.device)
    parts.check_flags(_OP, call.rotate_style, call.reuse_freqs_front_part, call.nope_first)
    check.flag(_OP, "is_backward", call.is_backward)
    parts.check_table(_OP, "cos", call.cos, x, x.shape[2], min(x.numel() + y.numel(), 1), call.reuse_freqs_front_part)
    check.tensor(_OP, "cos", call.cos, dtypes=(x.dtype,))
    check.tensor(_OP, "sin", call.sin, dtypes=(x.dtype,), shape=call.cos.shape, device=x.device)
    for name, rows in (("positions", call.positions), ("offsets", call.offsets)):
        if name == "positions" or rows is not None:
            check.tensor(_OP, name, rows, dtypes=elements.INTEGERS, shape=(x.shape[0],), device=x.device,
                         last_contiguous=False)
    return SKIP if x.numel() + y.numel() == 0 else None


def _tune_key(call: RopeRoundedCall) -> dict[str, int | str]:
    tokens, heads, head_dim = call.x.shape
    return {"tokens": tokens, "heads": heads, "kv_heads": call.y.shape[1], "head_dim": head_dim,
            "rotary_dim": call.cos.shape[-1] * (2 if call.reuse_freqs_front_part else 1),
            "dtype": dtypes.name(call.x.dtype), "rotate_style": call.rotate_style}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> RopeRoundedCall:
    generator = torch.Generator(device).manual_seed(seed)
    random = functools.partial(torch.randn, generator=generator, device=device, dtype=dtypes.DTYPES[key["dtype"]])
    x, y = (random(key["tokens"], key[heads], key["head_dim"]) for heads in ("heads", "kv_heads"))
    cos, sin = random(2, key["tokens"], key["rotary_dim"] // 2)
    return RopeRoundedCall(torch.empty_like(x), torch.empty_like(y), x, y, cos, sin,
                           torch.arange(key["tokens"], device=device), rotate_style=key["rotate_style"])


def _cases(device: torch.device) -> dict[str, RopeRoundedCall]:
    """Both styles and both dtypes, whole heads and parts of them."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(9, heads, 64, generator=generator).to(device, torch.bfloat16) for heads in (5, 2))
    cos, sin = torch.randn(2, 5, 32, generator=generator).to(device, torch.bfloat16)
    rows = torch.arange(9, device=device)
    whole = RopeRoundedCall(torch.empty_like(x), torch.empty_like(y), x, y, cos, sin, rows % 5)
    x, y, cos, sin = (tensor.half() for tensor in (x, y, cos, sin))
    return {"halves": whole, "neighbours of a part": RopeRoundedCall(
        torch.empty_like(x), torch.empty_like(y), x, y, cos[:, :24], sin[:, :24], rows % 2, rows % 3, 1,
        nope_first=True, is_backward=True)}


_rope_rounded = Op(
    _OP, call=RopeRoundedCall, reference=rope_rounded_ref, check=_check, tune_key=_tune_key,
    tune_fields=("tokens", "heads", "kv_heads", "head_dim", "rotary_dim", "dtype", "rotate_style"),
    round_field="tokens", writes=("out", "out_y"), cases=_cases, tuning=Tuning(_tune_case),
    in_place={"out": ("x",), "out_y": ("y",)},
    backends=(Backend("hip", _rope_rounded_hip, refusal=parts.kernel_refusal, space=parts.hip_space),
              Backend("triton", "ops.rope.triton.rope_rounded:rope_rounded", refusal=parts.kernel_refusal,
                      space=parts.triton_space),
              Backend("torch", rope_rounded_ref)))


def rope_rounded(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, offsets: Tensor | None = None,
                 rotate_style: int = 0, reuse_freqs_front_part: bool = True, nope_first: bool = False,
                 is_backward: bool = False, *, out: tuple[Tensor, Tensor] | None = None,
                 backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of two tensors of tokens, with every product rounded to their dtype.

    `first' = R(R(first · cos) - R(second · sin)), second' = R(R(second · cos) + R(first · sin))`, where R rounds to the
    dtype of `x`: bit for bit what a program of 16-bit tensors in torch gives, with up to twice the error of
    `rope_cached_positions_2c_fwd`, which rounds once.

    Args:
        x, y: [tokens, heads, head_dim] bf16|fp16 of one dtype, heads of their own; last dimension contiguous.
        cos, sin: tables [rows, width], or with dimensions of 1 between, dtype of `x`.
        positions: [tokens] int32|int64, each token's row of the tables; heads of tokens whose row the tables do not
            have become NaN.
        offsets: [tokens] int32|int64, added to the positions.
        rotate_style: 0 pairs elements i and i + rotary_dim / 2, 1 elements 2i and 2i + 1.
        reuse_freqs_front_part: a row of the tables has a value per pair, not one per rotated element.
        nope_first: the rotated part is the head's last, not its first.
        is_backward: `x` and `y` are gradients of results; the results are those of what was turned.
        out: tensors to write, which may be `x` and `y`; default: new contiguous ones.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        `out`.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit, or positions on the CPU are no rows of the tables.
        UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

    Notes:
        For results that must have the bits of such a program; elsewhere one rounding is better. Heads of at most 512
        elements in the kernels; can be captured in a graph.

    Source: Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021).
    """
    parts.check_positions(_OP, "positions", positions, offsets, cos)
    if out is None:
        for name, tensor in (("x", x), ("y", y)):
            parts.has_rank(_OP, name, tensor, 3)
        out = tuple(torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (x, y))
    elif not isinstance(out, tuple | list) or len(out) != 2:
        raise TypeError(f"{_OP}: out must be two tensors, got {type(out).__name__}")
    _rope_rounded.run(*out, x, y, cos, sin, positions, offsets, rotate_style, reuse_freqs_front_part, nope_first,
                      is_backward, backend=backend)
    return tuple(out)


torch_ops.register(_rope_rounded, rope_rounded)
