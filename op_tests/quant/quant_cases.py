# SPDX-License-Identifier: MIT
"""What the tests of the quantisers share: inputs with outliers, and special rows."""

import math

import torch
from torch import Tensor

BACKENDS = ("hip", "triton", "torch")


def matrix(device: torch.device, *shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    """Normal numbers, one column 20 times as large, rows of different magnitude."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator)
    x[..., x.shape[-1] // 3] *= 20
    x *= torch.exp2(torch.randint(-6, 6, (*shape[:-1], 1), generator=generator).float())
    return x.to(device, dtype)


def special(device: torch.device, columns: int) -> Tensor:
    """Rows of zeros, with a NaN, with an infinity, of subnormals, of the largest numbers, of one number, plain."""
    x = torch.randn(7, columns, generator=torch.Generator().manual_seed(5))
    x[0], x[3] = 0.0, x[3] * 2.0**-133
    x[1, columns // 2], x[2, columns - 1] = math.nan, -math.inf
    x[4], x[5] = x[4].sign() * 3e38, -0.25
    return x.to(device, torch.bfloat16)


def bits(tensor: Tensor) -> Tensor:
    """For comparison element by element, NaNs included."""
    return tensor.contiguous().view({1: torch.uint8, 4: torch.int32}[tensor.element_size()])


def same_numbers(got: Tensor, expected: Tensor) -> bool:
    """Equal, and NaN in the same places: NaNs have several spellings in e4m3."""
    return got.shape == expected.shape and torch.equal(got.float().nan_to_num(nan=12345.0),
                                                       expected.float().nan_to_num(nan=12345.0))
