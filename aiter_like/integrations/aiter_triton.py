# SPDX-License-Identifier: MIT
"""AITER's functions in Triton that have other parameters than those of the same names above them, and what its Triton
code asks of a device and of types. Named by aiter_names.txt.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

import aiter_like
from aiter_like import device
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter_adapters import get_fp8_dtypes


def layer_norm(input: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5, x_bias: Tensor | None = None) -> Tensor:
    """`aiter_like.layer_norm`."""
    return aiter_like.layer_norm(input, weight, bias, eps, x_bias)


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


def layernorm2d_fwd_with_dynamicquant(out: Tensor, input: Tensor, yscale: Tensor, weight: Tensor, bias: Tensor,
                                      epsilon: float = 1e-5, x_bias: Tensor | None = None) -> None:
    """`aiter_like.layernorm2d_fwd_with_dynamicquant`."""
    aiter_like.layernorm2d_fwd_with_dynamicquant(out, input, yscale, weight, bias, epsilon, x_bias)


def layernorm2d_fwd_with_add_dynamicquant(
        out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, yscale: Tensor, weight: Tensor,
        bias: Tensor, epsilon: float = 1e-5, x_bias: Tensor | None = None) -> None:
    """`aiter_like.layernorm2d_fwd_with_add_dynamicquant`."""
    aiter_like.layernorm2d_fwd_with_add_dynamicquant(out, input, residual_in, residual_out, yscale, weight, bias,
                                                     epsilon, x_bias)


def layernorm2d_fwd_with_smoothquant(out: Tensor, input: Tensor, xscale: Tensor, yscale: Tensor, weight: Tensor,
                                     bias: Tensor, epsilon: float = 1e-5, x_bias: Tensor | None = None) -> None:
    """`aiter_like.layernorm2d_fwd_with_smoothquant`."""
    aiter_like.layernorm2d_fwd_with_smoothquant(out, input, xscale, yscale, weight, bias, epsilon, x_bias)


def layernorm2d_fwd_with_add_smoothquant(
        out: Tensor, input: Tensor, residual_in: Tensor, residual_out: Tensor, xscale: Tensor, yscale: Tensor,
        weight: Tensor, bias: Tensor, epsilon: float = 1e-5, x_bias: Tensor | None = None) -> None:
    """`aiter_like.layernorm2d_fwd_with_add_smoothquant`."""
    aiter_like.layernorm2d_fwd_with_add_smoothquant(out, input, residual_in, residual_out, xscale, yscale, weight, bias,
                                                    epsilon, x_bias)


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


def is_fp8_avail() -> bool:
    """Whether this machine's device multiplies fp8."""
    return device.default_target().arch in ("gfx942", "sm_90")


def is_fp4_avail() -> bool:
    """Whether it multiplies fp4: never, as no device that is served does."""
    return False


def is_gluon_avail() -> bool:
    """Whether AITER's kernels in Gluon are there: never."""
    return False


def is_mx_scale_preshuffling_avail() -> bool:
    """Whether scales of 32 elements are taken shuffled: never, they belong to matrix units that no device here has."""
    return False


def is_tdm_avail() -> bool:
    """Whether gfx1250's tensor data mover is there: never."""
    return False


def get_num_sms() -> int:
    """Compute units of this machine's device."""
    return device.default_target().cu_num


def get_dtype_max(dtype: torch.dtype) -> float | int:
    """The largest value."""
    return (torch.finfo if dtype.is_floating_point else torch.iinfo)(dtype).max


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
