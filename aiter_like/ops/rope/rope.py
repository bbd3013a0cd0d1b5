# SPDX-License-Identifier: MIT
"""Rotary position embedding: the operator `rope` and the functions that AITER makes of it. Kernels: csrc/rope/rope.hip,
ops/rope/triton/rope.py. Images: ops/rope/rope_2d.py; what engines call: ops/rope/rotary.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.dispatch import SKIP, STRIDED, Backend, Op, torch_ops
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, tune_shapes
from aiter_like.ops.rope import parts, signatures

__all__ = ["rope_fwd", "rope_fwd_inplace", "rope_bwd", "rope_bwd_inplace", "rope_2c_fwd", "rope_2c_fwd_inplace",
           "rope_2c_bwd", "rope_2c_bwd_inplace", "rope_cached_fwd", "rope_cached_fwd_inplace", "rope_cached_bwd",
           "rope_cached_bwd_inplace", "rope_cached_2c_fwd", "rope_cached_2c_fwd_inplace", "rope_cached_2c_bwd",
           "rope_cached_2c_bwd_inplace", "rope_cached_positions_fwd", "rope_cached_positions_fwd_inplace",
           "rope_cached_positions_bwd", "rope_cached_positions_bwd_inplace", "rope_cached_positions_2c_fwd",
           "rope_cached_positions_2c_fwd_inplace", "rope_cached_positions_2c_bwd",
           "rope_cached_positions_2c_bwd_inplace", "rope_cached_positions_offsets_fwd",
           "rope_cached_positions_offsets_fwd_inplace", "rope_cached_positions_offsets_bwd",
           "rope_cached_positions_offsets_bwd_inplace", "rope_cached_positions_offsets_2c_fwd",
           "rope_cached_positions_offsets_2c_fwd_inplace", "rope_cached_positions_offsets_2c_bwd",
           "rope_cached_positions_offsets_2c_bwd_inplace", "rope_thd_fwd", "rope_thd_fwd_inplace", "rope_thd_bwd",
           "rope_thd_bwd_inplace"]


class RopeCall(NamedTuple):
    """One call of rope. Heads lie in [s, b, heads, head_dim], or [tokens, heads, head_dim] where sequences are packed.

    Attributes:
        out_y: comes with `input_y`, a second tensor with a number of heads of its own.
        cos: a table of rows: cosines, or angles where `sin` is None.
        positions: [s, b], each token's row of the table; or [sequences + 1], the starts of packed sequences; None: a
            token's row is its index in the first dimension.
        offsets: [s, b], added to the row.
        rotate_style: 0 pairs elements i and i + rotary_dim / 2, 1 elements 2i and 2i + 1.
        reuse_freqs_front_part: a row of the table has a value per pair, not one per rotated element.
        nope_first: the rotated part is the head's last.
        is_backward: multiply by the transposed matrix.
    """

    out: Annotated[Tensor, "*tokens heads head_dim", "input"]
    out_y: Annotated[Tensor | None, "*tokens heads_y head_dim", "input"]
    input: Annotated[Tensor, "*tokens heads head_dim", elements.FLOATS]
    input_y: Annotated[Tensor | None, "*tokens heads_y head_dim", "input"]
    cos: Annotated[Tensor, "*cos", elements.FLOATS]
    sin: Annotated[Tensor | None, "*sin", "cos"] = None
    positions: Annotated[Tensor | None, "*positions", elements.INTEGERS, STRIDED] = None
    offsets: Annotated[Tensor | None, "*offsets", elements.INTEGERS, STRIDED] = None
    rotate_style: int = 0
    reuse_freqs_front_part: bool = True
    nope_first: bool = False
    is_backward: bool = False

    @property
    def is_packed(self) -> bool:
        """`positions` are starts of sequences."""
        return self.positions is not None and self.positions.ndim == 1


def rope_ref(call: RopeCall) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), differentiable; writes `out` and `out_y`."""
    wide = torch.promote_types(call.input.dtype, torch.float32)
    rows = torch.arange(call.input.shape[0], device=call.input.device)[:, None]  # [s, 1]
    if call.is_packed:
        starts = call.positions
        sequence = torch.searchsorted(starts[1:].contiguous(), rows, right=True).clamp(max=starts.shape[0] - 2)
        rows = rows - starts[sequence]
    elif call.positions is not None:
        rows = call.positions
    if call.offsets is not None:
        rows = rows.long() + call.offsets
    tables = [call.cos, call.sin] if call.sin is not None else [call.cos.to(wide).cos(), call.cos.to(wide).sin()]
    angles = [parts.table_rows(table, rows, wide)[..., None, :] for table in tables]  # [s, b, 1, width]
    for target, x in ((call.out, call.input), (call.out_y, call.input_y)):
        if target is not None:
            heads = x.to(wide) if x.ndim == 4 else x.to(wide).unsqueeze(1)
            turned = parts.rotated(heads, *angles, call.rotate_style, call.reuse_freqs_front_part, call.nope_first,
                                   call.is_backward)
            target.copy_(turned.view(x.shape))


def _instance(call: RopeCall, *, heads: int | None = None, share: int | None = None) -> Instance:
    return parts.instance_of(call.input.dtype, call.cos.dtype, is_angle=call.sin is None, heads=heads, share=share)


@compile_ops("rope/rope.hip", gen_func=_instance)
def _rope_hip(call: RopeCall) -> None: ...


def _check(call: RopeCall) -> object:
    input = call.input
    if input.ndim not in (3, 4):
        raise ValueError(f"rope: input must have 3 or 4 dimensions, got shape {tuple(input.shape)}")
    if (call.input_y is None) != (call.out_y is None):
        raise ValueError("rope: input_y and out_y must come together, got one of them")
    check.choice("rope", "rotate_style", call.rotate_style, (0, 1))
    lowest = input.shape[0] if call.positions is None else min(input.numel(), 1)
    parts.check_table("rope", "cos" if call.sin is not None else "freqs", call.cos, call.sin, input.shape[-1],
                      lowest, call.reuse_freqs_front_part)
    if call.is_packed:
        check.tensor("rope", "cu_seqlens", call.positions)
        if call.positions.shape[0] < 2:
            raise ValueError("rope: cu_seqlens must have at least 2 elements, got 1 sequence start or none")
    for name, tensor in (("positions", call.positions), ("offsets", call.offsets)):
        if tensor is not None and (name == "offsets" or tensor.ndim != 1):
            check.tensor("rope", name, tensor, shape=input.shape[:2], last_contiguous=False)
    return SKIP if input.numel() == 0 and (call.input_y is None or call.input_y.numel() == 0) else None


class RopeKey(NamedTuple):
    """The fields that a tuned row of rope is chosen by; `kv_heads` are the second tensor's, 0 where there is none."""

    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    dtype: str
    table_dtype: str
    rotate_style: int

    @classmethod
    def of(cls, call: RopeCall) -> RopeKey:
        shape, kv_heads = call.input.shape, 0 if call.input_y is None else call.input_y.shape[-2]
        rotary_dim = call.cos.shape[-1] * (2 if call.reuse_freqs_front_part else 1)
        return cls(shape[:-2].numel(), shape[-2], kv_heads, shape[-1], rotary_dim, dtypes.name(call.input.dtype),
                   dtypes.name(call.cos.dtype), call.rotate_style)

    def make(self, device: torch.device, seed: int) -> RopeCall:
        """Each token reads the next row of the tables."""
        random = tune_shapes.normal(device, seed, self.dtype)
        x, y = (random(self.tokens, 1, heads, self.head_dim) if heads else None
                for heads in (self.heads, self.kv_heads))
        cos, sin = random(2, self.tokens, 1, 1, self.rotary_dim // 2).to(dtypes.DTYPES[self.table_dtype])
        return RopeCall(torch.empty_like(x), None if y is None else torch.empty_like(y), x, y, cos, sin,
                        rotate_style=self.rotate_style)

    @classmethod
    def of_model(cls, model: Any, tp: int, tokens: int) -> Iterator[RopeKey]:
        """q and k heads of a layer together; a latent-attention model (kv_lora_rank) turns its own parts."""
        if not model.kv_lora_rank:
            yield cls(tokens, model.num_heads // tp, max(model.num_kv_heads // tp, 1), model.head_dim, model.head_dim,
                      model.dtype, model.dtype, 0)


def _cases(device: torch.device) -> dict[str, RopeCall]:
    """Both styles, tables and angles, q and k at positions, packed sequences."""
    random = tune_shapes.normal(device, 0, "bf16")
    x, y, angles = random(9, 2, 5, 64), random(9, 2, 2, 64), random(9, 1, 1, 24).float() * 50
    cos, sin, rows = angles.cos(), angles.sin(), torch.arange(18, device=device).view(9, 2)
    table = RopeCall(torch.empty_like(x), None, x, None, cos, sin, nope_first=True)
    return {
        "halves": table, "neighbours": table._replace(rotate_style=1), "angles": table._replace(cos=angles, sin=None),
        "q and k at positions": RopeCall(torch.empty_like(x), torch.empty_like(y), x, y, cos.bfloat16(),
                                         sin.bfloat16(), positions=rows % 5, offsets=rows % 4),
        "packed sequences": RopeCall(
            torch.empty_like(x[:, 0]), None, x[:, 0].contiguous(), None, angles, is_backward=True,
            positions=torch.tensor([0, 2, 9], dtype=torch.int32, device=device))}


_rope = Op(
    "rope", call=RopeCall, reference=rope_ref, check=_check, key=RopeKey, round_field="tokens",
    writes=("out", "out_y"), cases=_cases,
    in_place={"out": ("input",), "out_y": ("input_y",)},
    backends=(Backend("hip", _rope_hip, refusal=parts.kernel_refusal, space=parts.hip_space),
              Backend("triton", "ops.rope.triton.rope:rope", refusal=parts.kernel_refusal, space=parts.triton_space),
              Backend("torch", rope_ref, differentiable=True)))


def _runner(name: str, names: Sequence[str], tables: Sequence[str], is_backward: bool, is_in_place: bool) -> Callable:
    count, is_packed = len(names), "cu_seqlens" in tables
    first_flag, rank = count + len(tables), 3 if is_packed else 4

    def run(args: Sequence[Any], backend: str | None) -> Any:
        tensors, found, flags = args[:count], args[count:first_flag], args[first_flag:first_flag + 3]
        for argument, tensor in zip(names, tensors):
            parts.has_rank(name, argument, tensor, rank)
        outs = tensors if is_in_place else [_empty(name, x, len(args) > first_flag + 3 and args[-1]) for x in tensors]
        cos, sin, positions, offsets = (found[1], None, found[0], None) if is_packed else (*found, *(None,) * 3)[:4]
        if is_packed:
            _check_lengths(name, positions, cos)
        elif len(found) > 2:
            parts.has_rank(name, "positions", positions, 2)
            parts.check_positions(name, "positions", positions, offsets, cos)
        out_y, input_y = (outs[1], tensors[1]) if count == 2 else (None, None)
        _rope.run(outs[0], out_y, tensors[0], input_y, cos, sin, positions, offsets, *flags, is_backward,
                  backend=backend)
        return tuple(outs) if count == 2 else outs[0]

    return run


def _check_lengths(name: str, cu_seqlens: Any, freqs: Any) -> None:
    """Starts on the CPU never fall, and the longest sequence has a row of the table for each token."""
    check.sequence_starts(name, "cu_seqlens", cu_seqlens)
    if not check.is_on_host(cu_seqlens) or cu_seqlens.dtype not in elements.INTEGERS or cu_seqlens.ndim != 1 or (
            len(cu_seqlens) < 2 or not isinstance(freqs, Tensor) or freqs.ndim == 0):
        return  # the operator says what does not fit
    lengths = cu_seqlens.diff()
    rows = freqs.numel() // max(freqs.shape[-1], 1)
    if lengths.min() < 0 or cu_seqlens[0] != 0:
        raise ValueError(f"{name}: cu_seqlens must start at 0 and never fall, got {cu_seqlens.tolist()[:20]}")
    if rows < lengths.max():
        raise ValueError(f"{name}: freqs must have at least {lengths.max().item()} rows, for the longest sequence of "
                         f"cu_seqlens, got shape {tuple(freqs.shape)}")


def _empty(name: str, x: Tensor, is_transposed: bool) -> Tensor:
    check.flag(name, "transpose_output", is_transposed)
    if not is_transposed:
        return torch.empty_like(x, memory_format=torch.contiguous_format)
    s, b, heads, head_dim = x.shape
    return torch.empty((b, s, heads, head_dim), dtype=x.dtype, device=x.device).transpose(0, 1)


_functions = functools.partial(signatures.four, _runner)
rope_fwd, rope_fwd_inplace, rope_bwd, rope_bwd_inplace = _functions("rope", ("freqs",), "by angles")
rope_2c_fwd, rope_2c_fwd_inplace, rope_2c_bwd, rope_2c_bwd_inplace = _functions("rope_2c", ("freqs",), "by angles")
rope_cached_fwd, rope_cached_fwd_inplace, rope_cached_bwd, rope_cached_bwd_inplace = _functions(
    "rope_cached", ("cos", "sin"), "by cosines and sines")
rope_cached_2c_fwd, rope_cached_2c_fwd_inplace, rope_cached_2c_bwd, rope_cached_2c_bwd_inplace = _functions(
    "rope_cached_2c", ("cos", "sin"), "by cosines and sines")
(rope_cached_positions_fwd, rope_cached_positions_fwd_inplace, rope_cached_positions_bwd,
 rope_cached_positions_bwd_inplace) = _functions(
    "rope_cached_positions", ("cos", "sin", "positions"), "at given positions")
(rope_cached_positions_2c_fwd, rope_cached_positions_2c_fwd_inplace, rope_cached_positions_2c_bwd,
 rope_cached_positions_2c_bwd_inplace) = _functions(
    "rope_cached_positions_2c", ("cos", "sin", "positions"), "at given positions")
(rope_cached_positions_offsets_fwd, rope_cached_positions_offsets_fwd_inplace, rope_cached_positions_offsets_bwd,
 rope_cached_positions_offsets_bwd_inplace) = _functions(
    "rope_cached_positions_offsets", ("cos", "sin", "positions", "offsets"), "at positions plus offsets")
(rope_cached_positions_offsets_2c_fwd, rope_cached_positions_offsets_2c_fwd_inplace,
 rope_cached_positions_offsets_2c_bwd, rope_cached_positions_offsets_2c_bwd_inplace) = _functions(
    "rope_cached_positions_offsets_2c", ("cos", "sin", "positions", "offsets"), "at positions plus offsets")
rope_thd_fwd, rope_thd_fwd_inplace, rope_thd_bwd, rope_thd_bwd_inplace = _functions(
    "rope_thd", ("cu_seqlens", "freqs"), "of packed sequences [tokens, heads, head_dim]", transposes=False)

torch_ops.register(_rope, rope_cached_positions_2c_fwd)
