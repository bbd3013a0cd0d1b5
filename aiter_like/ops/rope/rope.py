# SPDX-License-Identifier: MIT
"""Rotary position embedding: the operator `rope` and the functions that AITER makes of it.

Kernels: csrc/rope/rope.hip, ops/rope/triton/rope.py. Images: ops/rope/rope_2d.py; what engines call:
ops/rope/rotary.py.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements

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

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
INTEGERS = (torch.int64, torch.int32)
_MAX_HEAD_DIM = 512
_HEADS = (1, 2, 4)  # that a lane of the HIP kernel has in flight
_SHARES = (1, 2, 4, 8, 16)  # that it takes in all, with one row of the table


def rope_ref(out: Tensor, out_y: Tensor | None, input: Tensor, input_y: Tensor | None, cos: Tensor, sin: Tensor | None,
             positions: Tensor | None, offsets: Tensor | None, rotate_style: int, reuse_freqs_front_part: bool,
             nope_first: bool, is_backward: bool) -> None:
    """The formula in torch, in fp32 (fp64 for fp64 input), differentiable; writes `out` and `out_y`."""
    wide = torch.promote_types(input.dtype, torch.float32)
    rows = torch.arange(input.shape[0], device=input.device)[:, None]  # [s, 1]
    if positions is not None and positions.ndim == 1:  # starts of packed sequences
        sequence = torch.searchsorted(positions[1:].contiguous(), rows, right=True).clamp(max=positions.shape[0] - 2)
        rows = rows - positions[sequence]
    elif positions is not None:
        rows = positions
    if offsets is not None:
        rows = rows + offsets
    tables = [cos, sin] if sin is not None else [cos.to(wide).cos(), cos.to(wide).sin()]
    angles = [table.flatten(0, -2).to(wide)[rows, None] for table in tables]  # [s, b, 1, width]
    for target, x in ((out, input), (out_y, input_y)):
        if target is not None:
            heads = x.to(wide) if x.ndim == 4 else x.to(wide).unsqueeze(1)
            turned = rotated(heads, *angles, rotate_style, reuse_freqs_front_part, nope_first, is_backward)
            target.copy_(turned.view(x.shape))


def rotated(x: Tensor, cos: Tensor, sin: Tensor, rotate_style: int, is_shared: bool, nope_first: bool,
             is_backward: bool) -> Tensor:
    """`x` with its rotary part turned; the tables' rows broadcast over the heads."""
    rotary_dim = cos.shape[-1] * (2 if is_shared else 1)
    begin = x.shape[-1] - rotary_dim if nope_first else 0

    def pairs(tensor: Tensor) -> tuple[Tensor, Tensor]:
        return tensor.chunk(2, -1) if rotate_style == 0 else (tensor[..., 0::2], tensor[..., 1::2])

    first, second = pairs(x[..., begin:begin + rotary_dim])
    (cos_1, cos_2), (sin_1, sin_2) = ((table, table) if is_shared else pairs(table) for table in (cos, sin))
    if is_backward:
        sin_1, sin_2 = -sin_2, -sin_1
    turned = (first * cos_1 - second * sin_1, second * cos_2 + first * sin_2)
    turned = torch.cat(turned, -1) if rotate_style == 0 else torch.stack(turned, -1).flatten(-2)
    return torch.cat((x[..., :begin], turned, x[..., begin + rotary_dim:]), -1)


def variant(dtype: torch.dtype, table_dtype: torch.dtype, is_angle: bool, heads: int | None,
            share: int | None = None) -> Instance:
    heads, share = 2 if heads is None else heads, 4 if share is None else share
    if heads not in _HEADS or share not in _SHARES:
        raise ValueError(f"heads must be one of {_HEADS} and share one of {_SHARES}, got {heads} and {share}")
    kind = "freqs" if is_angle else "table"
    return Instance(f"{dtypes.name(dtype)}_{kind}_{dtypes.name(table_dtype)}_h{heads}_s{share}", {
        "ELEMENT": elements.CPP[dtype], "TABLE": elements.CPP[table_dtype], "IS_ANGLE": int(is_angle), "HEADS": heads,
        "SHARE": share})


def _instance(out: Tensor, out_y: Tensor | None, input: Tensor, input_y: Tensor | None, cos: Tensor,
              sin: Tensor | None, *_: object, heads: int | None = None, share: int | None = None) -> Instance:
    return variant(input.dtype, cos.dtype, sin is None, heads, share)


@compile_ops("rope/rope.hip", gen_func=_instance, prebuild=[
    variant(torch.bfloat16, dtype, False, None) for dtype in (torch.bfloat16, torch.float32)])
def _rope_hip(out: Tensor, out_y: Tensor | None, input: Tensor, input_y: Tensor | None, cos: Tensor,
              sin: Tensor | None, positions: Tensor | None, offsets: Tensor | None, rotate_style: int,
              reuse_freqs_front_part: bool, nope_first: bool, is_backward: bool) -> None: ...


def _check(out: Tensor, out_y: Tensor | None, input: Tensor, input_y: Tensor | None, cos: Tensor, sin: Tensor | None,
           positions: Tensor | None, offsets: Tensor | None, rotate_style: int, reuse_freqs_front_part: bool,
           nope_first: bool, is_backward: bool) -> object:
    check.tensor("rope", "input", input, dtypes=DTYPES)
    if input.ndim not in (3, 4):
        raise ValueError(f"rope: input must have 3 or 4 dimensions, got shape {tuple(input.shape)}")
    check.tensor("rope", "out", out, dtypes=(input.dtype,), shape=input.shape, device=input.device)
    if (input_y is None) != (out_y is None):
        raise ValueError("rope: input_y and out_y must come together, got one of them")
    for name, tensor in (("input_y", input_y), ("out_y", out_y)):
        if tensor is not None:
            heads = None if tensor is input_y else input_y.shape[-2]
            check.tensor("rope", name, tensor, dtypes=(input.dtype,), device=input.device,
                         shape=(*input.shape[:-2], heads, input.shape[-1]))
    check_flags("rope", rotate_style, reuse_freqs_front_part, nope_first)
    lowest = input.shape[0] if positions is None else 0
    check_table("rope", "cos" if sin is not None else "freqs", cos, input, input.shape[-1], lowest,
                 reuse_freqs_front_part)
    if sin is not None:
        check.tensor("rope", "sin", sin, dtypes=(cos.dtype,), shape=cos.shape, device=input.device)
    if positions is not None and isinstance(positions, Tensor) and positions.ndim == 1:
        check.tensor("rope", "cu_seqlens", positions, dtypes=INTEGERS, device=input.device)
        if positions.shape[0] < 2:
            raise ValueError("rope: cu_seqlens must have at least 2 elements, got 1 sequence start or none")
    for name, tensor in (("positions", positions), ("offsets", offsets)):
        if tensor is not None and (name == "offsets" or tensor.ndim != 1):
            check.tensor("rope", name, tensor, dtypes=INTEGERS, shape=input.shape[:2], device=input.device,
                         last_contiguous=False)
    return SKIP if input.numel() == 0 and (input_y is None or input_y.numel() == 0) else None


def check_flags(op: str, rotate_style: int, reuse_freqs_front_part: bool, nope_first: bool) -> None:
    check.choice(op, "rotate_style", rotate_style, (0, 1))
    check.flag(op, "reuse_freqs_front_part", reuse_freqs_front_part)
    check.flag(op, "nope_first", nope_first)


def check_table(op: str, name: str, table: Tensor, input: Tensor, head_dim: int, count: int, is_shared: bool) -> None:
    """A table of at least `count` rows that turn whole pairs of a head; only one dimension before the last is not 1."""
    check.tensor(op, name, table, dtypes=DTYPES, device=input.device)
    shape, outer = tuple(table.shape), [size for size in table.shape[:-1] if size != 1]
    if table.ndim < 2 or len(outer) > 1:
        raise ValueError(f"{op}: {name} must be a table of rows, as [s, 1, 1, width], got shape {shape}")
    width = shape[-1] * (2 if is_shared else 1)
    if width > head_dim or width % 2:
        raise ValueError(f"{op}: {name} must turn an even number of elements, at most {head_dim}, got {width} "
                         f"(shape {shape}, reuse_freqs_front_part={is_shared})")
    if (outer[0] if outer else 1) < count:
        raise ValueError(f"{op}: {name} must have at least {count} rows, got shape {shape}")


def unsupported(target: Target, out: Tensor, *args: Any) -> str | None:
    """What the kernels refuse."""
    if out.shape[-1] > _MAX_HEAD_DIM:
        return f"head dimension at most {_MAX_HEAD_DIM}, got {out.shape[-1]}"
    tokens = out.shape[:-2].numel()
    return f"less than {2**30} tokens, got {tokens}" if tokens >= 2**30 else None


def _tune_key(out: Tensor, out_y: Tensor | None, input: Tensor, input_y: Tensor | None, cos: Tensor,
              sin: Tensor | None, positions: Tensor | None, offsets: Tensor | None, rotate_style: int,
              reuse_freqs_front_part: bool, nope_first: bool, is_backward: bool) -> dict[str, int | str]:
    return {"tokens": input.shape[:-2].numel(), "heads": input.shape[-2],
            "kv_heads": 0 if input_y is None else input_y.shape[-2], "head_dim": input.shape[-1],
            "rotary_dim": cos.shape[-1] * (2 if reuse_freqs_front_part else 1), "dtype": dtypes.name(input.dtype),
            "table_dtype": dtypes.name(cos.dtype), "rotate_style": rotate_style}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    """One tensor, or with kv_heads two; tables of the positions 0, 1, … read in this order."""
    generator = torch.Generator(device).manual_seed(seed)
    random = functools.partial(torch.randn, generator=generator, device=device)
    dtype, table_dtype = (dtypes.DTYPES[key[name]] for name in ("dtype", "table_dtype"))
    x, y = (random(key["tokens"], 1, key[heads], key["head_dim"], dtype=dtype) if key[heads] else None
            for heads in ("heads", "kv_heads"))
    cos, sin = random(2, key["tokens"], 1, 1, key["rotary_dim"] // 2, dtype=table_dtype)
    outs = [None if each is None else torch.empty_like(each) for each in (x, y)]
    return (*outs, x, y, cos, sin, None, None, key["rotate_style"], True, False, False)


def space(target: Target, *_: object) -> list[dict[str, int]]:
    return [{"heads": heads, "share": share} for heads in _HEADS for share in _SHARES
            if share >= heads and (heads, share) != (2, 4)]


def triton_space(target: Target, *_: object) -> list[dict[str, int]]:
    return [{"elements": elements, "num_warps": warps} for elements in (512, 1024, 2048, 4096, 8192)
            for warps in (1, 2, 4, 8) if 4 <= elements // (target.wave_size * warps) <= 32]  # elements of a lane


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """q and k heads of a layer together; a latent-attention model (kv_lora_rank) turns its own parts."""
    if not model.kv_lora_rank:
        yield {"tokens": tokens, "heads": model.num_heads // tp, "kv_heads": max(model.num_kv_heads // tp, 1),
               "head_dim": model.head_dim, "rotary_dim": model.head_dim, "dtype": model.dtype,
               "table_dtype": model.dtype, "rotate_style": 0}


def _self_check(device: torch.device) -> list[tuple]:
    """Both styles, table and angles."""
    generator = torch.Generator().manual_seed(0)
    cases = []
    for style, is_angle in ((0, False), (1, False), (0, True)):
        x = torch.randn(9, 2, 5, 64, generator=generator).to(device, torch.bfloat16)
        angles = torch.rand(9, 1, 1, 24, generator=generator) * 100
        tables = (angles, None) if is_angle else (angles.cos(), angles.sin())
        tables = [None if table is None else table.to(device) for table in tables]
        cases.append((torch.empty_like(x), None, x, None, *tables, None, None, style, True, True, False))
    return cases


_rope = Op(
    "rope", reference=rope_ref, check=_check, tune_key=_tune_key,
    tune_fields=("tokens", "heads", "kv_heads", "head_dim", "rotary_dim", "dtype", "table_dtype", "rotate_style"),
    round_field="tokens", writes=("out", "out_y"), self_check=_self_check,
    tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _rope_hip, refusal=unsupported, space=space),
              Backend("triton", "ops.rope.triton.rope:rope", refusal=unsupported, space=triton_space),
              Backend("torch", rope_ref, differentiable=True)))


_ABOUT = {
    "input": "[s, b, heads, head_dim] bf16|fp16|fp32, last dimension contiguous, any other strides.",
    "input_x": "[s, b, heads, head_dim] bf16|fp16|fp32, last dimension contiguous, any other strides.",
    "input_y": "as `input_x`, with a number of heads of its own.",
    "output_grads": "gradient of the forward function's result, like its input.",
    "output_grads_x": "gradient of the forward function's first result, like its input.",
    "output_grads_y": "gradient of the second.",
    "freqs": "[≥ s, 1, 1, width] bf16|fp16|fp32: angles, whose sines and cosines are taken in fp32.",
    "cos": "[≥ s, 1, 1, width] bf16|fp16|fp32: cosines; with positions a row for each position.",
    "sin": "sines, like `cos`.",
    "positions": "[s, b] int32|int64: rows of `cos` and `sin`, which must be there.",
    "offsets": "[s, b] int32|int64: added to `positions`.",
    "cu_seqlens": "[sequences + 1] int32|int64: starts of the packed sequences, and the end of the last.",
    "cos_h": "[1, ≥ img_height, 1, width] bf16|fp16|fp32: cosines for the patch rows.",
    "sin_h": "sines, like `cos_h`.",
    "cos_w": "[1, ≥ img_width, 1, width]: cosines for the patch columns.",
    "sin_w": "sines, like `cos_w`.",
    "img_height": "rows of patches.",
    "img_width": "columns of patches.",
    "rotate_style": "0: the pairs are elements i and i + rotary/2 (NeoX); 1: elements 2i and 2i + 1 (GPT-J).",
    "reuse_freqs_front_part": "True: a table row has a value per pair; False: per rotated element.",
    "nope_first": "the rotated part is the head's last, not its first; all of it where `width` covers the head.",
    "transpose_output": "True: the result lies in memory as [b, s, heads, head_dim].",
    "backend": '"hip", "triton" or "torch" instead of the automatic choice.',
}


def public(name: str, names: Sequence[str], run: Callable[[Sequence[Any], str | None], Any], summary: str,
           returns: str) -> Callable:
    """The function `name`, with these parameters by position or keyword and `backend`; `run` gets them in order."""
    count = len(names)

    def function(*args: Any, backend: str | None = None, **named: Any) -> Any:
        if named or len(args) != count:
            args = _in_order(name, names, args, named)
        return run(args, backend)

    kinds = {"rotate_style": "int", "img_height": "int", "img_width": "int", "reuse_freqs_front_part": "bool",
             "nope_first": "bool", "transpose_output": "bool"}
    parameters = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kinds.get(each, "Tensor"),
                                    default=False if each == "transpose_output" else inspect.Parameter.empty)
                  for each in names]
    parameters.append(inspect.Parameter("backend", inspect.Parameter.KEYWORD_ONLY, default=None,
                                        annotation="str | None"))
    is_two = "_2c_" in name
    function.__signature__ = inspect.Signature(
        parameters, return_annotation="tuple[Tensor, Tensor]" if is_two else "Tensor")
    function.__name__ = function.__qualname__ = name
    function.__module__ = "aiter_like"
    arguments = "\n".join(f"    {each}: {_ABOUT[each]}" for each in (*names, "backend"))
    function.__doc__ = _TEXT.format(summary=summary, arguments=arguments, returns=returns, name=name)
    return function


_TEXT = """{summary}

`first' = first · cos - second · sin`, `second' = second · cos + first · sin` for each pair of a head's rotated part;
the backward functions multiply by the transposed matrix.

Args:
{arguments}

Returns:
    {returns}

Raises:
    TypeError: an argument is of another kind or dtype.
    ValueError: shapes, devices, layout or flags do not fit.
    UnsupportedError: the backend asked for cannot serve the call; the reason is in the message.

Notes:
    Rotated in fp32, rounded to nearest even once; the rest of a head is copied bit for bit; deterministic; can be
    captured in a graph. Only "torch" has a derivative: an input that requires grad selects it.

Source: Su et al., RoFormer (2021); AITER's `{name}`.
"""


def _in_order(name: str, names: Sequence[str], args: Sequence[Any], named: dict[str, Any]) -> list[Any]:
    """The values of a call's parameters; `transpose_output` may be left out."""
    if len(args) > len(names):
        raise TypeError(f"{name}: takes {len(names)} arguments by position, got {len(args)}")
    values = list(args)
    for each in names[len(args):]:
        if each not in named and each != "transpose_output":
            raise TypeError(f"{name}: {each} is missing")
        values.append(named.get(each, False))
    unknown = [each for each in named if each not in names[len(args):]]
    if unknown:
        raise TypeError(f"{name}: {unknown[0]} is no parameter, or given twice")
    return values


def _functions(stem: str, tables: Sequence[str], summary: str, *, is_two: bool = False) -> tuple[Callable, ...]:
    """The functions _fwd, _fwd_inplace, _bwd and _bwd_inplace of one way to find a token's angles."""
    made = []
    for is_backward in (False, True):
        for is_in_place in (False, True):
            tensors = ("output_grads" if is_backward else "input",)
            if is_two:
                tensors = (f"{tensors[0]}_x", f"{tensors[0]}_y")
            name = f"{stem}_{'bwd' if is_backward else 'fwd'}{'_inplace' if is_in_place else ''}"
            names = [*tensors, *tables, "rotate_style", "reuse_freqs_front_part", "nope_first"]
            if not is_in_place and "cu_seqlens" not in tables:
                names.append("transpose_output")
            what = "The gradient of rotary position embedding" if is_backward else "Rotary position embedding"
            where = ", in place" if is_in_place else ""
            result = f"{'The two tensors' if is_two else 'The tensor'}{', which are written' if is_in_place else ''}."
            made.append(public(name, names, _runner(name, tensors, tables, is_backward, is_in_place),
                               f"{what} {summary}{where}.", result))
    return tuple(made)


def _runner(name: str, names: Sequence[str], tables: Sequence[str], is_backward: bool, is_in_place: bool) -> Callable:
    count, is_packed = len(names), "cu_seqlens" in tables
    first_flag, rank = count + len(tables), 3 if is_packed else 4

    def run(args: Sequence[Any], backend: str | None) -> Any:
        tensors, found, flags = args[:count], args[count:first_flag], args[first_flag:first_flag + 3]
        for argument, tensor in zip(names, tensors):
            has_rank(name, argument, tensor, rank)
        outs = tensors if is_in_place else [_empty(name, x, len(args) > first_flag + 3 and args[-1]) for x in tensors]
        cos, sin, positions, offsets = (found[1], None, found[0], None) if is_packed else (*found, *(None,) * 3)[:4]
        if not is_packed and len(found) > 2:
            has_rank(name, "positions", positions, 2)
        second = (outs[1], tensors[1]) if count == 2 else (None, None)
        _rope(outs[0], second[0], tensors[0], second[1], cos, sin, positions, offsets, *flags, is_backward,
              backend=backend)
        return tuple(outs) if count == 2 else outs[0]

    return run


def has_rank(op: str, name: str, value: Any, rank: int) -> None:
    """`value` is a tensor of that many dimensions; the operator checks the rest, which dynamo cannot trace."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, got {type(value).__name__}")
    if value.ndim != rank:
        raise ValueError(f"{op}: {name} must have {rank} dimensions, got shape {tuple(value.shape)}")


def _empty(name: str, x: Tensor, is_transposed: bool) -> Tensor:
    check.flag(name, "transpose_output", is_transposed)
    if not is_transposed:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    s, b, heads, head_dim = x.shape
    return torch.empty((b, s, heads, head_dim), dtype=x.dtype, device=x.device).transpose(0, 1)


rope_fwd, rope_fwd_inplace, rope_bwd, rope_bwd_inplace = _functions("rope", ("freqs",), "by angles")
rope_2c_fwd, rope_2c_fwd_inplace, rope_2c_bwd, rope_2c_bwd_inplace = _functions(
    "rope_2c", ("freqs",), "of two tensors by angles", is_two=True)
rope_cached_fwd, rope_cached_fwd_inplace, rope_cached_bwd, rope_cached_bwd_inplace = _functions(
    "rope_cached", ("cos", "sin"), "by cosines and sines")
rope_cached_2c_fwd, rope_cached_2c_fwd_inplace, rope_cached_2c_bwd, rope_cached_2c_bwd_inplace = _functions(
    "rope_cached_2c", ("cos", "sin"), "of two tensors by cosines and sines", is_two=True)
(rope_cached_positions_fwd, rope_cached_positions_fwd_inplace, rope_cached_positions_bwd,
 rope_cached_positions_bwd_inplace) = _functions(
    "rope_cached_positions", ("cos", "sin", "positions"), "of tokens at given positions")
(rope_cached_positions_2c_fwd, rope_cached_positions_2c_fwd_inplace, rope_cached_positions_2c_bwd,
 rope_cached_positions_2c_bwd_inplace) = _functions(
    "rope_cached_positions_2c", ("cos", "sin", "positions"), "of two tensors at given positions", is_two=True)
(rope_cached_positions_offsets_fwd, rope_cached_positions_offsets_fwd_inplace, rope_cached_positions_offsets_bwd,
 rope_cached_positions_offsets_bwd_inplace) = _functions(
    "rope_cached_positions_offsets", ("cos", "sin", "positions", "offsets"), "of tokens at positions plus offsets")
(rope_cached_positions_offsets_2c_fwd, rope_cached_positions_offsets_2c_fwd_inplace,
 rope_cached_positions_offsets_2c_bwd, rope_cached_positions_offsets_2c_bwd_inplace) = _functions(
    "rope_cached_positions_offsets_2c", ("cos", "sin", "positions", "offsets"),
    "of two tensors at positions plus offsets", is_two=True)
rope_thd_fwd, rope_thd_fwd_inplace, rope_thd_bwd, rope_thd_bwd_inplace = _functions(
    "rope_thd", ("cu_seqlens", "freqs"), "of packed sequences [tokens, heads, head_dim]")

torch_ops.register(_rope, rope_cached_positions_2c_fwd)
