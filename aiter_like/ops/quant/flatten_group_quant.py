# SPDX-License-Identifier: MIT
"""Flattening of heads and quantisation by group. Kernels: csrc/quant/flatten_group_quant.hip,
ops/quant/triton/flatten_group_quant.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes

__all__ = ["fused_flatten_fp8_group_quant"]

_OP = "flatten_group_quant"


class FlattenGroupQuantCall(NamedTuple):
    """One call of flatten_group_quant.

    Attributes:
        out: [tokens, heads · columns], written; fp8 or int8.
        scale: [tokens, heads · columns / group_size] fp32 of any strides, written.
        input: [tokens, heads, columns], last dimension contiguous, any other strides.
        group_size: columns with a scale of their own.
    """

    out: Tensor
    scale: Tensor
    input: Tensor
    group_size: int = 128


def flatten_group_quant_ref(call: FlattenGroupQuantCall) -> None:
    """The rule of ops/common/quant_rule.py."""
    quant_rule.store_quantised(call.out, call.scale, call.input.flatten(1).float(), call.group_size)


def _instance(call: FlattenGroupQuantCall, *, lanes: int | None = None) -> Instance:
    input, out_dtype = call.input, call.out.dtype
    row_layout = rows.row_layout(target_of(input.device), input, lanes=lanes, takes_unaligned=True)
    return row_layout.instance(f"{dtypes.name(input.dtype)}_{elements.short(out_dtype)}_g{call.group_size}", {
        "ELEMENT": elements.CPP[input.dtype], "OUT": elements.CPP[out_dtype], "GROUP": call.group_size})


@compile_ops("quant/flatten_group_quant.hip", gen_func=_instance)
def _flatten_group_quant_hip(call: FlattenGroupQuantCall) -> None: ...


def _check(call: FlattenGroupQuantCall) -> object:
    check.tensor(_OP, "input", call.input, rank=3, dtypes=elements.FLOATS)
    (tokens, heads, columns), device = call.input.shape, call.input.device
    _check_groups(columns, call.group_size)
    check.tensor(_OP, "out", call.out, dtypes=quant_rule.DTYPES, shape=(tokens, heads * columns), device=device)
    check.tensor(_OP, "scale", call.scale, dtypes=(torch.float32,),
                 shape=(tokens, heads * columns // call.group_size), device=device, last_contiguous=False)
    return SKIP if call.input.numel() == 0 else None


def _check_groups(columns: int, group_size: int) -> None:
    """`group_size` is one that the kernels take, and divides a head's row.

    Raises:
        ValueError: it is not.
    """
    check.choice(_OP, "group_size", group_size, quant_rule.GROUPS)
    quant_rule.check_group(_OP, columns, group_size)


def _refusal(target: Target, call: FlattenGroupQuantCall) -> str | None:
    count = call.input.shape[0] * call.input.shape[1]
    if count > rows.MAX_ROWS:
        return f"at most {rows.MAX_ROWS} heads of all tokens, got {count}"
    return quant_rule.refusal(target, call.out.dtype) or rows.refusal(out=call.out)


def _tune_key(call: FlattenGroupQuantCall) -> dict[str, int | str]:
    tokens, heads, columns = call.input.shape
    return {"tokens": tokens, "heads": heads, "columns": columns, "group_size": call.group_size,
            "dtype": dtypes.name(call.input.dtype), "out_dtype": dtypes.name(call.out.dtype)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> FlattenGroupQuantCall:
    """Heads outermost in memory, as a batched product leaves them."""
    tokens, heads, columns, group_size = key["tokens"], key["heads"], key["columns"], key["group_size"]
    x = tune_shapes.normal(device, seed, key["dtype"])(heads, tokens, columns).transpose(0, 1)
    out = torch.empty(tokens, heads * columns, dtype=dtypes.DTYPES[key["out_dtype"]], device=device)
    return FlattenGroupQuantCall(out, torch.empty(tokens, heads * columns // group_size, device=device), x, group_size)


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """The results of latent attention, of a GPU's own heads, on their way into the output projection."""
    if model.kv_lora_rank:
        yield {"tokens": tokens, "heads": model.num_heads // tp, "columns": model.v_head_dim, "group_size": 128,
               "dtype": model.dtype, "out_dtype": tune_shapes.fp8_name()}


def _hip_space(target: Target, call: FlattenGroupQuantCall) -> list[dict[str, int]]:
    return rows.lane_space(target, call.input, group_size=call.group_size)


def _triton_space(*_: object) -> Iterator[dict[str, int]]:
    return ({"num_warps": count} for count in (1, 2, 4, 8))


def _cases(device: torch.device) -> dict[str, FlattenGroupQuantCall]:
    """Heads outermost in memory, in int8; fp8 by smaller groups."""
    x = torch.randn(3, 5, 256, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16).transpose(0, 1)
    call = FlattenGroupQuantCall(torch.empty(5, 768, dtype=torch.int8, device=device), torch.empty(5, 6, device=device),
                                 x)
    fp8 = torch.empty(5, 768, dtype=dtypes.fp8_of(target_of(device).arch), device=device)
    return {"int8": call, "fp8": FlattenGroupQuantCall(fp8, torch.empty(5, 24, device=device), x, 32)}


_flatten_group_quant = Op(
    _OP, call=FlattenGroupQuantCall, reference=flatten_group_quant_ref, check=_check, tune_key=_tune_key,
    tune_fields=("tokens", "heads", "columns", "group_size", "dtype", "out_dtype"), round_field="tokens",
    writes=("out", "scale"), cases=_cases, tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _flatten_group_quant_hip, refusal=_refusal, space=_hip_space),
              Backend("triton", "ops.quant.triton.flatten_group_quant:flatten_group_quant", refusal=_refusal,
                      space=_triton_space),
              Backend("torch", flatten_group_quant_ref)))


def fused_flatten_fp8_group_quant(x: Tensor, group_size: int, dtype_quant: torch.dtype | None = None,
                                  transpose_scale: bool = False, *,
                                  backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Flattens the heads of each token and quantises by group of columns.

    `q · scale` is x.flatten(1) up to the rounding of q.

    Args:
        x: [tokens, heads, columns] bf16|fp16|fp32, last dimension contiguous, any other strides, as those of a batched
            product with heads outermost in memory.
        group_size: 32, 64 or 128, which divides columns.
        dtype_quant: the hardware's fp8, or int8; None: the hardware's fp8.
        transpose_scale: the scales have strides (1, tokens): groups outermost in memory.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        q [tokens, heads · columns] and the scales [tokens, heads · columns / group_size] fp32.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shape, layout or group do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `dtype_quant` is the fp8 of other hardware.

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127), q = round(x · (1 / scale)) to nearest even,
        saturated. A NaN makes its scale and fp8 elements NaN, int8 0. Deterministic; can be captured in a graph.

    Source: AITER's `fused_flatten_fp8_group_quant`.
    """
    check.tensor(_OP, "x", x, rank=3, last_contiguous=False)
    tokens, heads, columns = x.shape
    _check_groups(columns, group_size)
    dtype = dtypes.fp8_of(target_of(x.device).arch) if dtype_quant is None else dtype_quant
    check.choice(_OP, "dtype_quant", dtype, quant_rule.DTYPES)
    out = x.new_empty(tokens, heads * columns, dtype=dtype)
    scale = x.new_empty(tokens, heads * columns // group_size, dtype=torch.float32)
    scale = quant_rule.group_major(scale, transpose_scale)
    _flatten_group_quant.run(out, scale, x, group_size, backend=backend)
    return out, scale


torch_ops.register(_flatten_group_quant, fused_flatten_fp8_group_quant)
