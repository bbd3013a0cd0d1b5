# SPDX-License-Identifier: MIT
"""Short dtype names for tune keys and instance names, which fp8 an architecture computes with, and AITER's `dtypes`:
its names, and what its programs read their options with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from aiter_like import device, enums
from aiter_like.enums import ActivationType, QuantType

NAMES: dict[torch.dtype, str] = {getattr(torch, name): short for name, short in enums.DTYPES.items()}

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


def viewed(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`tensor.view(dtype)`, for writing: also in inference mode, where torch's own view of another dtype has a version
    of its own, what is written there moves the version of `tensor`.
    """
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled() or tensor.is_inference():
        return tensor.view(dtype)
    with torch.inference_mode(False):
        return tensor.view(dtype)


def fp8_of(arch: str) -> torch.dtype:
    """The e4m3 format of an architecture's matrix cores.

    The CDNA 3 ISA manual (section 7) defines gfx942's fp8 as the FNUZ variant: bias 8, largest value 240, one NaN.
    gfx950 and NVIDIA use the OCP variant: bias 7, largest value 448.
    """
    return torch.float8_e4m3fnuz if arch.startswith("gfx94") else torch.float8_e4m3fn


def get_dtype_fp8() -> torch.dtype:
    """The e4m3 format of this machine's device."""
    return fp8_of(device.default_target().arch)


def str2bool(v: str | bool) -> bool:
    """"yes", "true", "t", "y", "1" and their opposites, in any case, as options of a program (argparse's `type`).

    Raises:
        argparse.ArgumentTypeError: none of them.
    """
    if isinstance(v, bool):
        return v
    word = v.lower()
    if word not in (true := ("yes", "true", "t", "y", "1")) and word not in ("no", "false", "f", "n", "0"):
        raise _no_option(f"a boolean must be yes or no, got {v!r}")
    return word in true


def str2tuple(v: str) -> int | tuple[int, ...]:
    """"512" as 512; "512,1024", "(512, 1024)" and "512," as tuples.

    Raises:
        argparse.ArgumentTypeError: a part is no integer.
    """
    return _one_or_tuple(v, int)


def str2Dtype(v: str) -> torch.dtype | QuantType | None | tuple[Any, ...]:
    """"bf16" as its dtype, "none" as None, "per_Token" in any case as its `QuantType`; several as a tuple.

    Raises:
        argparse.ArgumentTypeError: a part is none of these.
    """
    return _one_or_tuple(v, _dtype_or_quant_type)


def str2ActivationType(s: str) -> ActivationType:
    """"silu" as `ActivationType.Silu`.

    Raises:
        argparse.ArgumentTypeError: there is none of that name.
    """
    try:
        return ActivationType[s.capitalize()]
    except KeyError:
        raise _no_option(f"an activation must be one of {', '.join(ActivationType.__members__)}, got {s!r}") from None


def _one_or_tuple(text: str, convert: Callable[[str], Any]) -> Any:
    parts = [part.strip() for part in text.strip("()").split(",")]
    try:
        found = tuple(convert(part) for part in parts if part)
    except ValueError as error:
        raise _no_option(f"{text!r}: {error}") from None
    return found[0] if len(parts) == len(found) == 1 else found


def _dtype_or_quant_type(text: str) -> torch.dtype | QuantType | None:
    if text.lower() == "none":
        return None
    named = __getattr__("d_dtypes")
    kinds = {kind.name.lower(): kind for kind in QuantType}
    if text not in named and text.lower() not in kinds:
        raise ValueError(f"expected none, one of {', '.join(named)}, or of {', '.join(QuantType.__members__)}")
    return named[text] if text in named else kinds[text.lower()]


def _no_option(message: str) -> Exception:
    import argparse

    return argparse.ArgumentTypeError(message)


def __getattr__(name: str) -> Any:
    """AITER's `fp8`, the one of this machine's device, and `d_dtypes`, name → dtype: found when asked for."""
    if name == "fp8":
        return get_dtype_fp8()
    if name == "d_dtypes":
        names = "fp8 fp8_e8m0 fp16 bf16 fp32 i4x2 fp4x2 u32 i32 i16 i8 u8 i64 u64".split()  # in the order of their ids
        return {short: globals().get(short) or __getattr__(short) for short in names}
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
