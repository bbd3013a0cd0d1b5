# SPDX-License-Identifier: MIT
"""AITER's enums, by its names and numbers, and the short names of dtypes: what needs no torch."""

from __future__ import annotations

from enum import IntEnum

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64",
          "float8_e4m3fnuz": "fp8_e4m3fnuz", "float8_e4m3fn": "fp8_e4m3fn", "int8": "i8", "uint8": "u8",
          "int16": "i16", "int32": "i32", "int64": "i64", "bool": "bool"}
"""torch's name of a dtype → the short one of tune keys, instances and command lines."""


class _Named(IntEnum):
    """Prints as "QuantType.per_Token": an IntEnum would print its number, and tables hold the name."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class ActivationType(_Named):
    """Activation of an expert layer."""

    No = -1
    Silu = 0
    Gelu = 1
    Swiglu = 2
    Situv2 = 3


class QuantType(_Named):
    """The elements that share a scale: the tensor's, a token's (row), or those of a block of rows × columns."""

    No = 0
    per_Tensor = 1
    per_Token = 2
    per_1x32 = 3
    per_1x128 = 4
    per_128x128 = 5
    per_256x128 = 6
    per_1024x128 = 7
