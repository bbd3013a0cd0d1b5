# SPDX-License-Identifier: MIT
"""AITER's functions in Triton that have other parameters than those of the same names above them, and what its Triton
code asks of a device and of types.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

import aiter_like
from aiter_like import device
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.integrations.aiter.others.adapters import get_fp8_dtypes


@aiter("aiter.ops.triton.utils.shuffle", stays=True)
def shuffle_weight(x: Tensor, layout: tuple[int, int] = (16, 16), use_int4: bool = False,
                   is_guinterleave: bool = False, gate_up: bool = False, pad_k_to: int = 0,
                   arch: str | None = None) -> Tensor:
    """`aiter_like.shuffle_weight`, whose order is the same on each architecture that is served; `arch` is of no
    meaning.
    """
    return aiter_like.shuffle_weight(x, layout, use_int4, is_guinterleave, gate_up, pad_k_to)


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
