# SPDX-License-Identifier: MIT
"""Memory on the GPU that a kernel reaches by addresses, which a program has put into a tensor or gives as numbers:
tables of pointers, such as those of grouped products. The bounds checker otherwise knows a launch's tensors alone.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from aiter_like.sim.torch_cuda import devices, memory

_MOST = 1 << 20
"""Elements up to which a tensor of 64-bit integers is looked through."""


def reached(arguments: Iterable[Any]) -> list[tuple[int, int, str]]:
    """Blocks of memory on the simulated GPUs, and pinned ones, that the arguments of a launch have addresses of, except
    as tensors: address, bytes, and a name for reports."""
    places = (*range(devices.count()), None)
    blocks = sorted(block for place in places for block in memory.of(place).blocks() if block[1])
    if not blocks:
        return []
    found: dict[int, int] = {}
    with torch._C.DisableTorchFunction():  # the host looks at tensors, and the program does not wait for that
        starts, sizes = (torch.tensor(column, dtype=torch.int64, device="cpu") for column in zip(*blocks, strict=True))
        for number, argument in enumerate(arguments):
            values = _addresses(argument)
            if values is not None:
                block = torch.searchsorted(starts, values, right=True) - 1
                at = block.clamp(min=0)
                inside = (block >= 0) & (values - starts[at] < sizes[at])
                for one in block[inside].unique().tolist():
                    found.setdefault(one, number)
    return [(*blocks[block], f"memory that argument {number} points to") for block, number in found.items()]


def _addresses(argument: Any) -> Tensor | None:
    """Numbers in a launch's argument that may be addresses. Those of the host have fewer than 63 bits."""
    if isinstance(argument, Tensor):
        if argument.dtype in (torch.int64, torch.uint64) and 0 < argument.numel() <= _MOST:
            return argument.detach().contiguous().view(-1).view(torch.int64)
    elif isinstance(argument, int) and 0 < argument < 2**63:
        return torch.tensor([argument], dtype=torch.int64, device="cpu")
    return None
