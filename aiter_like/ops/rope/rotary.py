# SPDX-License-Identifier: MIT
"""Rotary position embedding as engines and training call it: on flat tensors, as a module, under autograd.

All of it ends in the operators of ops/rope/rope.py and ops/rope/rope_2d.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like import check
from aiter_like.ops.rope import parts, rope, rope_2d
from aiter_like.ops.rope.scaling import frequencies

__all__ = ["RoPE", "RoPE2D", "RoPECached", "RoPETHD", "RotaryEmbedding", "batched_rotary_embedding", "get_rope",
           "rope_cached_thd_positions_2c_fwd_inplace", "rope_cached_thd_positions_offsets_2c_fwd_inplace",
           "rotary_embedding_fwd"]


def rotary_embedding_fwd(positions: Tensor, query: Tensor, key: Tensor | None, head_size: int, cos_cache: Tensor,
                         sin_cache: Tensor, is_neox: bool, is_nope_first: bool, *, backend: str | None = None) -> None:
    """Rotary position embedding of query and key, in place:
    `first' = first · cos - second · sin`, `second' = second · cos + first · sin` for each pair of a head.

    Args:
        positions: [num_tokens] or [b, s] int32|int64: rows of the caches.
        query: [num_tokens or b, s, num_heads · head_size] or [..., num_heads, head_size], bf16|fp16|fp32; written.
        key: like `query` with its own number of heads, written; or None.
        head_size: elements of a head.
        cos_cache, sin_cache: [max_position, rotary_dim / 2] or [max_position, 1, 1, rotary_dim / 2].
        is_neox: True: the pairs are elements i and i + rotary_dim / 2; False: elements 2i and 2i + 1.
        is_nope_first: the rotated part is the head's last, not its first.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Notes: Rotated in fp32, rounded to nearest even once; deterministic.
    """
    _turn("rotary_embedding_fwd", positions, query, key, head_size, (cos_cache, sin_cache),
          (0 if is_neox else 1, True, is_nope_first), None, backend)


def batched_rotary_embedding(positions: Tensor, query: Tensor, key: Tensor | None, head_size: int, cos_cache: Tensor,
                             sin_cache: Tensor, is_neox: bool, is_nope_first: bool, rot_dim: int,
                             cos_sin_cache_offsets: Tensor, *, backend: str | None = None) -> None:
    """Rotation with an offset into the caches for each token, in caches of several tables. Like `rotary_embedding_fwd`.

    Args:
        rot_dim: rotated elements of a head: twice the width of `cos_cache`.
        cos_sin_cache_offsets: as many as `positions`, int32|int64: added to them.
    """
    check.integer("batched_rotary_embedding", "rot_dim", rot_dim, 0)
    if isinstance(cos_cache, Tensor) and cos_cache.ndim and rot_dim != 2 * cos_cache.shape[-1]:
        raise ValueError(f"batched_rotary_embedding: rot_dim must be twice the width of cos_cache, "
                         f"{2 * cos_cache.shape[-1]}, got {rot_dim}")
    _turn("batched_rotary_embedding", positions, query, key, head_size, (cos_cache, sin_cache),
          (0 if is_neox else 1, True, is_nope_first), cos_sin_cache_offsets, backend)


def rope_cached_thd_positions_2c_fwd_inplace(
        x: Tensor, y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, rotate_style: int,
        reuse_freqs_front_part: bool, nope_first: bool, transpose_output: bool = False, *,
        backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Rotates tokens without a batch dimension, in place. Like `rope_cached_positions_2c_fwd_inplace` otherwise.

    Args:
        x, y: [num_tokens, heads, head_dim] bf16|fp16|fp32, each with its own number of heads, last dimension
            contiguous; written.
        cos, sin: [max_position, width] or [max_position, 1, 1, width].
        positions: [num_tokens] int32|int64: rows of `cos` and `sin`.
        transpose_output: False; there is no batch to transpose with.

    Source: AITER's Triton function of this name.
    """
    name = "rope_cached_thd_positions_2c_fwd_inplace"
    for argument, tensor, rank in (("x", x, 3), ("y", y, 3), ("positions", positions, 1)):
        parts.has_rank(name, argument, tensor, rank)
    _check_tokens(name, positions, None, x=x, y=y)
    if transpose_output:
        raise ValueError(f"{name}: transpose_output must be False, got {transpose_output}")
    _turn(name, positions, x, y, x.shape[-1], (cos, sin), (rotate_style, reuse_freqs_front_part, nope_first), None,
          backend)
    return x, y


def rope_cached_thd_positions_offsets_2c_fwd_inplace(
        x: Tensor, y: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, offsets: Tensor | None, rotate_style: int,
        reuse_freqs_front_part: bool, nope_first: bool, transpose_output: bool = False, *,
        backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Rotates with an offset added to each position. Like `rope_cached_thd_positions_2c_fwd_inplace` otherwise.

    Args:
        offsets: [num_tokens] int32|int64: added to `positions`; None: nothing is, as vLLM calls it.

    Source: AITER's Triton function of this name.
    """
    name = "rope_cached_thd_positions_offsets_2c_fwd_inplace"
    for argument, tensor, rank in (("x", x, 3), ("y", y, 3), ("positions", positions, 1), ("offsets", offsets, 1)):
        if argument != "offsets" or tensor is not None:
            parts.has_rank(name, argument, tensor, rank)
    _check_tokens(name, positions, offsets, x=x, y=y)
    if transpose_output:
        raise ValueError(f"{name}: transpose_output must be False, got {transpose_output}")
    _turn(name, positions, x, y, x.shape[-1], (cos, sin), (rotate_style, reuse_freqs_front_part, nope_first), offsets,
          backend)
    return x, y


def _turn(name: str, positions: Tensor, query: Tensor, key: Tensor | None, head_size: int, tables: Sequence[Tensor],
          flags: tuple, offsets: Tensor | None, backend: str | None) -> None:
    """Turns tensors that hold the heads of the tokens of `positions`, in place."""
    check.tensor(name, "query", query, last_contiguous=False)
    check.integer(name, "head_size", head_size, 1)
    if key is not None:
        check.tensor(name, "key", key, dtypes=(query.dtype,), device=query.device, last_contiguous=False)
    if not isinstance(positions, Tensor) or positions.ndim not in (1, 2):
        raise ValueError(f"{name}: positions must be a tensor of 1 or 2 dimensions, got {_shape(positions)}")
    tokens = (1, *positions.shape) if positions.ndim == 1 else tuple(positions.shape)
    argument = "cos_sin_cache_offsets" if name == "batched_rotary_embedding" else "offsets"
    if offsets is not None:
        check.tensor(name, argument, offsets, device=query.device, last_contiguous=False)
        if offsets.numel() != positions.numel():
            raise ValueError(f"{name}: {argument} must have one element per position, {positions.numel()}, got "
                             f"{_shape(offsets)}")
    inputs = [_heads(name, argument, tensor, tokens, head_size)
              for argument, tensor in (("query", query), ("key", key)) if argument == "query" or tensor is not None]
    if not positions.numel():
        return
    indices = [positions.view(tokens), *([] if offsets is None else [offsets.reshape(tokens)])]
    if offsets is not None:
        parts.check_positions(name, "positions", *indices, tables[0], argument)
    form = "rope_cached_positions" + ("_offsets" if len(indices) == 2 else "") + ("_2c" if len(inputs) == 2 else "")
    getattr(rope, f"{form}_fwd_inplace")(*inputs, *tables, *indices, *flags, backend=backend)


def _check_tokens(name: str, positions: Tensor, offsets: Tensor | None, *, x: Tensor, y: Tensor) -> None:
    """`x` and `y` are heads of one size, of as many tokens as there are positions."""
    check.tensor(name, "x", x, shape=(len(positions), None, None))
    check.tensor(name, "y", y, dtypes=(x.dtype,), shape=(len(positions), None, x.shape[2]), device=x.device)
    if offsets is not None:
        check.tensor(name, "offsets", offsets, shape=positions.shape, last_contiguous=False)


def _heads(name: str, argument: str, tensor: Tensor, tokens: tuple[int, ...], head_size: int) -> Tensor:
    """`tensor` as [*tokens, heads, head_size]."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: {argument} must be a tensor, got {type(tensor).__name__}")
    count = tokens[0] * tokens[1]
    if count == 0:
        return tensor
    try:
        return tensor.view(*tokens, tensor.numel() // (count * head_size), head_size)
    except RuntimeError:  # sizes that do not divide, or strides that no view can express
        raise ValueError(f"{name}: {argument} must be heads of {head_size} elements for {count} tokens, got shape "
                         f"{tuple(tensor.shape)}, strides {tensor.stride()}") from None


def _shape(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


class RotaryEmbedding(torch.nn.Module):
    """Tables of a model's rotary position embedding, and the operator that turns query and key by them in place.

    Attributes:
        cos_cache: [rows, 1, 1, rotary_dim / 2]; `sin_cache` likewise. Not part of the state dict.
        long_from: positions from here on switch the whole call to the second table (longrope); None: one table.
        sections: how many frequencies turn by time, height and width (mrope); () where positions have one axis.
    """

    def __init__(self, head_size: int, rotary_dim: int, max_position_embeddings: int, base: float, is_neox_style: bool,
                 dtype: torch.dtype, rope_scaling: Mapping[str, Any] | None = None):
        super().__init__()
        self.head_size, self.rotary_dim, self.base = head_size, rotary_dim, base
        self.max_position_embeddings, self.is_neox_style, self.dtype = max_position_embeddings, is_neox_style, dtype
        scaling = dict(rope_scaling or {})
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        pieces = frequencies(kind, rotary_dim, max_position_embeddings, base, scaling)
        self.long_from = pieces[0].rows if len(pieces) > 1 else None
        self.sections = tuple(scaling.get("mrope_section") or ())
        self.is_interleaved = bool(scaling.get("mrope_interleaved", False))
        if self.sections and (len(self.sections) != 3 or sum(self.sections) != rotary_dim // 2):
            raise ValueError(f"get_rope: rope_scaling['mrope_section'] must be three sizes with sum {rotary_dim // 2}, "
                             f"got {self.sections}")
        for name, tables in zip(("cos_cache", "sin_cache"), zip(*(piece.table() for piece in pieces)), strict=True):
            self.register_buffer(name, torch.cat(tables)[:, None, None].to(dtype), persistent=False)

    def forward(self, positions: Tensor, query: Tensor, key: Tensor | None = None, offsets: Tensor | None = None,
                is_nope_first: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Turns `query` and `key`, as `rotary_embedding_fwd` takes them, and returns what it was given.

        With `sections`, positions may also be [3, num_tokens]: time, height and width.
        """
        tables, flags = (self.cos_cache, self.sin_cache), (0 if self.is_neox_style else 1, True, is_nope_first)
        if self.sections and positions.ndim == 2:
            if positions.shape[0] != 3:
                raise ValueError(f"RotaryEmbedding: positions must have shape (3, num_tokens) or (num_tokens,), got "
                                 f"{tuple(positions.shape)}")
            tables = tuple(self._by_section(table[:, 0, 0][positions]) for table in tables)  # [num_tokens, width]
            positions = torch.arange(positions.shape[1], device=positions.device)
        if self.long_from is not None:  # decided on the device: the host must not wait for it
            jump = ((positions >= self.long_from).any() * self.long_from).expand(positions.shape)
            offsets = jump if offsets is None else offsets.view(positions.shape) + jump
        _turn("RotaryEmbedding", positions, query, key, self.head_size, tables, flags, offsets, None)
        return query if key is None else (query, key)

    def _by_section(self, table: Tensor) -> Tensor:
        """[3, num_tokens, width] → [num_tokens, width]: each frequency from the row of its axis."""
        if not self.is_interleaved:
            return torch.cat([part[axis] for axis, part in enumerate(table.split(self.sections, -1))], -1)
        mixed = table[0].clone()
        for axis in (1, 2):
            columns = slice(axis, 3 * self.sections[axis], 3)
            mixed[:, columns] = table[axis][:, columns]
        return mixed

    def extra_repr(self) -> str:
        """The numbers that make it."""
        return (f"head_size={self.head_size}, rotary_dim={self.rotary_dim}, base={self.base}, "
                f"max_position_embeddings={self.max_position_embeddings}, is_neox_style={self.is_neox_style}")


_made: dict[tuple, RotaryEmbedding] = {}


def get_rope(head_size: int, rotary_dim: int, max_position: int, base: float, is_neox_style: bool = True,
             rope_scaling: Mapping[str, Any] | None = None, dtype: torch.dtype | None = None,
             partial_rotary_factor: float = 1.0,
             dual_chunk_attention_config: Mapping[str, Any] | None = None) -> RotaryEmbedding:
    """The rotary embedding of a model's configuration, as a torch module; equal arguments give the same module.

    `cos(p · base^(-2i / rotary_dim))`, with the frequencies, positions and magnitude that `rope_scaling` changes.

    Args:
        head_size, rotary_dim: elements of a head, and those of them that are rotated.
        max_position: positions of the table, before scaling.
        base: of the powers in the formula, theta in configurations.
        is_neox_style: True: pairs (i, i + rotary_dim / 2); False: pairs (2i, 2i + 1).
        rope_scaling: None, or the model's rope_scaling: rope_type default, linear, dynamic, llama3, yarn,
            deepseek_yarn, longrope (su), with that type's entries; mrope_section with default or mrope.
        dtype: dtype of the tables; default: torch's default dtype.
        partial_rotary_factor: below 1: the part of `rotary_dim` that is rotated.
        dual_chunk_attention_config: None; the dual-chunk form is not offered.

    Returns: The module: `module(positions, query, key)` writes query and key in place and returns them.

    Raises:
        ValueError: an unknown rope_type, or a missing entry.

    Notes: Tables are computed in fp32 on the default device of torch, usually the CPU; move the module to the device.

    Source: AITER's `rotary_embedding.get_rope`; the public definitions of the scalings.
    """
    if dual_chunk_attention_config is not None:
        raise ValueError("get_rope: dual_chunk_attention_config must be None, the dual-chunk form is not offered")
    if partial_rotary_factor < 1.0:
        rotary_dim = int(rotary_dim * partial_rotary_factor)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size:
        raise ValueError(f"get_rope: rotary_dim must be even and at most head_size {head_size}, got {rotary_dim}")
    dtype = dtype or torch.get_default_dtype()
    scaling = {name: tuple(value) if isinstance(value, list) else value for name, value in (rope_scaling or {}).items()}
    key = (head_size, rotary_dim, max_position, base, is_neox_style, tuple(sorted(scaling.items())), dtype)
    if key not in _made:
        _made[key] = RotaryEmbedding(*key[:5], dtype, scaling)
    return _made[key]


def _function(forward: Any, backward: Any, name: str, parameters: str) -> type:
    """An autograd function of `forward`, whose gradient with respect to its first argument is `backward`."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, *args: Any) -> Tensor:
            ctx.save_for_backward(*(arg for arg in args if isinstance(arg, Tensor)))
            ctx.others = [None if isinstance(arg, Tensor) else arg for arg in args]
            return forward(x, *args)

        @staticmethod
        def backward(ctx: Any, output_grads: Tensor) -> tuple:
            tensors = iter(ctx.saved_tensors)
            args = [next(tensors) if other is None else other for other in ctx.others]
            if output_grads.stride(-1) != 1:
                output_grads = output_grads.contiguous()
            return backward(output_grads, *args), *[None] * len(args)

    Function.__name__ = Function.__qualname__ = name
    Function.__doc__ = f"`{name}.apply({parameters})`: `{forward.__name__}` with its gradient with respect to `x`."
    return Function


_FLAGS = "rotate_style, reuse_freqs_front_part, nope_first"
RoPE = _function(rope.rope_fwd, rope.rope_bwd, "RoPE", f"x, freqs, {_FLAGS}, transpose_output=False")
RoPECached = _function(rope.rope_cached_fwd, rope.rope_cached_bwd, "RoPECached",
                       f"x, cos, sin, {_FLAGS}, transpose_output=False")
RoPETHD = _function(rope.rope_thd_fwd, rope.rope_thd_bwd, "RoPETHD", f"x, cu_seqlens, freqs, {_FLAGS}")
RoPE2D = _function(rope_2d.rope_2d_fwd, rope_2d.rope_2d_bwd, "RoPE2D",
                   f"x, cos_h, sin_h, cos_w, sin_w, img_height, img_width, {_FLAGS}")
