# SPDX-License-Identifier: MIT
"""Flattening of heads and quantisation by group. Kernels: csrc/quant/flatten_group_quant.hip,
ops/quant/triton/flatten_group_quant.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op, torch_ops
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes
from aiter_like.ops.common.quant_rule import group_major

__all__ = ["fused_flatten_fp8_group_quant"]

_OP = "flatten_group_quant"


def flatten_group_quant_ref(out: Tensor, scale: Tensor, input: Tensor, group_size: int) -> None:
    """The rule of scales.py in torch."""
    x = input.flatten(1).float()
    own = quant_rule.row_scales(x, out.dtype, group_size)
    scale.copy_(own)
    out.copy_(quant_rule.quantised(x, own, out.dtype))


def _instance(out: Tensor, scale: Tensor, input: Tensor, group_size: int, *, lanes: int | None = None) -> Instance:
    name = f"{dtypes.name(input.dtype)}_{elements.short(out.dtype)}_g{group_size}"
    return rows.layout(target_of(input.device), input, lanes=lanes, takes_unaligned=True).instance(
        name, {"ELEMENT": elements.CPP[input.dtype], "OUT": elements.CPP[out.dtype], "GROUP": group_size})


@compile_ops("quant/flatten_group_quant.hip", gen_func=_instance, prebuild=list)
def _flatten_group_quant_hip(out: Tensor, scale: Tensor, input: Tensor, group_size: int) -> None: ...


def _check(out: Tensor, scale: Tensor, input: Tensor, group_size: int) -> object:
    check.tensor(_OP, "input", input, rank=3, dtypes=elements.FLOATS)
    tokens, heads, columns = input.shape
    check_groups(columns, group_size)
    check.tensor(_OP, "out", out, dtypes=quant_rule.DTYPES, shape=(tokens, heads * columns), device=input.device)
    check.tensor(_OP, "scale", scale, dtypes=(torch.float32,), shape=(tokens, heads * columns // group_size),
                 device=input.device, last_contiguous=False)
    return SKIP if input.numel() == 0 else None


def check_groups(columns: int, group_size: int) -> None:
    """`group_size` is one that the kernels take, and divides a head's row.

    Raises:
        ValueError: it is not.
    """
    check.choice(_OP, "group_size", group_size, quant_rule.GROUPS)
    quant_rule.check_group(_OP, columns, group_size)


def _refusal(target: Target, out: Tensor, scale: Tensor, input: Tensor, group_size: int) -> str | None:
    if input.shape[0] * input.shape[1] > rows.MAX_ROWS:
        return f"at most {rows.MAX_ROWS} heads of all tokens, got {input.shape[0] * input.shape[1]}"
    return quant_rule.refusal(target, out.dtype) or rows.refusal(out=out)


def _tune_key(out: Tensor, scale: Tensor, input: Tensor, group_size: int) -> dict[str, int | str]:
    tokens, heads, columns = input.shape
    return {"tokens": tokens, "heads": heads, "columns": columns, "group_size": group_size,
            "dtype": dtypes.name(input.dtype), "out_dtype": dtypes.name(out.dtype)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> tuple:
    """Heads outermost in memory, as a batched product leaves them."""
    tokens, heads, columns = key["tokens"], key["heads"], key["columns"]
    x = torch.randn(heads, tokens, columns, generator=torch.Generator(device).manual_seed(seed), device=device,
                    dtype=dtypes.DTYPES[key["dtype"]]).transpose(0, 1)
    out = torch.empty(tokens, heads * columns, dtype=dtypes.DTYPES[key["out_dtype"]], device=device)
    return out, torch.empty(tokens, heads * columns // key["group_size"], device=device), x, key["group_size"]


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """Latent attention's results, a GPU's own heads, on their way into the output projection."""
    if model.kv_lora_rank:
        yield {"tokens": tokens, "heads": model.num_heads // tp, "columns": model.v_head_dim, "group_size": 128,
               "dtype": model.dtype, "out_dtype": tune_shapes.fp8_name()}


def _hip_space(target: Target, out: Tensor, scale: Tensor, input: Tensor, group_size: int) -> list[dict[str, int]]:
    return rows.lane_space(target, input, group_size=group_size)


def _triton_space(*_: object) -> Iterator[dict[str, int]]:
    return ({"num_warps": count} for count in (1, 2, 4, 8))


def _self_check(device: torch.device) -> tuple:
    x = torch.randn(3, 5, 256, generator=torch.Generator().manual_seed(0)).to(device, torch.bfloat16).transpose(0, 1)
    return torch.empty(5, 768, dtype=torch.int8, device=device), torch.empty(5, 6, device=device), x, 128


_flatten_group_quant = Op(
    _OP, reference=flatten_group_quant_ref, check=_check, tune_key=_tune_key,
    tune_fields=("tokens", "heads", "columns", "group_size", "dtype", "out_dtype"), round_field="tokens",
    writes=("out", "scale"), self_check=_self_check, tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _flatten_group_quant_hip, refusal=_refusal, space=_hip_space),
              Backend("triton", "ops.quant.triton.flatten_group_quant:flatten_group_quant",
                      refusal=_refusal, space=_triton_space),
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
    check_groups(columns, group_size)
    dtype = dtypes.fp8_of(target_of(x.device).arch) if dtype_quant is None else dtype_quant
    check.choice(_OP, "dtype_quant", dtype, quant_rule.DTYPES)
    out = torch.empty((tokens, heads * columns), dtype=dtype, device=x.device)
    scale = torch.empty((tokens, heads * columns // group_size), dtype=torch.float32, device=x.device)
    scale = group_major(scale, transpose_scale)
    _flatten_group_quant(out, scale, x, group_size, backend=backend)
    return out, scale


torch_ops.register(_flatten_group_quant, fused_flatten_fp8_group_quant)
