# SPDX-License-Identifier: MIT
"""Random numbers of a GPU within sim.as_gpu(): torch draws them as the CPU's, each GPU from a sequence of its own; a
generator has a seed and an offset, by which kernels draw, and whose 16 bytes are its state.
"""

import contextlib
import functools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch

from aiter_like.sim.torch_cuda import devices

_ORIGINAL = torch.Generator
_STEP = 4  # offsets are multiples of it
_KEPT_STATES = 1024
_NAMES = re.compile("rand|dropout|normal|uniform|bernoulli|multinomial|poisson|exponential|geometric|cauchy|"
                    "gumbel|rrelu|attention|fractional|binomial|gamma|dirichlet|lstm|gru|rnn|kaiming|xavier|"
                    "orthogonal|sparse_")
_TAKING = frozenset("rand randn randint randperm normal bernoulli multinomial poisson uniform_ normal_ random_ "
                    "exponential_ cauchy_ geometric_ log_normal_ bernoulli_".split())
"""The functions among them that take a generator."""
_drawing: dict[Callable, bool] = {}
_lock = threading.RLock()
_host_seed: list[int] = []


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
        """The GPU whose numbers it draws."""
        return devices.of_index(self.index)

    def manual_seed(self, seed: int) -> torch.Generator:
        """Seeds it; its offset is 0 again."""
        self.offset = 0
        return super().manual_seed(seed)

    def get_offset(self) -> int:
        """The place up to which kernels have drawn, told by `set_offset`; what torch draws does not count here."""
        return self.offset

    def set_offset(self, offset: int) -> None:
        """Called by whoever draws in a kernel."""
        self.offset = int(offset)

    def get_state(self) -> torch.Tensor:
        """Seed and offset, as 16 bytes of the host. What torch has drawn so far is remembered beside them."""
        drawn = self.drawn()
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
            self.draw_as(drawn)
        elif seed != self.initial_seed():
            self.manual_seed(seed)
        self.offset = offset
        return self

    def drawn(self) -> torch.Tensor:
        """The numbers that torch draws next, as a state of the CPU."""
        return super().get_state()

    def draw_as(self, drawn: torch.Tensor) -> None:
        """Torch draws next as that state of the CPU would."""
        super().set_state(drawn)


@functools.cache
def default(index: int) -> Generator:
    """A GPU's default generator."""
    return Generator(devices.of_index(index)).manual_seed(torch.default_generator.initial_seed())


def follow_host() -> None:
    """Gives GPUs the host's seed, if that is another one than at the last call: torch.manual_seed seeds both."""
    number = torch.default_generator.initial_seed()
    if _host_seed and _host_seed[0] != number:
        seed_all(number)
    _host_seed[:] = [number]


def defaults() -> tuple[Generator, ...]:
    """torch.cuda.default_generators."""
    return tuple(default(index) for index in range(devices.count()))


def seed(number: int) -> None:
    """torch.cuda.manual_seed: the current device's."""
    default(devices.current()).manual_seed(int(number))


def seed_all(number: int) -> None:
    """torch.cuda.manual_seed_all."""
    for one in defaults():
        one.manual_seed(int(number))


def reseed() -> None:
    """torch.cuda.seed: the current device's, by a number that nobody knows."""
    default(devices.current()).seed()


def reseed_all() -> None:
    """torch.cuda.seed_all: all by one number that nobody knows."""
    seed_all(_ORIGINAL("cpu").seed())


def is_drawing(func: Callable) -> bool:
    """Whether a function of torch may draw random numbers, by its name."""
    found = _drawing.get(func)
    if found is None:
        name = getattr(func, "__name__", "")
        found = _drawing[func] = bool(_NAMES.search(name)) and "normaliz" not in name
    return found


def call(run: Callable[[dict], Any], func: Callable, kwargs: dict, index: int | None) -> Any:
    """`run` of the arguments of a function that may draw random numbers: of that GPU's, or with None of the host's,
    unless the program names a generator.

    Raises:
        RuntimeError: the generator is another device's.
    """
    generator = kwargs.get("generator")
    if generator is not None:
        found, wanted = ("cpu" if one is None else "cuda" for one in (getattr(generator, "index", None), index))
        if found != wanted:
            raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{found}'")
    elif index is not None and getattr(func, "__name__", "") in _TAKING:
        kwargs = kwargs | {"generator": default(index)}
    elif index is not None:
        with drawing(index):
            return run(kwargs)
    return run(kwargs)


@contextlib.contextmanager
def drawing(index: int) -> Iterator[None]:
    """A block in which torch draws that GPU's numbers, unless a generator is named."""
    host, own = torch.default_generator, default(index)
    with _lock:
        before = host.get_state()
        host.set_state(own.drawn())
        try:
            yield
        finally:
            own.draw_as(host.get_state())
            host.set_state(before)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
