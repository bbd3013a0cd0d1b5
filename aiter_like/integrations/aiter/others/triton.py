# SPDX-License-Identifier: MIT
"""AITER's functions in Triton that have other parameters than those of the same names above them, and what its Triton
code asks of a device and of types.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

import aiter_like
from aiter_like import check, device
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.integrations.aiter.gemm.gemm import result_dtype
from aiter_like.integrations.aiter.others.adapters import get_fp8_dtypes, signed_dropout


@aiter("aiter.ops.triton.[normalization.]norm")
def layer_norm(input: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5, x_bias: Tensor | None = None) -> Tensor:
    """`aiter_like.layer_norm`."""
    return aiter_like.layer_norm(input, weight, bias, eps, x_bias)


@aiter("aiter.ops.triton.[normalization.]norm")
def layernorm2d_fwd_with_add(out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, weight: Tensor,
                             bias: Tensor, epsilon: float, x_bias: Tensor | None = None) -> Tensor:
    """`aiter_like.layernorm2d_fwd_with_add`, which returns `out`; where a gradient is asked for a tensor equal to it,
    from `aiter_like.layer_norm` of the sum.
    """
    operands = (input, residual_in, weight, bias)
    if not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in operands)):
        aiter_like.layernorm2d_fwd_with_add(out, input, residual_in, residual_out, weight, bias, epsilon, x_bias)
        return out
    with torch.no_grad():
        aiter_like.layernorm2d_fwd_with_add(out, input, residual_in, residual_out, weight, bias, epsilon, x_bias)
    return aiter_like.layer_norm(input + residual_in, weight, bias, epsilon, x_bias)


@aiter("aiter.ops.triton.[normalization.]norm")
def layernorm2d_fwd_with_dynamicquant(out: Tensor, input: Tensor, yscale: Tensor, weight: Tensor, bias: Tensor,
                                      epsilon: float = 1e-5, x_bias: Tensor | None = None) -> None:
    """`aiter_like.layernorm2d_fwd_with_dynamicquant`."""
    aiter_like.layernorm2d_fwd_with_dynamicquant(out, input, yscale, weight, bias, epsilon, x_bias)


@aiter("aiter.ops.triton.[normalization.]norm")
def layernorm2d_fwd_with_add_dynamicquant(
        out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, yscale: Tensor, weight: Tensor,
        bias: Tensor, epsilon: float = 1e-5, x_bias: Tensor | None = None) -> None:
    """`aiter_like.layernorm2d_fwd_with_add_dynamicquant`."""
    aiter_like.layernorm2d_fwd_with_add_dynamicquant(out, input, residual_in, residual_out, yscale, weight, bias,
                                                     epsilon, x_bias)


@aiter("aiter.ops.triton.[normalization.]norm")
def layernorm2d_fwd_with_smoothquant(out: Tensor, input: Tensor, xscale: Tensor, yscale: Tensor, weight: Tensor,
                                     bias: Tensor, epsilon: float = 1e-5, x_bias: Tensor | None = None) -> None:
    """`aiter_like.layernorm2d_fwd_with_smoothquant`."""
    aiter_like.layernorm2d_fwd_with_smoothquant(out, input, xscale, yscale, weight, bias, epsilon, x_bias)


@aiter("aiter.ops.triton.[normalization.]norm")
def layernorm2d_fwd_with_add_smoothquant(
        out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, xscale: Tensor, yscale: Tensor,
        weight: Tensor, bias: Tensor, epsilon: float = 1e-5, x_bias: Tensor | None = None) -> None:
    """`aiter_like.layernorm2d_fwd_with_add_smoothquant`."""
    aiter_like.layernorm2d_fwd_with_add_smoothquant(out, input, residual_in, residual_out, xscale, yscale, weight, bias,
                                                    epsilon, x_bias)


@aiter("aiter.ops.triton.[normalization.]rmsnorm")
def rmsnorm2d_fwd_with_dynamicquant(out: Tensor, input: Tensor, yscale: Tensor, weight: Tensor, epsilon: float,
                                    scale_ub: Tensor | None = None, clamp_out: bool = False,
                                    dump_rms_norm: bool = False) -> Tensor | None:
    """`aiter_like.rmsnorm2d_fwd_with_dynamicquant`.

    Args:
        scale_ub: None; a bound of the scales is not served.
        clamp_out: of no meaning: what is beyond the largest value of `out`'s dtype always becomes that.
        dump_rms_norm: the normalised rows are returned, too, from a kernel of their own.
    """
    if scale_ub is not None:
        raise UnsupportedError("rmsnorm2d_fwd_with_dynamicquant: no backend supports scale_ub",
                               "rmsnorm2d_fwd_with_dynamicquant", {"scale_ub": "a tensor"})
    aiter_like.rmsnorm2d_fwd_with_dynamicquant(out, input, yscale, weight, epsilon)
    return aiter_like.rms_norm(input, weight, epsilon) if dump_rms_norm else None


@aiter("aiter.ops.triton.[gemm.basic.]gemm_a8w8", "aiter.ops.triton.gluon.gemm_a8w8", stays=True)
def gemm_a8w8(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None,
              dtype: torch.dtype | None = torch.bfloat16, y: Tensor | None = None, config: dict | None = None,
              skip_reduce: bool = False) -> Tensor:
    """`aiter_like.gemm_a8w8` into `y` or a new tensor.

    Args:
        config: blocks of AITER's own kernel; of no meaning.
        skip_reduce: False; partial sums are not given away.
    """
    if skip_reduce:
        raise UnsupportedError("gemm_a8w8: no backend supports skip_reduce", "gemm_a8w8", {"skip_reduce": "True"})
    return aiter_like.gemm_a8w8(x, w, x_scale, w_scale, bias, result_dtype(dtype, y), out=y)


@aiter("aiter.ops.triton.[gemm.basic.]gemm_a8w8_per_token_scale", stays=True)
def gemm_a8w8_per_token_scale(x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor,
                              dtype: torch.dtype | None = torch.bfloat16, y: Tensor | None = None,
                              config: dict | None = None) -> Tensor:
    """`aiter_like.gemm_a8w8` into `y` or a new tensor; `config` is of no meaning."""
    return aiter_like.gemm_a8w8(x, w, x_scale, w_scale, None, result_dtype(dtype, y), out=y)


@aiter("aiter.ops.triton.[gemm.batched.]batched_gemm_a8w8", stays=True)
def batched_gemm_a8w8(XQ: Tensor, WQ: Tensor, x_scale: Tensor, w_scale: Tensor, bias: Tensor | None = None,
                      dtype: torch.dtype | None = torch.bfloat16, splitK: int | None = None, YQ: Tensor | None = None,
                      config: dict | None = None) -> Tensor:
    """`aiter_like.batched_gemm_a8w8` into `YQ` or a new tensor; `config` is of no meaning. A bias of 16 bits is added
    to a product that is rounded to its dtype, as AITER's kernel does.
    """
    dtype = result_dtype(dtype, YQ)
    if not isinstance(bias, Tensor) or bias.dtype not in (torch.bfloat16, torch.float16):
        return aiter_like.batched_gemm_a8w8(XQ, WQ, x_scale, w_scale, bias, dtype, splitK, out=YQ)
    check.tensor("batched_gemm_a8w8", "WQ", WQ, rank=3, last_contiguous=False)
    added = bias.unsqueeze(1) if bias.ndim == 2 else bias
    check.tensor("batched_gemm_a8w8", "bias", added, shape=(len(WQ), 1, WQ.shape[1]), device=WQ.device)
    product = aiter_like.batched_gemm_a8w8(XQ, WQ, x_scale, w_scale, None, bias.dtype, splitK)
    return product.add_(added).to(dtype) if YQ is None else YQ.copy_(product.add_(added))


@aiter("aiter.ops.triton.[attention.]mha")
def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                    causal: bool = False, window_size: Sequence[int] | None = (-1, -1), bias: Tensor | None = None,
                    alibi_slopes: Tensor | None = None, deterministic: bool = True, return_lse: bool = False,
                    return_attn_probs: bool = False, sink: Tensor | None = None,
                    config: dict | None = None) -> Tensor | tuple[Tensor, ...]:
    """`aiter_like.flash_attn_func`, with S_dmask that of `signed_dropout`; `config` is of no meaning."""
    found = aiter_like.flash_attn_func(
        q, k, v, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal, window_size=window_size, bias=bias,
        alibi_slopes=alibi_slopes, deterministic=deterministic, return_lse=return_lse,
        return_attn_probs=return_attn_probs, sink_ptr=sink)
    if not return_attn_probs or not dropout_p:
        return found
    return *found[:-1], signed_dropout(found[-1], dropout_p)


@aiter("aiter.ops.triton.utils.shuffle", stays=True)
def shuffle_weight(x: Tensor, layout: tuple[int, int] = (16, 16), use_int4: bool = False,
                   is_guinterleave: bool = False, gate_up: bool = False, pad_k_to: int = 0,
                   arch: str | None = None) -> Tensor:
    """`aiter_like.shuffle_weight`, whose order is the same on each architecture that is served; `arch` is of no
    meaning.
    """
    return aiter_like.shuffle_weight(x, layout, use_int4, is_guinterleave, gate_up, pad_k_to)


"""What AITER's attention has for the order of tiles; see `mha_set_swizzle`."""


@aiter("aiter.ops.triton.utils.shuffle", callers="V", stays=True)
def shuffle_scale_moe(data: Tensor, arch: str | None = None, preshuffle_factor: int = 32, scale_kwidth: int = 8,
                      return_layout: bool = False) -> Tensor | tuple[Tensor, None]:
    """`data` as it is: scales of experts have an order of their own on gfx950 and gfx1250 alone.

    Raises:
        UnsupportedError: `arch` is one of those.
    """
    if (arch or device.default_target().arch) in ("gfx950", "gfx1250"):
        raise UnsupportedError(f"shuffle_scale_moe: no kernel here reads the scales of {arch}", "shuffle_scale_moe")
    return (data, None) if return_layout else data


@aiter("aiter.ops.triton.[attention.]mha", stays=True)
def mha_set_use_fused_bwd_kernel(value: bool) -> None:
    """Of no meaning: which backward kernel runs is the dispatcher's choice, and none of them adds atomically."""


@aiter("aiter.ops.triton.[attention.]mha", stays=True)
def mha_set_use_int64_strides(value: bool) -> None:
    """Of no meaning: tensors of any size are addressed right."""


@aiter("aiter.ops.triton.[attention.]mha", stays=True)
def mha_set_impl(impl: str) -> None:
    """Of no meaning: there is one implementation of each kind."""


@aiter("aiter.ops.triton.utils._triton.arch_info", stays=True)
def is_fp8_avail() -> bool:
    """Whether this machine's device multiplies fp8."""
    return device.default_target().arch in ("gfx942", "sm_90")


@aiter("aiter.ops.triton.utils._triton.arch_info", stays=True)
def is_fp4_avail() -> bool:
    """Whether it multiplies fp4: never, as no device that is served does."""
    return False


@aiter("aiter.ops.triton.[gemm.basic.]gemm_a16w16:_is_gluon_available",
       "aiter.ops.triton.[gemm.batched.]batched_gemm_bf16:_is_gluon_available",
       "aiter.ops.triton.utils._triton.arch_info", stays=True)
def is_gluon_avail() -> bool:
    """Whether AITER's kernels in Gluon are there: never."""
    return False


@aiter("aiter.ops.triton.[attention.]unified_attention", stays=True)
def is_2d_gluon_available(q_dtype: torch.dtype, kv_cache_dtype: torch.dtype, softcap: float | None, use_qq_bias: bool,
                          use_alibi_slopes: bool) -> bool:
    """Whether AITER's attention over pages in Gluon would take such a call: never."""
    return False


@aiter("aiter.ops.triton.utils._triton.arch_info aiter.ops.triton.[moe.]moe_routing.routing", callers="V S", stays=True)
def is_tdm_avail() -> bool:
    """Whether gfx1250's tensor data mover is there: never."""
    return False


@aiter("aiter.ops.triton.[utils.]device_info", callers="S", stays=True)
def get_num_sms() -> int:
    """Compute units of this machine's device."""
    return device.default_target().cu_num


@functools.cache
def _named_types() -> dict[str, torch.dtype]:
    e5m2, e4m3 = get_fp8_dtypes()
    alike = {torch.float32: ("float32", "fp32"), torch.bfloat16: ("bfloat16", "bf16"),
             torch.float16: ("float16", "fp16"), e5m2: ("float8_e5m2", "e5m2fnuz", "fp8e5m2"),
             e4m3: ("float8_e4m3fn", "e4m3fnuz", "fp8e4m3"), torch.uint8: ("uint8", "mxfp4_e2m1")}
    return {name: dtype for dtype, names in alike.items() for name in names} | {
        str(dtype).removeprefix("torch."): dtype
        for dtype in (torch.float64, torch.int64, torch.int32, torch.int16, torch.int8)}


class _NamedTypes(Mapping):
    """Filled when it is first looked into: the fp8 formats are the device's, and an import asks for none."""

    def __getitem__(self, name: str) -> torch.dtype:
        return _named_types()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_named_types())

    def __len__(self) -> int:
        return len(_named_types())


str_to_torch_dtype = _NamedTypes()
"""AITER's names of types."""
