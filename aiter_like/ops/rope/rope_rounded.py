# SPDX-License-Identifier: MIT
"""Rotary position embedding with every product rounded, as a program of 16-bit tensors does. Kernels: csrc/rope/."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, tune_shapes
from aiter_like.ops.rope import parts

__all__ = ["rope_rounded"]

_OP = "rope_rounded"


class RopeRoundedCall(NamedTuple):
    """One call of rope_rounded. A token turns by row `positions + offsets` of the tables; flags are as of RopeCall."""

    out: Annotated[Tensor, "tokens heads head_dim", "x"]
    out_y: Annotated[Tensor, "tokens heads_y head_dim", "x"]
    x: Annotated[Tensor, "tokens heads head_dim", (torch.bfloat16, torch.float16)]
    y: Annotated[Tensor, "tokens heads_y head_dim", "x"]
    cos: Annotated[Tensor, "*cos", "x"]
    sin: Annotated[Tensor, "*sin", "x"]
    positions: Annotated[Tensor, "tokens", elements.INTEGERS, STRIDED]
    offsets: Annotated[Tensor | None, "tokens", elements.INTEGERS, STRIDED] = None
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
    count = call.x.numel() + call.y.numel()
    check.choice(_OP, "rotate_style", call.rotate_style, (0, 1))
    parts.check_table(_OP, "cos", call.cos, call.sin, call.x.shape[2], min(count, 1), call.reuse_freqs_front_part)
    return SKIP if count == 0 else None


class RopeRoundedKey(NamedTuple):
    """The fields that a tuned row of rope_rounded is chosen by."""

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    dtype: str
    rotate_style: int

    @classmethod
    def of(cls, call: RopeRoundedCall) -> RopeRoundedKey:
        tokens, heads, head_dim = call.x.shape
        rotary_dim = call.cos.shape[-1] * (2 if call.reuse_freqs_front_part else 1)
        return cls(tokens, heads, call.y.shape[1], head_dim, rotary_dim, dtypes.name(call.x.dtype), call.rotate_style)

    def make(self, device: torch.device, seed: int, *, is_backward: bool = False) -> RopeRoundedCall:
        """Backward with offsets, of the last elements of heads."""
        random, rows = tune_shapes.normal(device, seed, self.dtype), torch.arange(self.tokens, device=device)
        x, y = (random(self.tokens, heads, self.head_dim) for heads in (self.heads, self.kv_heads))
        cos, sin = random(2, self.tokens, self.rotary_dim // 2)
        call = RopeRoundedCall(torch.empty_like(x), torch.empty_like(y), x, y, cos, sin, rows,
                               rotate_style=self.rotate_style)
        if is_backward:
            call = call._replace(positions=rows % 4, offsets=rows % 3, nope_first=True, is_backward=True)
        return call


_rope_rounded = Op(
    _OP, call=RopeRoundedCall, reference=rope_rounded_ref, check=_check, key=RopeRoundedKey, round_field="tokens",
    writes=("out", "out_y"), in_place={"out": ("x",), "out_y": ("y",)},
    cases={"halves": RopeRoundedKey(9, 5, 2, 64, 64, "bf16", 0),
           "neighbours of a part": (RopeRoundedKey(9, 5, 2, 64, 48, "fp16", 1), {"is_backward": True})},
    backends=(Backend("hip", _rope_rounded_hip, refusal=parts.kernel_refusal, space=parts.hip_space),
              Backend("triton", "ops.rope.triton.rope_rounded:rope_rounded", refusal=parts.kernel_refusal,
                      space=parts.triton_space),
              Backend("torch", rope_rounded_ref)))


def rope_rounded(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, offsets: Tensor | None = None,
                 rotate_style: int = 0, reuse_freqs_front_part: bool = True, nope_first: bool = False,
                 is_backward: bool = False, *, out: tuple[Tensor, Tensor] | None = None,
                 backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Rotary position embedding of two tensors of tokens, with every product rounded to their dtype:
    `first' = R(R(first · cos) - R(second · sin)), second' = R(R(second · cos) + R(first · sin))`, where R rounds to the
    dtype of `x`: bit for bit what a program of 16-bit tensors in torch gives, with up to twice the error of
    `rope_cached_positions_2c_fwd`, which rounds once.

    Args:
        x, y: [tokens, heads, head_dim] bf16|fp16 of one dtype, heads of their own; last dimension contiguous.
        cos, sin: tables [rows, width], or with dimensions of 1 between, dtype of `x`.
        positions, offsets: [tokens] int32|int64, whose sum is each token's row of the tables; `offsets` may be None.
            Heads of tokens whose row the tables do not have become NaN.
        rotate_style: 0 pairs elements i and i + rotary_dim / 2, 1 elements 2i and 2i + 1.
        reuse_freqs_front_part: a row of the tables has a value per pair, not one per rotated element.
        nope_first: the rotated part is the head's last, not its first.
        is_backward: `x` and `y` are gradients of results; the results are those of what was turned.
        out: tensors to write, which may be `x` and `y`; default: new contiguous ones.

    Raises:
        ValueError: positions on the CPU are no rows of the tables.

    Notes:
        For results that must have the bits of such a program; elsewhere one rounding is better. Heads of at most 512
        elements in the kernels.

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
