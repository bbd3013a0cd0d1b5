# SPDX-License-Identifier: MIT
"""Smooth-quantisation per expert. Kernels: csrc/quant/moe_smoothquant.hip, ops/quant/triton/moe_smoothquant.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like import check, dtypes
from aiter_like.device import Target, target_of
from aiter_like.dispatch import SKIP, Backend, Op
from aiter_like.dispatch.tuning import Tuning
from aiter_like.jit import Instance, compile_ops
from aiter_like.ops.common import elements, quant_rule, rows, tune_shapes

__all__ = ["moe_smoothquant_fwd"]

_OP = "moe_smoothquant"


class MoeSmoothquantCall(NamedTuple):
    """One call of moe_smoothquant.

    Attributes:
        out: [topk · tokens, K], written; fp8 or int8; row slot · tokens + token.
        scale: [topk · tokens, 1] or [topk · tokens] fp32, written; the public function calls it `y_scale`.
        input: [tokens, K].
        x_scale: [num_experts, K] fp32: each expert's factor per column.
        topk_ids: [tokens, topk] int32; an id that is no expert makes a row of zeros.
    """

    out: Tensor
    scale: Tensor
    input: Tensor
    x_scale: Tensor
    topk_ids: Tensor


def moe_smoothquant_ref(call: MoeSmoothquantCall) -> None:
    """The formula, and the rule of ops/common/quant_rule.py."""
    factors, ids = call.x_scale, call.topk_ids.t().flatten().long()  # [topk · tokens]
    is_expert = ((ids >= 0) & (ids < factors.shape[0])).unsqueeze(-1)
    smoothed = call.input.float().repeat(call.topk_ids.shape[1], 1) * factors[ids.clamp(0, factors.shape[0] - 1)]
    quant_rule.store_quantised(call.out, call.scale, torch.where(is_expert, smoothed, 0.0), 0)


def _instance(call: MoeSmoothquantCall, *, lanes: int | None = None) -> Instance:
    input, out_dtype = call.input, call.out.dtype
    row_layout = rows.row_layout(target_of(input.device), input, lanes=lanes, takes_unaligned=True)
    return row_layout.instance(f"{dtypes.name(input.dtype)}_{elements.short(out_dtype)}",
                           {"ELEMENT": elements.CPP[input.dtype], "OUT": elements.CPP[out_dtype]})


@compile_ops("quant/moe_smoothquant.hip", gen_func=_instance)
def _moe_smoothquant_hip(call: MoeSmoothquantCall) -> None: ...


def _check(call: MoeSmoothquantCall) -> object:
    check.tensor(_OP, "input", call.input, rank=2, dtypes=elements.FLOATS)
    (tokens, columns), device = call.input.shape, call.input.device
    check.tensor(_OP, "topk_ids", call.topk_ids, dtypes=(torch.int32,), shape=(tokens, None), device=device)
    check.tensor(_OP, "x_scale", call.x_scale, dtypes=(torch.float32,), shape=(None, columns), device=device)
    count = tokens * call.topk_ids.shape[1]
    check.tensor(_OP, "out", call.out, dtypes=quant_rule.DTYPES, shape=(count, columns), device=device)
    check.tensor(_OP, "y_scale", call.scale, dtypes=(torch.float32,), device=device, last_contiguous=False)
    if tuple(call.scale.shape) not in ((count, 1), (count,)):
        raise ValueError(f"{_OP}: y_scale must have shape ({count}, 1), got {tuple(call.scale.shape)}")
    for name, tensor in (("topk_ids", call.topk_ids), ("y_scale", call.scale)):
        if not tensor.is_contiguous():
            raise ValueError(f"{_OP}: {name} must be dense in memory, got strides {tensor.stride()}")
    if call.x_scale.shape[0] == 0:
        raise ValueError(f"{_OP}: x_scale must have at least one expert, got shape {tuple(call.x_scale.shape)}")
    return SKIP if call.out.numel() == 0 else None


def _refusal(target: Target, call: MoeSmoothquantCall) -> str | None:
    if call.topk_ids.shape[1] >= 2**16:
        return f"at most {2**16 - 1} experts per token, got {call.topk_ids.shape[1]}"
    return quant_rule.refusal(target, call.out.dtype) or rows.refusal(input=call.input, out=call.out,
                                                                      x_scale=call.x_scale)


def _tune_key(call: MoeSmoothquantCall) -> dict[str, int | str]:
    tokens, columns = call.input.shape
    return {"tokens": tokens, "columns": columns, "topk": call.topk_ids.shape[1],
            "num_experts": call.x_scale.shape[0], "dtype": dtypes.name(call.input.dtype),
            "out_dtype": dtypes.name(call.out.dtype)}


def _tune_case(key: Mapping[str, Any], device: torch.device, seed: int) -> MoeSmoothquantCall:
    tokens, columns, topk = key["tokens"], key["columns"], key["topk"]
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(tokens, columns, generator=generator, device=device, dtype=dtypes.DTYPES[key["dtype"]])
    factors = torch.rand(key["num_experts"], columns, generator=generator, device=device)
    ids = torch.randint(0, key["num_experts"], (tokens, topk), generator=generator, device=device, dtype=torch.int32)
    out = torch.empty(topk * tokens, columns, dtype=dtypes.DTYPES[key["out_dtype"]], device=device)
    return MoeSmoothquantCall(out, torch.empty(topk * tokens, 1, device=device), x, factors, ids)


def _tune_shapes(model: Any, tp: int, tokens: int) -> Iterator[dict[str, Any]]:
    """What the experts' first product reads."""
    if model.num_experts:
        yield {"tokens": tokens, "columns": model.hidden_size, "topk": model.experts_per_token,
               "num_experts": model.num_experts, "dtype": model.dtype, "out_dtype": "i8"}


def _hip_space(target: Target, call: MoeSmoothquantCall) -> list[dict[str, int]]:
    return rows.lane_space(target, call.input)


def _cases(device: torch.device) -> dict[str, MoeSmoothquantCall]:
    """A slot of no expert among others, in int8 and fp8."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 1024, generator=generator).to(device, torch.bfloat16)
    ids = torch.tensor([[0, 3], [1, -1], [2, 2], [3, 1], [0, 2]], dtype=torch.int32, device=device)
    factors = torch.rand(4, 1024, generator=generator).to(device)
    out = torch.empty(10, 1024, dtype=torch.int8, device=device)
    call = MoeSmoothquantCall(out, torch.empty(10, 1, device=device), x, factors, ids)
    return {"int8": call, "fp8": call._replace(out=torch.empty_like(out, dtype=dtypes.fp8_of(target_of(device).arch)))}


_moe_smoothquant = Op(
    _OP, call=MoeSmoothquantCall, reference=moe_smoothquant_ref, check=_check, tune_key=_tune_key,
    tune_fields=("tokens", "columns", "topk", "num_experts", "dtype", "out_dtype"), round_field="tokens",
    writes=("out", "scale"), cases=_cases, tuning=Tuning(_tune_case, shapes=_tune_shapes),
    backends=(Backend("hip", _moe_smoothquant_hip, refusal=_refusal, space=_hip_space),
              Backend("triton", "ops.quant.triton.moe_smoothquant:moe_smoothquant", refusal=_refusal,
                      space=tune_shapes.row_space),
              Backend("torch", moe_smoothquant_ref)))


def moe_smoothquant_fwd(out: Tensor, input: Tensor, x_scale: Tensor, topk_ids: Tensor, y_scale: Tensor, *,
                        backend: str | None = None) -> None:
    """Quantises each token once per expert that it goes to, smoothed with that expert's factors.

    Row `slot · tokens + token` of `out · y_scale` is `input[token] · x_scale[topk_ids[token, slot]]`.

    Args:
        out: [topk · tokens, K], written; the hardware's fp8, or int8; evenly spaced rows.
        input: [tokens, K] bf16|fp16|fp32, last dimension contiguous.
        x_scale: [num_experts, K] fp32: each expert's factor per column.
        topk_ids: [tokens, topk] int32, contiguous. An id that is no expert (-1: not on this GPU) makes a row of zeros.
        y_scale: [topk · tokens, 1] fp32, contiguous, written: the rows' scales.
        backend: "hip", "triton" or "torch" instead of the automatic choice.

    Returns:
        Nothing: `out` and `y_scale` are written.

    Raises:
        TypeError: an argument is of another kind or dtype.
        ValueError: shapes, devices or layout do not fit.
        UnsupportedError: the backend asked for cannot serve the call, or `out` is the fp8 of other hardware.

    Notes:
        scale = max(amax, 2^-110) / largest (fp8 240 or 448, int8 127), q = round(x · (1 / scale)) to nearest even,
        saturated. A NaN makes its scale and fp8 elements NaN, int8 0. Deterministic; can be captured in a graph.

    Source: Xiao et al., SmoothQuant (2023); AITER's `moe_smoothquant_fwd`.
    """
    _moe_smoothquant.run(out, y_scale, input, x_scale, topk_ids=topk_ids, backend=backend)
