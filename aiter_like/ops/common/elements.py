# SPDX-License-Identifier: MIT
"""Element types of tensors: what the families take, and what C++ calls them. Read by every family with HIP sources."""

from __future__ import annotations

import torch

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
"""The dtypes that operators on rows and caches compute with."""

INTEGERS = (torch.int64, torch.int32)
"""The dtypes of positions, slots and block numbers."""

FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
"""The e4m3 formats, OCP and FNUZ; `dtypes.fp8_of` names the one that an architecture has."""

CPP = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "float", torch.int8: "int8_t",
       **dict.fromkeys(FP8, "fp8")}
"""dtype → type of csrc/include/aiter_like/dtype.h. Which fp8 it is follows from the architecture."""


def short(dtype: torch.dtype) -> str:
    """The C++ type as a part of an instance's name: "bf16", "int8"."""
    return CPP[dtype].removesuffix("_t")
