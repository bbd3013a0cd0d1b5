# SPDX-License-Identifier: MIT
"""What operators on rows declare for the tuner alike (tuning/hooks.py): random operands, waves, a layer's sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from aiter_like import dtypes
from aiter_like.device import Target, simulated_target, target_of

_MAX_BLOCK = 8192  # elements of a row that a Triton program keeps


def normal(device: torch.device, seed: int, dtype: str) -> Callable[..., Tensor]:
    """A source of tensors of normal numbers: of (*shape), made on `device`."""
    generator = torch.Generator(device).manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator, device=device, dtype=dtypes.DTYPES[dtype])


def wave_space(target: Target, hidden: int, block: int = _MAX_BLOCK) -> list[dict[str, int]]:
    """Waves that leave each lane 4 to 64 elements of a block, or of the row where that is shorter."""
    lanes = min(hidden, block) / target.wave_size
    return [{"num_warps": count} for count in (1, 2, 4, 8, 16) if 4 <= lanes / count <= 64 or count == 1 > lanes / 4]


def row_space(target: Target, out: Tensor, *_: object) -> list[dict[str, int]]:
    """A Triton backend's `space` where a program takes a row of `out`, the operator's first argument."""
    return wave_space(target, out.shape[-1])


def layer_keys(model: Any, tokens: int, out_dtype: str) -> Iterator[dict[str, Any]]:
    """A layer's norms, which every GPU does whole: the first one's and, with the residual, all others'."""
    for has_residual in (0, 1):
        yield {"rows": tokens, "hidden": model.hidden_size, "dtype": model.dtype, "out_dtype": out_dtype,
               "has_residual": has_residual}


def fp8_name() -> str:
    """The fp8 of the GPU that is there, or of the simulated one."""
    target = target_of(torch.device("cuda", 0)) if torch.cuda.is_available() else simulated_target()
    return dtypes.name(dtypes.fp8_of(target.arch))
