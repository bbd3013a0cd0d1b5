# SPDX-License-Identifier: MIT
"""The names of torch.cuda, and a few more of torch's, within sim.as_gpu(). Names of torch.cuda and of
torch.accelerator that stand in no table here refuse (absent.py).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint

from aiter_like.sim.torch_cuda import (
    absent,
    collectives,
    devices,
    files,
    generators,
    graphs,
    marks,
    memory,
    refusals,
    streams,
    times,
)

KEPT_NAMES = frozenset((
    "amp", "graphs", "memory", "nccl", "nvtx", "profiler", "random", "sparse", "streams", "tunable", "jiterator",
    "CudaError", "DeferredCudaCallError", "cudaStatus", "has_half", "has_magma",
    # They ask functions that are answered below.
    "device", "device_of", "get_sync_debug_mode", "is_bf16_supported", "is_tf32_supported", "make_graphed_callables",
    "set_sync_debug_mode",
    *(name for name in torch.cuda.__all__ if name.endswith(("Storage", "Tensor")))))
"""Names of torch.cuda that stay what they are; of the last ones torch says itself that they need a GPU."""


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Each name that changes: its holder, the name, what it means now."""
    answers = _answers()
    for name in sorted({*torch.cuda.__all__, "_compile_kernel", *answers} - KEPT_NAMES):
        original = getattr(torch.cuda, name)
        answer = answers[name] if name in answers else absent.refusing(f"torch.cuda.{name}", original)
        for holder in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs):
            if getattr(holder, name, None) is original:
                yield holder, name, answer
    answers = _accelerator_answers()
    for name in torch.accelerator.__all__:
        original = getattr(torch.accelerator, name)
        yield torch.accelerator, name, answers[name] if name in answers else absent.refusing(
            f"torch.accelerator.{name}", original)
    for name, answer in _low_level_answers().items():
        yield torch._C, name, answer
    yield from ((torch.version, "hip", devices.hip_version()), (torch.version, "cuda", None),
                (torch.backends.cuda, "is_built", lambda: True), (torch, "load", files.loading(torch.load)),
                (torch, "compile", _compile), (torch, "Generator", generators.Generator),
                (torch.utils.checkpoint, "_allowed_determinism_checks_to_fns",
                 torch.utils.checkpoint._allowed_determinism_checks_to_fns | {"default": _facts_of_saved}),
                (torch.autograd.profiler.profile, "__init__", _profile()),
                (torch.Tensor, "record_stream", lambda self, stream: None),
                *((kind, "__call__", _following(kind.__call__))
                  for kind in (torch._C.ScriptMethod, torch._C.ScriptFunction)))
    for module in (absent, collectives):
        yield from module.replacements()


def _answers() -> dict[str, Any]:
    """Those of torch.cuda."""
    return {
        **_device_answers(), **_memory_answers(), **_random_answers(),
        "Event": times.Event, "Stream": streams.Stream, "StreamContext": streams.stream, "stream": streams.stream,
        "current_stream": streams.current_stream, "default_stream": streams.default_stream,
        "set_stream": streams.set_stream, "synchronize": graphs.synchronize,
        "is_current_stream_capturing": graphs.is_capturing, "CUDAGraph": graphs.CUDAGraph, "graph": graphs.graph,
        "graph_pool_handle": graphs.graph_pool_handle,
    }


def _device_answers() -> dict[str, Any]:
    def facts(device: Any = None) -> Any:
        return devices.properties(devices.number_of(device))

    return {
        "is_available": lambda: True, "is_initialized": lambda: True, "init": lambda: None, "_lazy_init": lambda: None,
        "_is_compiled": lambda: True, "_initialized": True,
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
    def of(device: Any = None) -> memory.Memory:
        return memory.of(devices.number_of(device))

    def information(device: Any = None) -> tuple[int, int]:
        total = devices.properties(devices.number_of(device)).total_memory
        return total - of(device).now, total

    def now(device: Any = None) -> int:
        return of(device).now

    def peak(device: Any = None) -> int:
        return of(device).peak

    return {
        "memory_allocated": now, "memory_reserved": now, "device_memory_used": now,
        "max_memory_allocated": peak, "max_memory_reserved": peak, "mem_get_info": information,
        "reset_peak_memory_stats": lambda device=None: of(device).reset_peak(),
        "memory_stats": lambda device=None: of(device).stats(),
        "empty_cache": lambda: None, "ipc_collect": lambda: None, "get_allocator_backend": lambda: "native",
        "MemPool": graphs.MemPool, "use_mem_pool": graphs.use_mem_pool,
    }


def _random_answers() -> dict[str, Any]:
    def set_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
        generators.default(devices.number_of(device)).set_state(new_state)

    return {
        "default_generators": generators.defaults(), "manual_seed": generators.seed,
        "manual_seed_all": generators.seed_all, "seed": generators.reseed, "seed_all": generators.reseed_all,
        "initial_seed": lambda: generators.default(devices.current()).initial_seed(),
        "get_rng_state": lambda device="cuda": generators.default(devices.number_of(device)).get_state(),
        "get_rng_state_all": lambda: [one.get_state() for one in generators.defaults()],
        "set_rng_state": set_state,
        "set_rng_state_all": lambda new_states: [set_state(one, i) for i, one in enumerate(new_states)] and None,
    }


def _accelerator_answers() -> dict[str, Any]:
    """Those of torch.accelerator."""
    same = {name: answer for name, answer in _answers().items() if name in torch.accelerator.__all__}
    del same["get_device_capability"]  # it tells something else there
    return same | {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": devices.current, "current_device_idx": devices.current,
        "set_device_index": devices.set_current, "set_device_idx": devices.set_current,
        "device_index": torch.accelerator.device_index, "get_memory_info": _memory_answers()["mem_get_info"],
    }


def _low_level_answers() -> dict[str, Any]:
    """Those of torch._C that torch's Python code, and programs, ask of a build for a GPU."""
    return {
        "_cuda_init": lambda: None, "_cuda_getDeviceCount": devices.count, "_cuda_getDevice": devices.current,
        "_cuda_setDevice": devices.set_current, "_cuda_getArchFlags": lambda: "gfx942",
        "_cuda_getCurrentRawStream": lambda index: streams.current_stream(index).cuda_stream,
        "_cuda_set_sync_debug_mode": refusals.set_sync_mode,
        "_cuda_get_sync_debug_mode": lambda: refusals.sync_mode[0],
        "_get_accelerator": lambda check=False: torch.device("cuda"),
        "_accelerator_exchangeDevice": lambda index: devices.exchange(devices.number_of(index)),
        "_accelerator_maybeExchangeDevice": devices.exchange,
        "_cuda_CUDAAllocator_AllocatorState": type("_AllocatorState", (), {}),  # Inductor imports it.
    }


def _facts_of_saved(tensor: torch.Tensor) -> dict[str, Any]:
    """The facts in which a repeated forward pass equals the first, to torch.utils.checkpoint: devices are not
    compared, because within a function of torch a tensor is not marked yet.
    """
    return {"shape": tensor.shape, "dtype": tensor.dtype}


def _profile() -> Callable:
    """The profiler's `__init__`: it sees the host's functions, and no launches; also where a program asks for the GPU's
    side alone, so that there is something to report.
    """
    original = torch.autograd.profiler.profile.__init__

    def made(self: Any, enabled: bool = True, *, use_cuda: bool = False, use_device: str | None = None,
             use_cpu: bool = True, **kwargs: Any) -> None:
        is_of_gpu = use_cuda or use_device == "cuda"
        original(self, enabled, use_device=None if is_of_gpu else use_device, use_cpu=use_cpu or is_of_gpu, **kwargs)

    return made


def _compile(model: Any = None, **options: Any) -> Any:
    """torch.compile: what it is given, uncompiled."""
    return model if model is not None else lambda function: function


def _following(original: Callable) -> Callable:
    """A scripted function, whose results are where its arguments are: the mode does not see what its C++ calls."""
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        results = original(self, *args, **kwargs)
        marks.follow(results, marks.tensors((args, kwargs)))
        return results

    return call
