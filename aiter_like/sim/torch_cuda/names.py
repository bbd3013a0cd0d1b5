# SPDX-License-Identifier: MIT
"""What the names of torch.cuda, and a few more of torch's, mean within sim.as_gpu(). Names of torch.cuda that stand in
no table here refuse.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint

from aiter_like.errors import UnsupportedError
from aiter_like.sim.torch_cuda import (
    autocast,
    collectives,
    comm,
    devices,
    dlpack,
    fakes,
    files,
    generators,
    graphs,
    low_level,
    memory,
    pools,
    runtime,
    scripted,
    statistics,
    storages,
    streams,
    switches,
    tensor_types,
    times,
)

KEPT = ("Storage", "Tensor")
"""Ends of names that are not answered here: torch's types of old (`tensor_types.py`)."""

KEPT_NAMES = frozenset((
    "amp", "graphs", "memory", "nccl", "nvtx", "profiler", "random", "sparse", "streams", "tunable", "jiterator",
    "DeferredCudaCallError", "cudaStatus", "has_half", "has_magma",
    # They ask functions that are answered below.
    "device", "device_of", "is_bf16_supported", "is_tf32_supported", "memory_cached",
    "max_memory_cached", "reset_max_memory_cached", "reset_max_memory_allocated", "memory_summary", "memory_snapshot",
    "set_per_process_memory_fraction", "get_per_process_memory_fraction", "caching_allocator_alloc",
    "caching_allocator_delete", "get_sync_debug_mode", "set_sync_debug_mode",
    "make_graphed_callables"))
"""Names of torch.cuda that stay what they are."""

_WHY = {
    "get_gencode_flags": "they are nvcc's; clang has --offload-arch=gfx942 for it",
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
        for holder in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams, torch.cuda.graphs,
                       torch.cuda.profiler):
            if getattr(holder, name, None) is original:
                yield holder, name, answer
    for name in torch.accelerator.__all__:
        original, answer = getattr(torch.accelerator, name), _accelerator_answers()
        yield torch.accelerator, name, answer[name] if name in answer else _refusing(
            f"torch.accelerator.{name}", original, "")
    for name in ("mark", "range_push", "range_pop", "range_start", "range_end"):
        yield torch.cuda.nvtx, name, lambda *args, **kwargs: 0
    for name in ("__enter__", "__exit__"):  # nobody records ranges
        yield torch.autograd.profiler.emit_nvtx, name, lambda self, *reason: None if reason else self
    yield from ((torch.version, "hip", devices.hip_version()), (torch, "load", files.loading(torch.load)),
                (torch, "compile", _compile), (torch, "Generator", generators.Generator),
                (torch.version, "cuda", None), (torch.autograd.profiler.profile, "__init__", _profile()),
                (torch, "Stream", times.named(torch.Stream, streams.Stream)),
                (torch, "Event", times.named(torch.Event, times.Event)),
                (torch.utils.checkpoint, "_allowed_determinism_checks_to_fns",
                 torch.utils.checkpoint._allowed_determinism_checks_to_fns | {"default": _facts_of_saved}),
                (torch.Tensor, "record_stream", lambda self, stream: None))
    for module in (autocast, collectives, comm, dlpack, fakes, low_level, scripted, storages, switches,
                   tensor_types):
        yield from module.replacements()


def _answers() -> dict[str, Any]:
    """Those of torch.cuda."""
    return {
        **_device_answers(), **_memory_answers(),
        "Event": times.Event, "Stream": streams.Stream, "StreamContext": streams.stream, "stream": streams.stream,
        "current_stream": streams.current_stream, "default_stream": streams.default_stream,
        "set_stream": streams.set_stream, "synchronize": graphs.synchronize,
        "ExternalStream": streams.ExternalStream,
        "get_stream_from_external": streams.ExternalStream,
        "is_current_stream_capturing": graphs.is_capturing, "CUDAGraph": graphs.CUDAGraph, "graph": graphs.graph,
        "graph_pool_handle": graphs.graph_pool_handle,
        "default_generators": generators.defaults(),
        "manual_seed": generators.seed, "manual_seed_all": generators.seed_all, "seed": generators.reseed,
        "seed_all": generators.reseed_all,
        "initial_seed": lambda: generators.default(devices.current()).initial_seed(),
        "get_rng_state": lambda device="cuda": generators.default(devices.number_of(device)).get_state(),
        "get_rng_state_all": lambda: [one.get_state() for one in generators.defaults()],
        "set_rng_state": _set_rng_state,
        "set_rng_state_all": lambda new_states: [_set_rng_state(one, i) for i, one in enumerate(new_states)] and None,
        "MemPool": pools.MemPool, "use_mem_pool": pools.use_mem_pool,
        "cudart": runtime.Runtime, "check_error": runtime.check_error, "CudaError": runtime.CudaError,
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
    def of(device: Any = None) -> memory.Memory:
        return memory.of(devices.number_of(device))

    def information(device: Any = None) -> tuple[int, int]:
        total = devices.properties(devices.number_of(device)).total_memory
        return total - of(device).now, total

    def peak(device: Any = None) -> int:
        return of(device).figures["all"][1].peak

    return {
        "memory_allocated": lambda device=None: of(device).now, "memory_reserved": lambda device=None: of(device).now,
        "device_memory_used": lambda device=None: of(device).now,
        "max_memory_allocated": peak, "max_memory_reserved": peak,
        "reset_peak_memory_stats": lambda device=None: of(device).reset(is_peak=True),
        "reset_accumulated_memory_stats": lambda device=None: of(device).reset(is_peak=False),
        "memory_stats": lambda device=None: statistics.flat(statistics.nested(of(device))), "mem_get_info": information,
        "memory_stats_as_nested_dict": lambda device=None: statistics.nested(of(device)),
        "host_memory_stats": lambda: statistics.flat(statistics.nested_of_host(memory.of(None))),
        "host_memory_stats_as_nested_dict": lambda: statistics.nested_of_host(memory.of(None)),
        "reset_peak_host_memory_stats": lambda: memory.of(None).reset(is_peak=True),
        "reset_accumulated_host_memory_stats": lambda: memory.of(None).reset(is_peak=False),
        "empty_cache": lambda: None, "ipc_collect": lambda: None, "get_allocator_backend": lambda: "native",
    }


def _accelerator_answers() -> dict[str, Any]:
    """Those of torch.accelerator."""
    same = {name: answer for name, answer in _answers().items() if name in torch.accelerator.__all__}
    return same | {
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": devices.current, "current_device_idx": devices.current,
        "set_device_index": devices.set_current, "set_device_idx": devices.set_current,
        "device_index": torch.accelerator.device_index, "Graph": graphs.AcceleratorGraph,
        "get_device_capability": low_level.capability,
        "get_memory_info": _memory_answers()["mem_get_info"],
        "empty_host_cache": lambda: None,
    }


def _set_rng_state(new_state: torch.Tensor, device: Any = "cuda") -> None:
    generators.default(devices.number_of(device)).set_state(new_state)


def _refusing(name: str, original: Any, why: str) -> Any:
    """What raises UnsupportedError when it is called: a class where a class was."""
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise UnsupportedError(f"sim.as_gpu: {name} is not there on the simulated MI300X{': ' if why else ''}{why}",
                               op=name)

    if inspect.isclass(original):
        return type(original.__name__, (), {"__new__": refuse, "__doc__": f"{name}, which refuses."})
    refuse.__name__ = name
    return refuse


def _facts_of_saved(tensor: torch.Tensor) -> dict[str, Any]:
    """What a forward pass once more has to have in common with the first, to torch.utils.checkpoint: devices are not
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
    """torch.compile: what it is given, uncompiled; a module in the wrapper that torch puts around one."""
    if model is None:
        return lambda function: _compile(function, **options)
    if not isinstance(model, torch.nn.Module):
        return model
    from torch._dynamo.eval_frame import OptimizedModule

    return OptimizedModule(model, lambda function: function)
