# SPDX-License-Identifier: MIT
"""Rotary position embedding of image patches: rope_2d. Kernels: csrc/rope/rope_2d.hip, ops/rope/triton/rope.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import tune_shapes
from aiter_like.ops.rope.rope import (
    DTYPES,
    check_flags,
    check_table,
    has_rank,
    public,
    rotated,
    space,
    triton_space,
    unsupported,
    variant,
)

__all__ = ["rope_2d_bwd", "rope_2d_bwd_inplace", "rope_2d_fwd", "rope_2d_fwd_inplace"]


def rope_2d_ref(out: Tensor, input: Tensor, cos_h: Tensor, sin_h: Tensor, cos_w: Tensor, sin_w: Tensor,
                img_height: int, img_width: int, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
                is_backward: bool) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), differentiable; writes `out`."""
    wide = torch.promote_types(input.dtype, torch.float32)
    patches = torch.arange(img_height * img_width, device=input.device)
    halves = []
    for half, cos, sin, rows in ((0, cos_h, sin_h, patches // img_width), (1, cos_w, sin_w, patches % img_width)):
        angles = [table.flatten(0, -2).to(wide)[rows, None] for table in (cos, sin)]  # [patches, 1, width]
        x = input.to(wide).chunk(2, -1)[half]
        halves.append(rotated(x, *angles, rotate_style, reuse_freqs_front_part, nope_first, is_backward))
    out.copy_(torch.cat(halves, -1))


def _instance(out: Tensor, input: Tensor, cos_h: Tensor, *_: object, heads: int | None = None,
              share: int | None = None) -> Instance:
    return variant(input.dtype, cos_h.dtype, False, heads, share)


@compile_ops("rope/rope_2d.hip", gen_func=_instance, prebuild=[variant(torch.bfloat16, torch.bfloat16, False, None)])
def _rope_2d_hip(out: Tensor, input: Tensor, cos_h: Tensor, sin_h: Tensor, cos_w: Tensor, sin_w: Tensor,
                 img_height: int, img_width: int, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
                 is_backward: bool) -> None: ...


def _check(out: Tensor, input: Tensor, cos_h: Tensor, sin_h: Tensor, cos_w: Tensor, sin_w: Tensor,
              img_height: int, img_width: int, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool,
              is_backward: bool) -> object:
    check.integer("rope_2d", "img_height", img_height, low=0)
    check.integer("rope_2d", "img_width", img_width, low=0)
    check.tensor("rope_2d", "input", input, dtypes=DTYPES, shape=(None, img_height * img_width, None, None))
    if input.shape[-1] % 2:
        raise ValueError(f"rope_2d: input must have an even head dimension, got shape {tuple(input.shape)}")
    check.tensor("rope_2d", "out", out, dtypes=(input.dtype,), shape=input.shape, device=input.device)
    check_flags("rope_2d", rotate_style, reuse_freqs_front_part, nope_first)
    for name, cos, sin, count in (("h", cos_h, sin_h, img_height), ("w", cos_w, sin_w, img_width)):
        check_table("rope_2d", f"cos_{name}", cos, input, input.shape[-1] // 2, count, reuse_freqs_front_part)
        check.tensor("rope_2d", f"sin_{name}", sin, dtypes=(cos.dtype,), shape=cos.shape, device=input.device)
    check.tensor("rope_2d", "cos_w", cos_w, dtypes=(cos_h.dtype,))
    if cos_w.shape[-1] != cos_h.shape[-1]:
        raise ValueError(f"rope_2d: cos_w must have rows of {cos_h.shape[-1]} like cos_h, got {cos_w.shape[-1]}")
    return SKIP if input.numel() == 0 else None


def _tune_key(out: Tensor, input: Tensor, cos_h: Tensor, sin_h: Tensor, cos_w: Tensor, sin_w: Tensor,
              img_height: int, img_width: int, rotate_style: int, reuse_freqs_front_part: bool,
              *_: object) -> dict[str, int | str]:
    return {"patches": input.shape[:2].numel(), "heads": input.shape[2], "head_dim": input.shape[3],
            "rotary_dim": 2 * cos_h.shape[-1] * (2 if reuse_freqs_front_part else 1),
            "dtype": dtypes.name(input.dtype), "table_dtype": dtypes.name(cos_h.dtype), "rotate_style": rotate_style}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    """One image, as near to a square as its number of patches allows."""
    patches, random = key["patches"], tune_shapes.normal(device, seed, key["dtype"])
    height = next(size for size in range(math.isqrt(patches), 0, -1) if patches % size == 0)
    x = random(1, patches, key["heads"], key["head_dim"])
    tables = [random(1, size, 1, key["rotary_dim"] // 4).to(dtypes.DTYPES[key["table_dtype"]])
              for size in (height, height, patches // height, patches // height)]
    return (torch.empty_like(x), x, *tables, height, patches // height, key["rotate_style"], True, False, False)


def _self_check(device: torch.device) -> tuple:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 12, 3, 64, generator=generator).to(device, torch.bfloat16)
    angles = [torch.rand(1, size, 1, 16, generator=generator).to(device) * 6 for size in (3, 4)]
    tables = [function(angle) for angle in angles for function in (torch.cos, torch.sin)]
    return (torch.empty_like(x), x, *tables, 3, 4, 0, True, False, False)


_rope_2d = Op(
    "rope_2d", reference=rope_2d_ref, check=_check, tune_key=_tune_key,
    tune_fields=("patches", "heads", "head_dim", "rotary_dim", "dtype", "table_dtype", "rotate_style"),
    round_field="patches", self_check=_self_check, tuning=Tuning(_tune_case),
    backends=(Backend("hip", _rope_2d_hip, refusal=unsupported, space=space),
              Backend("triton", "ops.rope.triton.rope:rope_2d", refusal=unsupported, space=triton_space),
              Backend("torch", rope_2d_ref, differentiable=True)))


def _function(name: str) -> Callable:
    is_backward, is_in_place = "_bwd" in name, "_inplace" in name
    names = ("output_grads" if is_backward else "input", "cos_h", "sin_h", "cos_w", "sin_w", "img_height", "img_width",
             "rotate_style", "reuse_freqs_front_part", "nope_first")

    def run(args: Sequence[Any], backend: str | None) -> Tensor:
        has_rank(name, names[0], args[0], 4)
        out = args[0] if is_in_place else torch.empty(args[0].shape, dtype=args[0].dtype, device=args[0].device)
        _rope_2d(out, *args, is_backward, backend=backend)
        return out

    what = "The gradient of rotary position embedding" if is_backward else "Rotary position embedding"
    return public(name, names, run, f"{what} of image patches [b, img_height · img_width, heads, head_dim]: the first "
                  f"half\nof a head turns by the patch's row, the second by its column{', in place' * is_in_place}.",
                  f"The tensor{', which is written' * is_in_place}.")


rope_2d_fwd, rope_2d_fwd_inplace, rope_2d_bwd, rope_2d_bwd_inplace = (_function(name) for name in (
    "rope_2d_fwd", "rope_2d_fwd_inplace", "rope_2d_bwd", "rope_2d_bwd_inplace"))
