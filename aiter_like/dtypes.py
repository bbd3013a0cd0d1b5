# SPDX-License-Identifier: MIT
"""Short dtype names for tune keys and instance names, which fp8 an architecture computes with, and AITER's names."""

from __future__ import annotations

from typing import Any

import torch

NAMES: dict[torch.dtype, str] = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64",
    torch.float8_e4m3fnuz: "fp8_e4m3fnuz", torch.float8_e4m3fn: "fp8_e4m3fn",
    torch.int8: "i8", torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.bool: "bool",
}

# AITER's `dtypes`, beside the names that `__getattr__` knows.
fp8_e8m0, fp4x2, i4x2 = (getattr(torch, name, torch.uint8) for name in ("float8_e8m0fnu", "float4_e2m1fn_x2", "int4"))
fp16, bf16, fp32 = torch.float16, torch.bfloat16, torch.float32
i8, i16, i32, i64 = torch.int8, torch.int16, torch.int32, torch.int64
u8, u32, u64 = torch.uint8, torch.uint32, torch.uint64

DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in NAMES.items()}

ROUNDINGS = ("rtne", "rtna", "rtz")
"""To nearest even, to nearest with ties away from zero, towards zero: AITER's how_v3_bf16_cvt 0, 1, 2."""


def name(dtype: torch.dtype) -> str:
    """Short name of a dtype.

    Raises:
        TypeError: a dtype that no operator takes.
    """
    try:
        return NAMES[dtype]
    except KeyError:
        raise TypeError(f"no operator takes dtype {dtype}; known: {', '.join(DTYPES)}") from None


def fp8_of(arch: str) -> torch.dtype:
    """The e4m3 format of an architecture's matrix cores.

    The CDNA 3 ISA manual (section 7) defines gfx942's fp8 as the FNUZ variant: bias 8, largest value 240, one NaN.
    gfx950 and NVIDIA use the OCP variant: bias 7, largest value 448.
    """
    return torch.float8_e4m3fnuz if arch.startswith("gfx94") else torch.float8_e4m3fn


def __getattr__(name: str) -> Any:
    """AITER's `fp8`, the one of this machine's device, and `d_dtypes`, name → dtype: found when asked for."""
    if name == "fp8":
        from aiter_like import device

        return fp8_of(device.default_target().arch)
    if name == "d_dtypes":
        names = "fp8 fp8_e8m0 fp16 bf16 fp32 i4x2 fp4x2 u32 i32 i16 i8 u8 i64 u64".split()  # in the order of their ids
        return {short: globals().get(short) or __getattr__(short) for short in names}
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
