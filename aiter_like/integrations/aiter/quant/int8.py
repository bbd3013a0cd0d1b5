# SPDX-License-Identifier: MIT
"""AITER's quantisers whose int8 results are cut off towards zero, as its HIP and Triton kernels and its functions in
torch convert: on `truncated_quant`, or in torch. fp8 goes to ours of the same names, which round int8 to nearest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.enums import QuantType
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common import elements

_BLOCKS = {QuantType.per_1x128: (1, 128), QuantType.per_128x128: (128, 128), QuantType.per_256x128: (256, 128),
           QuantType.per_1024x128: (1024, 128)}


@aiter("aiter aiter.ops.quant", callers="V s")
def static_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor) -> None:
    """`aiter_like.static_per_tensor_quant`; int8 towards zero, within −128 … 127."""
    _by_tensor("static_per_tensor_quant", ("out", "input", "scale"), out, input, scale, False)


@aiter("aiter aiter.ops.quant", callers="V s")
def dynamic_per_tensor_quant(out: Tensor, input: Tensor, scale: Tensor) -> None:
    """`aiter_like.dynamic_per_tensor_quant`; int8 towards zero."""
    _by_tensor("dynamic_per_tensor_quant", ("out", "input", "scale"), out, input, scale, True)


@aiter("aiter aiter.ops.quant", callers="V s")
def dynamic_per_token_scaled_quant(out: Tensor, input: Tensor, scales: Tensor, scale_ub: Tensor | None = None,
                                   shuffle_scale: bool = False, num_rows: Tensor | None = None,
                                   num_rows_factor: int = 1) -> None:
    """`aiter_like.dynamic_per_token_scaled_quant`; int8 with a scale per row towards zero, by groups to nearest."""
    rows = input.shape[:-1].numel() if isinstance(input, Tensor) and input.ndim else 0
    if rows and isinstance(scales, Tensor) and scales.numel() != rows or not _is_int8(out):
        aiter_like.dynamic_per_token_scaled_quant(out, input, scales, scale_ub, shuffle_scale, num_rows,
                                                  num_rows_factor)
        return
    _by_row("dynamic_per_token_scaled_quant", ("out", "input", "scales"), out, input, scales, scale_ub, num_rows,
            num_rows_factor)


@aiter("aiter aiter.ops.quant", callers="V s")
def per_token_quant_hip(x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8,
                        num_rows: Tensor | None = None, num_rows_factor: int = 1) -> tuple[Tensor, Tensor]:
    """`aiter_like.per_token_quant_hip`; int8 towards zero."""
    op = "per_token_quant_hip"
    if quant_dtype != torch.int8 or scale is not None:
        return aiter_like.per_token_quant_hip(x, scale, quant_dtype, num_rows, num_rows_factor)
    out, own = _results(op, x), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    _by_row(op, ("out", "x", "scale"), out, x, own, None, num_rows, num_rows_factor)
    return out, own


@aiter("aiter aiter.ops.quant", callers="V s")
def per_tensor_quant_hip(x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8,
                         num_rows: Tensor | None = None, num_rows_factor: int = 1) -> tuple[Tensor, Tensor]:
    """`aiter_like.per_tensor_quant_hip`; int8 towards zero. AITER has no num_rows with one scale."""
    op = "per_tensor_quant_hip"
    if quant_dtype != torch.int8 or num_rows is not None:
        return aiter_like.per_tensor_quant_hip(x, scale, quant_dtype, num_rows, num_rows_factor)
    out = _results(op, x)
    used = x.new_empty(1, dtype=torch.float32) if scale is None else scale
    _by_tensor(op, ("out", "x", "scale"), out, x, used, scale is None)
    return out, used.view(1)


@aiter("aiter aiter.ops.quant")
def per_token_quant_triton(x: Tensor, scale: Tensor | None = None,
                           quant_dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """`per_token_quant_hip`, of which AITER's Triton kernel has no form that is given the scales.

    Raises:
        ValueError: `scale` is given.
    """
    if scale is not None:
        raise ValueError(f"per_token_quant_triton: scale must be None, got {type(scale).__name__}")
    return per_token_quant_hip(x, None, quant_dtype)


@aiter("aiter aiter.ops.quant")
def per_tensor_quant_triton(x: Tensor, scale: Tensor | None = None,
                            quant_dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """`per_tensor_quant_hip`."""
    return per_tensor_quant_hip(x, scale, quant_dtype)


@aiter("aiter aiter.ops.quant", callers="V s", stays=True)
def get_hip_quant(qType: QuantType) -> Callable:
    """`aiter_like.get_hip_quant`, with the functions here."""
    own = {QuantType.per_Token: per_token_quant_hip, QuantType.per_Tensor: per_tensor_quant_hip}
    found = aiter_like.get_hip_quant(qType)
    return own.get(QuantType(getattr(qType, "value", qType)), found)


@aiter("aiter aiter.ops.quant", callers="V s", stays=True)
def get_triton_quant(qType: QuantType) -> Callable:
    """`aiter_like.get_triton_quant`, whose functions of rows and tensors cut int8 off towards zero, too."""
    ours = {QuantType.per_Token: per_token_quant_hip, QuantType.per_Tensor: per_tensor_quant_hip}
    found = aiter_like.get_triton_quant(qType)
    own = ours.get(QuantType(getattr(qType, "value", qType)))
    if own is None:
        return found

    @functools.wraps(own)
    def quantise(x: Tensor, scale: Tensor | None = None, quant_dtype: torch.dtype = torch.int8,
                 **options: object) -> tuple[Tensor, Tensor]:
        function = own if quant_dtype == torch.int8 else found
        return function(x, scale, quant_dtype=quant_dtype, **options)

    return quantise


@aiter("aiter aiter.ops.quant")
def smoothquant_fwd(out: Tensor, input: Tensor, x_scale: Tensor, y_scale: Tensor) -> None:
    """`aiter_like.smoothquant_fwd`; int8 towards zero."""
    if not _is_int8(out):
        aiter_like.smoothquant_fwd(out, input, x_scale, y_scale)
        return
    op = "smoothquant_fwd"
    check.tensor(op, "input", input, dtypes=elements.FLOATS)
    check.tensor(op, "x_scale", x_scale, dtypes=(torch.float32,), device=input.device)
    if input.ndim == 0 or x_scale.numel() != input.shape[-1] or x_scale.shape[-1] != input.shape[-1]:
        raise ValueError(f"{op}: x_scale must have an element for each column of input, got shape "
                         f"{tuple(x_scale.shape)} for {tuple(input.shape)}")
    _check_tensors(op, ("out", "input", "y_scale"), out, input, y_scale, input.shape[:-1].numel())
    aiter_like.truncated_quant(out, input * x_scale.view(-1), y_scale)


def moe_smoothquant_fwd(out: Tensor, input: Tensor, x_scale: Tensor, topk_ids: Tensor, y_scale: Tensor) -> None:
    """`aiter_like.moe_smoothquant_fwd`; int8 towards zero, slot after slot."""
    if not _is_int8(out):
        aiter_like.moe_smoothquant_fwd(out, input, x_scale, topk_ids, y_scale)
        return
    op = "moe_smoothquant_fwd"
    check.tensor(op, "input", input, rank=2, dtypes=elements.FLOATS)
    tokens, columns = input.shape
    check.tensor(op, "x_scale", x_scale, shape=(None, columns), dtypes=(torch.float32,), device=input.device)
    check.tensor(op, "topk_ids", topk_ids, shape=(tokens, None), dtypes=(torch.int32,), device=input.device,
                 last_contiguous=False)
    slots, experts = topk_ids.shape[1], len(x_scale)
    check.tensor(op, "out", out, shape=(slots * tokens, columns))
    check.tensor(op, "y_scale", y_scale, dtypes=(torch.float32,), device=input.device, last_contiguous=False)
    if not experts or y_scale.numel() != len(out) or not y_scale.is_contiguous():
        raise ValueError(f"{op}: y_scale must be contiguous with {len(out)} elements, and x_scale have an expert, got "
                         f"shapes {tuple(y_scale.shape)} and {tuple(x_scale.shape)}")
    results, scales = out.unflatten(0, (slots, tokens)), y_scale.view(slots, tokens)
    for slot, chosen in enumerate(topk_ids.long().unbind(1)):
        is_expert = (chosen >= 0) & (chosen < experts)
        rows = torch.where(is_expert[:, None], input * x_scale[chosen.clamp(0, experts - 1)], 0.0)
        aiter_like.truncated_quant(results[slot], rows, scales[slot])


@aiter("aiter aiter.ops.quant", stays=True)
def pertoken_quant(x: Tensor, scale: Tensor | None = None, x_scale: Tensor | None = None,
                   scale_dtype: torch.dtype = torch.float32, quant_dtype: torch.dtype = torch.int8,
                   dtypeMax: float | None = None) -> tuple[Tensor, Tensor]:
    """`aiter_like.pertoken_quant`; int8 is the quotient of x and scale, towards zero within −128 … 127."""
    if quant_dtype != torch.int8:
        return aiter_like.pertoken_quant(x, scale, x_scale, scale_dtype, quant_dtype, dtypeMax)
    check.floating("pertoken_quant", "scale_dtype", scale_dtype)
    _, own = aiter_like.pertoken_quant(x, scale, x_scale, torch.float32, quant_dtype, dtypeMax)
    wide = x.float() if x_scale is None else x.float() * x_scale
    return (wide / own).clamp(-128, 127).nan_to_num(0).to(torch.int8), own.to(scale_dtype)


@aiter("aiter aiter.ops.quant", stays=True)
def per_tensor_quant(x: Tensor, scale: Tensor | None = None, scale_dtype: torch.dtype = torch.float32,
                     quant_dtype: torch.dtype = torch.int8, dtypeMax: float | None = None) -> tuple[Tensor, Tensor]:
    """`aiter_like.per_tensor_quant`; int8 is the quotient of x and scale, towards zero within −128 … 127."""
    q, own = aiter_like.per_tensor_quant(x, scale, scale_dtype, quant_dtype, dtypeMax)
    if quant_dtype == torch.int8:
        given = None if scale is None else scale.reshape(1, 1)
        q = pertoken_quant(x.reshape(1, -1), given, None, scale_dtype, quant_dtype, dtypeMax)[0].view(x.shape)
    return q, own


@aiter("aiter aiter.ops.quant", callers="V s", stays=True)
def get_torch_quant(qType: QuantType) -> Callable:
    """`aiter_like.get_torch_quant`, with the functions here."""
    found, kind = aiter_like.get_torch_quant(qType), QuantType(getattr(qType, "value", qType))
    shape = _BLOCKS.get(kind)
    if shape is not None:
        return aiter_like.per_block_quant_wrapper(shape)(pertoken_quant)
    return {QuantType.per_Token: pertoken_quant, QuantType.per_Tensor: per_tensor_quant}.get(kind, found)


@aiter("aiter aiter.ops.cache")
def reshape_and_cache_with_block_quant(
        key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
        v_dequant_scales: Tensor, slot_mapping: Tensor, asm_layout: bool) -> None:
    """`aiter_like.reshape_and_cache_with_block_quant`; int8 towards zero."""
    aiter_like.reshape_and_cache_with_block_quant(key, value, key_cache, value_cache, k_dequant_scales,
                                                  v_dequant_scales, slot_mapping, asm_layout,
                                                  is_truncated=_is_int8(key_cache))


@aiter("aiter aiter.ops.cache")
def reshape_and_cache_with_block_quant_for_asm_pa(
        key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, k_dequant_scales: Tensor,
        v_dequant_scales: Tensor, slot_mapping: Tensor, asm_layout: bool, ori_block_size: int = 128) -> None:
    """`aiter_like.reshape_and_cache_with_block_quant_for_asm_pa`; int8 towards zero."""
    aiter_like.reshape_and_cache_with_block_quant_for_asm_pa(key, value, key_cache, value_cache, k_dequant_scales,
                                                             v_dequant_scales, slot_mapping, asm_layout, ori_block_size,
                                                             is_truncated=_is_int8(key_cache))


def _is_int8(out: object) -> bool:
    return isinstance(out, Tensor) and out.dtype == torch.int8


def _results(op: str, x: object) -> Tensor:
    check.tensor(op, "x", x, dtypes=elements.FLOATS)
    if x.ndim == 0:
        raise ValueError(f"{op}: x must have at least 1 dimension, got a scalar")
    return torch.empty(x.shape, dtype=torch.int8, device=x.device)


def _by_row(op: str, names: tuple[str, str, str], out: Tensor, input: Tensor, scale: Tensor,
            scale_ub: Tensor | None = None, num_rows: Tensor | None = None, num_rows_factor: int = 1) -> None:
    """With a scale per row, which is found."""
    if not _is_int8(out):
        aiter_like.dynamic_per_token_scaled_quant(out, input, scale, scale_ub, False, num_rows, num_rows_factor)
        return
    _check_tensors(op, names, out, input, scale, input.shape[:-1].numel() if isinstance(input, Tensor) else 0)
    aiter_like.truncated_quant(out, input, scale, True, scale_ub, num_rows, num_rows_factor)


def _by_tensor(op: str, names: tuple[str, str, str], out: Tensor, input: Tensor, scale: Tensor,
               is_dynamic: bool) -> None:
    """With one scale, which is given, or found by the quantiser that rounds."""
    function = aiter_like.dynamic_per_tensor_quant if is_dynamic else aiter_like.static_per_tensor_quant
    if not _is_int8(out):
        function(out, input, scale)
        return
    _check_tensors(op, names, out, input, scale, 1)
    if is_dynamic:
        function(out, input, scale)
    aiter_like.truncated_quant(out, input, scale.reshape(1), False)


def _check_tensors(op: str, names: tuple[str, str, str], out: Tensor, input: object, scale: object,
                   scales: int) -> None:
    check.tensor(op, names[1], input, dtypes=elements.FLOATS)
    check.tensor(op, names[0], out, shape=input.shape, device=input.device)
    check.tensor(op, names[2], scale, dtypes=(torch.float32,), device=input.device, last_contiguous=False)
    if scale.numel() != scales or not scale.is_contiguous():
        raise ValueError(f"{op}: {names[2]} must be contiguous with {scales} elements, got shape {tuple(scale.shape)}, "
                         f"strides {scale.stride()}")
