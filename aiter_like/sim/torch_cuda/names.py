# SPDX-License-Identifier: MIT
"""What the names of torch.cuda, and a few more of torch's, mean within sim.as_gpu(). Names of torch.cuda that stand in
no table here refuse.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from aiter_like.errors import UnsupportedError
from aiter_like.sim.torch_cuda import devices, marks, times

KEPT = ("Storage", "Tensor")
"""Ends of names that stay what they are: torch's types of old."""

KEPT_NAMES = frozenset((
    "amp", "graphs", "memory", "nccl", "nvtx", "profiler", "random", "sparse", "streams", "tunable", "jiterator",
    "CudaError", "DeferredCudaCallError", "cudaStatus", "has_half", "has_magma",
    # They ask functions that are answered below.
    "device", "device_of", "get_gencode_flags", "is_bf16_supported", "is_tf32_supported", "memory_cached",
    "max_memory_cached", "reset_max_memory_cached", "reset_max_memory_allocated"))
"""Names of torch.cuda that stay what they are."""

_WHY = {
    "CUDAGraph": "torch's own functions run on the host, where they cannot be captured",
    "graph": "torch's own functions run on the host, where they cannot be captured",
    "make_graphed_callables": "torch's own functions run on the host, where they cannot be captured",
    "cudart": "HIP's functions are those of the library that aiter_like.sim.load() gives",
    "utilization": "nothing is measured", "temperature": "nothing is measured", "power_draw": "nothing is measured",
    "memory_usage": "nothing is measured",
}


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Each name that changes: its holder, the name, what it means now."""
    answers = _answers()
    for name in sorted({*torch.cuda.__all__, *answers}):
        if name in KEPT_NAMES or name.endswith(KEPT):
            continue
        original = getattr(torch.cuda, name)
        answer = answers[name] if name in answers else _refusing(f"torch.cuda.{name}", original, _WHY.get(name, ""))
        for holder in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs):
            if getattr(holder, name, None) is original:
                yield holder, name, answer
    for name in torch.accelerator.__all__:
        original, answer = getattr(torch.accelerator, name), _accelerator_answers()
        yield torch.accelerator, name, answer[name] if name in answer else _refusing(
            f"torch.accelerator.{name}", original, "")
    for name in ("mark", "range_push", "range_pop", "range_start", "range_end"):
        yield torch.cuda.nvtx, name, lambda *args, **kwargs: 0
    yield from ((torch.version, "hip", devices.hip_version()), (torch, "load", _loading(torch.load)),
                (torch, "compile", _compile), (torch, "Generator", _Generator))
    yield from _autocast()


def _answers() -> dict[str, Any]:
    """Those of torch.cuda."""
    return {
        **_device_answers(), **_memory_answers(),
        "Event": times.Event, "Stream": times.Stream, "StreamContext": times.stream, "stream": times.stream,
        "current_stream": times.current_stream, "default_stream": times.default_stream,
        "set_stream": times.set_stream, "synchronize": times.synchronize,
        "is_current_stream_capturing": lambda: False,
        "default_generators": tuple(torch.default_generator for _ in range(devices.count())),
        "manual_seed": _seed, "manual_seed_all": _seed, "seed": torch.seed, "seed_all": torch.seed,
        "initial_seed": torch.initial_seed,
        "get_rng_state": lambda device="cuda": torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state() for _ in range(devices.count())],
        "set_rng_state": lambda new_state, device="cuda": torch.set_rng_state(new_state),
        "set_rng_state_all": lambda new_states: torch.set_rng_state(list(new_states)[0]),
        "get_sync_debug_mode": lambda: 0,
    }


def _device_answers() -> dict[str, Any]:
    def facts(device: Any = None) -> Any:
        return devices.properties(devices.number_of(device))

    return {
        "is_available": lambda: True, "is_initialized": lambda: True, "init": lambda: None, "_lazy_init": lambda: None,
        "device_count": devices.count, "current_device": devices.current, "set_device": _set_device,
        "_exchange_device": devices.exchange, "_maybe_exchange_device": devices.exchange,
        "get_device_properties": facts,
        "get_device_name": lambda device=None: facts(device).name,
        "get_device_capability": lambda device=None: (facts(device).major, facts(device).minor),
        "get_arch_list": lambda: ["gfx942"],
        "can_device_access_peer": lambda device, peer_device: devices.number_of(device) != devices.number_of(
            peer_device),
        "clock_rate": lambda device=None: facts(device).clock_rate // 1000,
    }


def _set_device(device: Any) -> None:
    if type(device) is not int or device >= 0:  # a negative one changes nothing, as torch has it
        devices.set_current(device)


def _memory_answers() -> dict[str, Any]:
    """Memory is that of the tensors that the mode has marked."""
    def of(device: Any = None) -> marks.Memory:
        return marks.memory(devices.number_of(device))

    def statistics(device: Any = None) -> dict[str, int]:
        return {f"{kind}_bytes.all.{what}": value for kind in ("allocated", "reserved", "active")
                for what, value in (("current", of(device).now), ("peak", of(device).peak))}

    def information(device: Any = None) -> tuple[int, int]:
        total = devices.properties(devices.number_of(device)).total_memory
        return total - of(device).now, total

    return {
        "memory_allocated": lambda device=None: of(device).now, "memory_reserved": lambda device=None: of(device).now,
        "device_memory_used": lambda device=None: of(device).now,
        "max_memory_allocated": lambda device=None: of(device).peak,
        "max_memory_reserved": lambda device=None: of(device).peak,
        "reset_peak_memory_stats": lambda device=None: of(device).reset_peak(),
        "reset_accumulated_memory_stats": lambda device=None: None,
        "memory_stats": statistics, "mem_get_info": information,
        "empty_cache": lambda: None, "ipc_collect": lambda: None,
    }


def _accelerator_answers() -> dict[str, Any]:
    """Those of torch.accelerator."""
    same = {name: answer for name, answer in _answers().items() if name in torch.accelerator.__all__}
    return same | {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": devices.current, "current_device_idx": devices.current,
        "set_device_index": devices.set_current, "set_device_idx": devices.set_current,
        "get_memory_info": _memory_answers()["mem_get_info"],
        "empty_host_cache": lambda: None,
    }


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def _refusing(name: str, original: Any, why: str) -> Any:
    """What raises UnsupportedError when it is called: a class where a class was."""
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise UnsupportedError(f"sim.as_gpu: {name} is not there on the simulated MI300X{': ' if why else ''}{why}",
                               op=name)

    if inspect.isclass(original):
        return type(original.__name__, (), {"__new__": refuse, "__doc__": f"{name}, which refuses."})
    refuse.__name__ = name
    return refuse


class _Generator(torch.Generator):
    """torch.Generator: that of a GPU draws the CPU's numbers."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        index = devices.index_of(device)
        if index is None:
            return _GENERATOR(device)
        made = super().__new__(cls, "cpu")
        made.index, made.offset = index, 0
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


_GENERATOR = torch.Generator


def _loading(original: Callable) -> Callable:
    """torch.load, whose files and map_location may name a GPU."""
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        if callable(map_location):
            return original(f, map_location, *args, **kwargs)
        if map_location is not None and not isinstance(map_location, dict):
            index = devices.index_of(map_location)
            if index is None:
                return original(f, map_location, *args, **kwargs)

        def place(storage: Any, location: str) -> Any:
            named = map_location.get(location, location) if isinstance(map_location, dict) else (
                location if map_location is None else map_location)
            number = devices.index_of(named)
            if number is None:
                return None  # torch's own way
            marks.put_storage(storage, number)
            return storage

        return original(f, place, *args, **kwargs)

    return load


def _compile(model: Any = None, **options: Any) -> Any:
    """torch.compile: what it is given, uncompiled."""
    return model if model is not None else lambda function: function


def _autocast() -> Iterator[tuple[Any, str, Any]]:
    """Autocasting of "cuda" is the CPU's, of float16 unless another type is given."""
    original = torch.amp.autocast_mode.autocast.__init__

    def made(self: Any, device_type: str, dtype: torch.dtype | None = None, enabled: bool = True,
             cache_enabled: bool | None = None) -> None:
        is_gpu = device_type == "cuda"
        original(self, "cpu" if is_gpu else device_type, dtype or (torch.float16 if is_gpu else None), enabled,
                 cache_enabled)

    yield torch.amp.autocast_mode.autocast, "__init__", made
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        yield torch, name, _of_cpu(getattr(torch, name))


def _of_cpu(function: Callable) -> Callable:
    def asked(*args: Any) -> Any:
        if not args or isinstance(args[0], bool):  # the forms of old, of the GPU alone
            args = ("cuda", *args)
        return function(*("cpu" if arg == "cuda" else arg for arg in args))

    return asked
