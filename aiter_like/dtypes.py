# SPDX-License-Identifier: MIT
"""Short dtype names for tune keys and instance names, and which fp8 an architecture computes with."""

from __future__ import annotations

import torch

NAMES: dict[torch.dtype, str] = {
    torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64",
    torch.float8_e4m3fnuz: "fp8_e4m3fnuz", torch.float8_e4m3fn: "fp8_e4m3fn",
    torch.int8: "i8", torch.uint8: "u8", torch.int16: "i16", torch.int32: "i32", torch.int64: "i64",
    torch.bool: "bool",
}

DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in NAMES.items()}


def name(dtype: torch.dtype) -> str:
    """Short name of a dtype.

    Raises:
        TypeError: a dtype that no operator takes.
    """
    try:
        return NAMES[dtype]
    except KeyError:
        raise TypeError(f"no operator takes dtype {dtype}; known: {', '.join(DTYPES)}") from None


def fp8(arch: str) -> torch.dtype:
    """The e4m3 format of an architecture's matrix cores.

    The CDNA 3 ISA manual (section 7) defines gfx942's fp8 as the FNUZ variant: bias 8, largest value 240, one NaN.
    gfx950 and NVIDIA use the OCP variant: bias 7, largest value 448.
    """
    return torch.float8_e4m3fnuz if arch.startswith("gfx94") else torch.float8_e4m3fn
