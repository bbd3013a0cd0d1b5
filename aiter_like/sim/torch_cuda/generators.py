# SPDX-License-Identifier: MIT
"""Random numbers of a GPU within sim.as_gpu(): torch draws the CPU's, and a generator has a seed and an offset, by
which kernels draw, and whose 16 bytes are its state.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from typing import Any

import torch

from aiter_like.sim.torch_cuda import devices

_ORIGINAL = torch.Generator
_STEP = 4  # offsets are multiples of it
_KEPT_STATES = 1024


class Generator(torch.Generator):
    """torch.Generator: that of a GPU draws the CPU's numbers."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        index = devices.index_of(device)
        if index is None:
            return _ORIGINAL(device)
        made = super().__new__(cls, "cpu")
        made.index, made.offset, made.states = index, 0, OrderedDict()
        return made

    @property
    def device(self) -> torch.device:
        """Where the program has it."""
        return devices.of_index(self.index)

    def manual_seed(self, seed: int) -> torch.Generator:
        """Seeds it; its offset is 0 again."""
        self.offset = 0
        return super().manual_seed(seed)

    def get_offset(self) -> int:
        """How far kernels have drawn from it, which `set_offset` tells; what torch draws does not count here."""
        return self.offset

    def set_offset(self, offset: int) -> None:
        """By whoever draws in a kernel."""
        self.offset = int(offset)

    def get_state(self) -> torch.Tensor:
        """Seed and offset, as 16 bytes of the host. What torch has drawn so far is remembered beside them."""
        drawn = self._drawn()
        while not torch.equal(self.states.setdefault((self.initial_seed(), self.offset), drawn), drawn):
            self.offset += _STEP
        while len(self.states) > _KEPT_STATES:
            self.states.popitem(last=False)
        return torch.tensor([_signed(self.initial_seed()), self.offset], dtype=torch.int64, device="cpu").view(
            torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> torch.Generator:
        """Seed and offset; of a state that it has given, also what torch draws next.

        Raises:
            RuntimeError: a state has 16 bytes.
        """
        if new_state.dtype != torch.uint8 or new_state.numel() != 16:
            raise RuntimeError("RNG state of a GPU is wrong size: it has 16 bytes, the seed and the offset")
        seed, offset = new_state.cpu().contiguous().view(torch.int64).tolist()
        seed %= 2**64
        drawn = self.states.get((seed, offset))
        if drawn is not None:
            self._draw_as(drawn)
        elif seed != self.initial_seed():
            self.manual_seed(seed)
        self.offset = offset
        return self

    def _drawn(self) -> torch.Tensor:
        return super().get_state()

    def _draw_as(self, drawn: torch.Tensor) -> None:
        super().set_state(drawn)


class _Default(Generator):
    """The one from which torch draws where a program names none: the CPU's own."""

    def manual_seed(self, seed: int) -> torch.Generator:
        torch.default_generator.manual_seed(int(seed))
        return super().manual_seed(seed)

    def initial_seed(self) -> int:
        return torch.default_generator.initial_seed()

    def _drawn(self) -> torch.Tensor:
        return torch.default_generator.get_state()

    def _draw_as(self, drawn: torch.Tensor) -> None:
        torch.default_generator.set_state(drawn)


@functools.cache
def default(index: int) -> Generator:
    """A GPU's default generator."""
    return _Default(devices.of_index(index))


def defaults() -> tuple[Generator, ...]:
    """torch.cuda.default_generators."""
    return tuple(default(index) for index in range(devices.count()))


def seed(number: int) -> None:
    """torch.cuda.manual_seed and manual_seed_all."""
    for one in defaults():
        one.manual_seed(int(number))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
