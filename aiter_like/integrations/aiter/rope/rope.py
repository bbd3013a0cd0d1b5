# SPDX-License-Identifier: MIT
"""AITER's Triton forms of rotary position embedding, whose parameters have other names and one more. Those of two
tensors of tokens round each product, as AITER's do, where heads and tables have one dtype of 16 bits.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.call import with_parameters
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common import elements
from aiter_like.ops.rope import rope, rope_2d, rope_rounded, rotary

_TENSORS = {"input": "x", "output_grads": "x", "input_x": "x", "input_y": "y", "output_grads_x": "x",
            "output_grads_y": "y"}


def _form(function: Callable, name: str, call: Callable[..., Any]) -> Callable:
    """`function` with AITER's names of its tensors and `transpose_output` behind its other parameters."""
    names = [_TENSORS.get(each, each) for each in _names(function) if each not in ("backend", "transpose_output")]
    parameters = {**dict.fromkeys(names, inspect.Parameter.empty), "transpose_output": False}
    form = with_parameters(name, functools.partial(call, function, name), parameters)
    form.__module__, form.__qualname__ = __name__, name
    form.__doc__ = f"`aiter_like.{function.__name__}`."
    return form


def _without_nones(function: Callable, args: tuple) -> tuple[Callable, tuple]:
    """The function of the indices that there are, and its arguments: AITER's functions with offsets take None for
    these, and those with positions for these, too.
    """
    for index in ("offsets", "positions"):
        names = _names(function)
        if index in names:
            at = names.index(index)
            if args[at] is not None:
                break
            function, args = getattr(rope, function.__name__.replace(f"_{index}", "")), args[:at] + args[at + 1:]
    return function, args


@functools.cache
def _names(function: Callable) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _transposing(function: Callable) -> Callable:
    """A form of a function that has `transpose_output`, too."""

    def call(function: Callable, name: str, args: tuple) -> Any:
        function, args = _without_nones(function, args)
        return function(*args)

    return _form(function, function.__name__, call)


def _straight(function: Callable, name: str = "") -> Callable:
    """A form of a function whose result lies as its input does: `transpose_output` must be False."""

    def call(function: Callable, name: str, args: tuple) -> Any:
        _refuse_transposed(name, args[-1])
        function, args = _without_nones(function, args[:-1])
        return function(*args)

    return _form(function, name or function.__name__, call)


def _of_tokens(function: Callable, name: str) -> Callable:
    """A form of a function of two tensors [s, b, heads, head_dim], or of one in place of [tokens, heads, head_dim], for
    tokens without a batch.
    """
    is_inplace, is_backward = name.endswith("_inplace"), name.endswith("_bwd")

    def call(function: Callable, name: str, args: tuple) -> Any:
        x, y, cos, sin, *indices, rotate_style, reuse_freqs_front_part, nope_first, is_transposed = args
        _refuse_transposed(name, is_transposed)
        for argument, tensor, rank in (("x", x, 3), ("y", y, 3), ("positions", indices[0], 1)):
            check.tensor(name, argument, tensor, rank=rank, last_contiguous=rank == 3)
        check.tensor(name, "positions", indices[0], shape=(len(x),), last_contiguous=False)
        offsets = indices[1] if indices[1:] else None
        if offsets is not None:
            check.tensor(name, "offsets", offsets, shape=(len(x),), last_contiguous=False)
        flags = rotate_style, reuse_freqs_front_part, nope_first
        if _is_rounded(x, cos):
            return rope_rounded.rope_rounded(x, y, cos, sin, indices[0], offsets, *flags, is_backward,
                                             out=(x, y) if is_inplace else None)
        if is_inplace:
            return function(x, y, cos, sin, *indices, *flags)
        indices = [None if each is None else each[None] for each in indices]
        function, args = _without_nones(function, (x[None], y[None], cos, sin, *indices, *flags))
        found = function(*args)
        return found[0][0], found[1][0]

    return _form(function, name, call)


def _is_rounded(x: Tensor, table: Any) -> bool:
    return isinstance(table, Tensor) and table.dtype == x.dtype in (torch.bfloat16, torch.float16)


def _refuse_transposed(name: str, is_transposed: Any) -> None:
    if is_transposed is not False:
        raise ValueError(f"{name}: transpose_output must be False, got {is_transposed!r}")


rope_fwd, rope_bwd = _transposing(rope.rope_fwd), _transposing(rope.rope_bwd)
rope_cached_fwd, rope_cached_bwd = _transposing(rope.rope_cached_fwd), _transposing(rope.rope_cached_bwd)
rope_cached_positions_fwd = _transposing(rope.rope_cached_positions_fwd)
rope_cached_positions_bwd = _transposing(rope.rope_cached_positions_bwd)
rope_cached_positions_offsets_fwd = _transposing(rope.rope_cached_positions_offsets_fwd)
rope_cached_positions_offsets_bwd = _transposing(rope.rope_cached_positions_offsets_bwd)
rope_fwd_inplace, rope_cached_fwd_inplace = _straight(rope.rope_fwd_inplace), _straight(rope.rope_cached_fwd_inplace)
rope_cached_positions_fwd_inplace = _straight(rope.rope_cached_positions_fwd_inplace)
rope_cached_positions_offsets_fwd_inplace = _straight(rope.rope_cached_positions_offsets_fwd_inplace)
rope_thd_fwd, rope_thd_fwd_inplace = _straight(rope.rope_thd_fwd), _straight(rope.rope_thd_fwd_inplace)
rope_thd_bwd = _straight(rope.rope_thd_bwd)
rope_fwd_2d = _straight(rope_2d.rope_2d_fwd, "rope_fwd_2d")
rope_fwd_2d_inplace = _straight(rope_2d.rope_2d_fwd_inplace, "rope_fwd_2d_inplace")
rope_cached_thd_positions_2c_fwd = _of_tokens(rope.rope_cached_positions_2c_fwd, "rope_cached_thd_positions_2c_fwd")
rope_cached_thd_positions_2c_bwd = _of_tokens(rope.rope_cached_positions_2c_bwd, "rope_cached_thd_positions_2c_bwd")
rope_cached_thd_positions_2c_fwd_inplace = _of_tokens(rotary.rope_cached_thd_positions_2c_fwd_inplace,
                                                      "rope_cached_thd_positions_2c_fwd_inplace")
rope_cached_thd_positions_offsets_2c_fwd_inplace = _of_tokens(
    rotary.rope_cached_thd_positions_offsets_2c_fwd_inplace, "rope_cached_thd_positions_offsets_2c_fwd_inplace")
rope_cached_thd_positions_offsets_2c_fwd = _of_tokens(rope.rope_cached_positions_offsets_2c_fwd,
                                                      "rope_cached_thd_positions_offsets_2c_fwd")
rope_cached_thd_positions_offsets_2c_bwd = _of_tokens(rope.rope_cached_positions_offsets_2c_bwd,
                                                      "rope_cached_thd_positions_offsets_2c_bwd")


@aiter("aiter.ops.triton.[rope.]fused_qkv_split_qk_rope")
def fused_qkv_split_qk_rope(qkv: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, qh: int, kvh: int, head_dim: int,
                            is_neox: bool = True, offsets: Tensor | None = None, reuse_freqs_front_part: bool = True,
                            nope_first: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys of a packed projection, turned, and its values.

    Args:
        qkv: [tokens, (qh + 2 · kvh) · head_dim] bf16|fp16|fp32: heads of queries, of keys, of values.
        cos, sin: [rows, width] or [rows, 1, 1, width].
        positions: [tokens] integers, rows of the tables.
        qh, kvh, head_dim: sizes.
        is_neox: pairs are elements i and i + rotary_dim / 2; else 2i and 2i + 1.
        offsets: [tokens] integers, added to the positions.
        reuse_freqs_front_part: a row of the tables has a value per pair, not one per rotated element.
        nope_first: the rotated part is a head's last.

    Returns:
        Queries [tokens, qh, head_dim], keys and values [tokens, kvh, head_dim].
    """
    op = "fused_qkv_split_qk_rope"
    for name, size in (("qh", qh), ("kvh", kvh), ("head_dim", head_dim)):
        check.integer(op, name, size, 1)
    check.tensor(op, "qkv", qkv, dtypes=elements.FLOATS, shape=(None, (qh + 2 * kvh) * head_dim))
    q, k, v = qkv.unflatten(1, (-1, head_dim)).split((qh, kvh, kvh), 1)
    flags = 0 if is_neox else 1, reuse_freqs_front_part, nope_first
    v = v.clone(memory_format=torch.contiguous_format)
    if _is_rounded(qkv, cos):
        return *rope_rounded.rope_rounded(q, k, cos, sin, positions, offsets, *flags), v
    q, k = (each.clone(memory_format=torch.contiguous_format) for each in (q, k))
    if offsets is None:
        return *rotary.rope_cached_thd_positions_2c_fwd_inplace(q, k, cos, sin, positions, *flags), v
    return *rotary.rope_cached_thd_positions_offsets_2c_fwd_inplace(q, k, cos, sin, positions, offsets, *flags), v


@aiter("aiter.ops.triton.rope.rope")
def rope_fwd_3d(x: Tensor, grid_sizes: Tensor, freqs: Tensor, sp_size: int, sp_rank: int) -> Tensor:
    """Videos' rotary embedding: the pairs (2i, 2i + 1) of a head turn by the frame, the row and the column of their
    token, the first `head_dim / 2 − 2 · (head_dim / 6)` of them by the frame, as many as head_dim / 6 each by the
    others; tokens behind a video's grid do not turn.

    Args:
        x: [videos, tokens, heads, head_dim] bf16|fp16|fp32: rank `sp_rank`'s part of the tokens.
        grid_sizes: [videos, 3] integers: frames, rows and columns.
        freqs: [rows, head_dim / 2] complex: cosines and sines of each position; a position behind the last takes that.
        sp_size: ranks that share the tokens; the part of each is as long as this one's.
        sp_rank: this one, from 0.

    Returns:
        Like `x`, fp32.
    """
    op = "rope_fwd_3d"
    check.tensor(op, "x", x, rank=4, dtypes=elements.FLOATS)
    videos, tokens, _, head_dim = x.shape
    check.tensor(op, "grid_sizes", grid_sizes, dtypes=elements.INTEGERS, shape=(videos, 3), last_contiguous=False)
    check.tensor(op, "freqs", freqs, dtypes=(torch.complex64, torch.complex128), shape=(None, head_dim // 2),
                 last_contiguous=False)
    check.integer(op, "sp_size", sp_size, 1)
    check.integer(op, "sp_rank", sp_rank, 0, sp_size - 1)
    third = head_dim // 6
    frames, rows, columns = grid_sizes.to(x.device).long()[..., None].unbind(1)  # [videos, 1]
    token = torch.arange(sp_rank * tokens, (sp_rank + 1) * tokens, device=x.device)  # [tokens]
    is_inside = token < frames * rows * columns
    at = [token // (rows * columns).clamp(min=1), token // columns.clamp(min=1) % rows.clamp(min=1),
          token % columns.clamp(min=1)]  # Each is [videos, tokens].
    parts = freqs.to(x.device).split((head_dim // 2 - 2 * third, third, third), 1)
    turns = torch.cat([part[each.clamp(max=len(freqs) - 1)] for part, each in zip(parts, at, strict=True)], -1)
    turns = turns.where(is_inside[..., None], 1).to(torch.complex64).view(videos * tokens, 1, 1, -1)
    heads = x.float().reshape(videos * tokens, 1, *x.shape[2:])
    return rope.rope_cached_fwd(heads, turns.real.contiguous(), turns.imag.contiguous(), 1, True, False).view(x.shape)
