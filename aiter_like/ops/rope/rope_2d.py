# SPDX-License-Identifier: MIT
"""Rotary position embedding of image patches: rope_2d. Kernels: csrc/rope/rope_2d.hip, ops/rope/triton/rope_2d.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, tune_shapes
from aiter_like.ops.rope import parts, signatures

__all__ = ["rope_2d_bwd", "rope_2d_bwd_inplace", "rope_2d_fwd", "rope_2d_fwd_inplace"]


class Rope2dCall(NamedTuple):
    """One call of rope_2d: patches [b, img_height · img_width, heads, head_dim], row by row.

    Attributes:
        cos_h: [1, ≥ img_height, 1, width]: the patch's row turns the first half of a head.
        cos_w: [1, ≥ img_width, 1, width]: the patch's column turns the second half.
        rotate_style: 0 pairs elements i and i + rotary_dim / 2 of a half, 1 elements 2i and 2i + 1.
        reuse_freqs_front_part: a row of a table has a value per pair, not one per rotated element.
        nope_first: the rotated part is the last of each half.
        is_backward: multiply by the transposed matrix.
    """

    out: Annotated[Tensor, "b patches heads head_dim", "input"]
    input: Annotated[Tensor, "b patches heads head_dim", elements.FLOATS]
    cos_h: Annotated[Tensor, "*cos_h", elements.FLOATS]
    sin_h: Annotated[Tensor, "*sin_h", "cos_h"]
    cos_w: Annotated[Tensor, "*cos_w", "cos_h"]
    sin_w: Annotated[Tensor, "*sin_w", "cos_h"]
    img_height: int
    img_width: int
    rotate_style: int = 0
    reuse_freqs_front_part: bool = True
    nope_first: bool = False
    is_backward: bool = False


def rope_2d_ref(call: Rope2dCall) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), differentiable; writes `out`."""
    wide = torch.promote_types(call.input.dtype, torch.float32)
    patches = torch.arange(call.img_height * call.img_width, device=call.input.device)
    first, second = call.input.to(wide).chunk(2, -1)
    halves = []
    for x, cos, sin, rows in ((first, call.cos_h, call.sin_h, patches // call.img_width),
                              (second, call.cos_w, call.sin_w, patches % call.img_width)):
        angles = [table.flatten(0, -2).to(wide)[rows, None] for table in (cos, sin)]  # [patches, 1, width]
        halves.append(parts.rotated(x, *angles, call.rotate_style, call.reuse_freqs_front_part, call.nope_first,
                                    call.is_backward))
    call.out.copy_(torch.cat(halves, -1))


def _instance(call: Rope2dCall, *, heads: int | None = None, share: int | None = None) -> Instance:
    return parts.instance_of(call.input.dtype, call.cos_h.dtype, heads=heads, share=share)


@compile_ops("rope/rope_2d.hip", gen_func=_instance)
def _rope_2d_hip(call: Rope2dCall) -> None: ...


def _check(call: Rope2dCall) -> object:
    input = call.input
    check.integer("rope_2d", "img_height", call.img_height, low=0)
    check.integer("rope_2d", "img_width", call.img_width, low=0)
    check.tensor("rope_2d", "input", input, shape=(None, call.img_height * call.img_width, None, None))
    if input.shape[-1] % 2:
        raise ValueError(f"rope_2d: input must have an even head dimension, got shape {tuple(input.shape)}")
    check.choice("rope_2d", "rotate_style", call.rotate_style, (0, 1))
    for name, cos, sin, count in (("cos_h", call.cos_h, call.sin_h, call.img_height),
                                  ("cos_w", call.cos_w, call.sin_w, call.img_width)):
        parts.check_table("rope_2d", name, cos, sin, input.shape[-1] // 2, count, call.reuse_freqs_front_part)
    if call.cos_w.shape[-1] != call.cos_h.shape[-1]:
        raise ValueError(f"rope_2d: cos_w must have rows of {call.cos_h.shape[-1]} like cos_h, got "
                         f"{call.cos_w.shape[-1]}")
    return SKIP if input.numel() == 0 else None


class Rope2dKey(NamedTuple):
    """The fields that a tuned row of rope_2d is chosen by."""

    patches: int
    heads: int
    head_dim: int
    rotary_dim: int
    dtype: str
    table_dtype: str
    rotate_style: int

    @classmethod
    def of(cls, call: Rope2dCall) -> Rope2dKey:
        images, patches, heads, head_dim = call.input.shape
        rotary_dim = 2 * call.cos_h.shape[-1] * (2 if call.reuse_freqs_front_part else 1)
        return cls(images * patches, heads, head_dim, rotary_dim, dtypes.name(call.input.dtype),
                   dtypes.name(call.cos_h.dtype), call.rotate_style)

    def make(self, device: torch.device, seed: int, *, images: int = 1, nope_first: bool = False) -> Rope2dCall:
        """Images as near to a square as their number of patches allows."""
        random, patches = tune_shapes.normal(device, seed, self.dtype), self.patches // images
        height = next(size for size in range(math.isqrt(patches), 0, -1) if patches % size == 0)
        x = random(images, patches, self.heads, self.head_dim)
        tables = [random(1, size, 1, self.rotary_dim // 4).to(dtypes.DTYPES[self.table_dtype])
                  for size in (height, height, patches // height, patches // height)]
        return Rope2dCall(torch.empty_like(x), x, *tables, height, patches // height, self.rotate_style,
                          nope_first=nope_first)


_rope_2d = Op(
    "rope_2d", call=Rope2dCall, reference=rope_2d_ref, check=_check, key=Rope2dKey, round_field="patches",
    in_place={"out": ("input",)},
    cases={"halves": (Rope2dKey(24, 3, 64, 64, "bf16", "fp32", 0), {"images": 2}),
           "neighbours of a part": (Rope2dKey(24, 3, 64, 32, "bf16", "bf16", 1), {"images": 2, "nope_first": True})},
    backends=(Backend("hip", _rope_2d_hip, refusal=parts.kernel_refusal, space=parts.hip_space),
              Backend("triton", "ops.rope.triton.rope_2d:rope_2d", refusal=parts.kernel_refusal,
                      space=parts.triton_space),
              Backend("torch", rope_2d_ref, differentiable=True)))


def _runner(name: str, tensors: Sequence[str], _: Sequence[str], is_backward: bool, is_in_place: bool) -> Callable:
    def run(args: Sequence[Any], backend: str | None) -> Tensor:
        parts.has_rank(name, tensors[0], args[0], 4)
        out = args[0] if is_in_place else torch.empty_like(args[0], memory_format=torch.contiguous_format)
        _rope_2d.run(out, *args, is_backward=is_backward, backend=backend)
        return out

    return run


rope_2d_fwd, rope_2d_fwd_inplace, rope_2d_bwd, rope_2d_bwd_inplace = signatures.four(
    _runner, "rope_2d", ("cos_h", "sin_h", "cos_w", "sin_w", "img_height", "img_width"),
    "of image patches [b, img_height · img_width, heads, head_dim]: the first half\nof a head turns by the patch's "
    "row, the second by its column", transposes=False)
