# SPDX-License-Identifier: MIT
"""torch.cuda.CUDAGraph on the simulated MI300X: what a capture runs is remembered call by call, and run again.

A capture runs its calls once, because later ones need their results' shapes; afterwards memory that was there before it
is what it was, as if nothing had run.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from aiter_like.sim.state import current
from aiter_like.sim.torch_cuda import absent, devices, generators, marks, refusals, streams

_aten = torch.ops.aten
_ASKING = frozenset((_aten._local_scalar_dense, _aten.nonzero, _aten.masked_select, _aten.equal, _aten._unique2,
                     _aten.unique_consecutive, _aten.unique_dim, _aten.is_nonzero))
"""Their results' values or sizes are the host's to know, which would have to wait."""


@dataclass(frozen=True)
class _Step:
    """A call of the graph.

    Attributes:
        run: makes its results.
        results: those that the graph's first run has made, and that the program has: later ones are copied into them.
            Of those that are views of an argument, and of arguments that are written, nothing is copied.
    """

    run: Callable[[], Any]
    results: tuple[tuple[int, torch.Tensor], ...] = ()


class _Recorder(TorchDispatchMode):
    """Remembers torch's operations on tensors of the GPU, and launches."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[_Step] = []
        self.why_broken = ""
        self._own: dict[int, Any] = {}  # storages that the capture has made, by their identity
        self._before: dict[int, tuple[Any, Any]] = {}  # older ones that it has written, and what was in them
        self._in_launch = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        tensors = list(marks.tensors((args, kwargs)))
        if self._in_launch or (tensors and not any(map(self._is_on_gpu, tensors))):
            return func(*args, **kwargs)  # the host's own work is done once
        if func.overloadpacket in _ASKING:
            self.refuse(f"{func.overloadpacket} asks for values")
        self._keep(_written(func, args, kwargs))
        results = func(*args, **kwargs)
        holders = {id(marks.holder_of(tensor)) for tensor in tensors}
        made = tuple((i, tensor) for i, tensor in enumerate(marks.tensors(results))
                     if id(marks.holder_of(tensor)) not in holders)
        for _, tensor in made:
            self._own[id(marks.holder_of(tensor))] = marks.holder_of(tensor)
        if made or func._schema.is_mutable:
            self.steps.append(_Step(lambda: func(*args, **kwargs), made))
        return results

    def refuse(self, why: str) -> None:
        """Raises RuntimeError: a capture does not permit this, and is broken by it."""
        self.why_broken = why
        raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing: {why}")

    def launched(self, run: Callable[[], Any], args: tuple) -> Any:
        """A launch: it may write any of its tensors."""
        if self._in_launch:
            return run()
        self._in_launch = True
        try:
            self._keep(marks.tensors(args))
            result = run()
        finally:
            self._in_launch = False
        self.steps.append(_Step(run))
        return result

    def restore(self) -> None:
        """Memory from before the capture is what it was."""
        for holder, values in self._before.values():
            holder.copy_(values)

    def _is_on_gpu(self, tensor: torch.Tensor) -> bool:
        return marks.index_of(tensor) is not None or id(marks.holder_of(tensor)) in self._own

    def _keep(self, tensors: Iterator[torch.Tensor]) -> None:
        for tensor in tensors:
            holder = marks.holder_of(tensor)
            if id(holder) not in self._own and id(holder) not in self._before:
                self._before[id(holder)] = holder, holder.clone()


class CUDAGraph(absent.Partial):
    """torch.cuda.CUDAGraph."""

    def __init__(self, keep_graph: bool = False):
        self._steps: list[_Step] | None = None
        self._recorder: _Recorder | None = None
        self._generators: list[generators.Generator] = []
        self._drawn: list[tuple[generators.Generator, torch.Tensor, int]] = []

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        """Begins to remember what the program does with its GPU.

        Raises:
            RuntimeError: there is a capture already; the current stream is the default one.
        """
        if is_capturing():
            raise RuntimeError("CUDA error: operation not permitted: a capture has begun already")
        if streams.current_stream().stream_id == 0:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok "
                               "to replay them on the default stream.)")
        self._drawn = [(one, one.drawn(), one.offset) for one in (*generators.defaults(), *self._generators)]
        recorder = _Recorder()
        self._recorder = recorder
        recorder.__enter__()
        current.recorder = recorder.launched
        _captures.append(self)

    def capture_end(self) -> None:
        """The graph is complete.

        Raises:
            RuntimeError: it is capturing nothing, or something was called that a capture does not permit.
        """
        recorder = self._recorder
        if recorder is None:
            raise RuntimeError("CUDAGraph.capture_end: the graph is not capturing")
        current.recorder = None
        recorder.__exit__(None, None, None)
        _captures.remove(self)
        self._recorder = None
        with torch._C.DisableTorchFunction():
            recorder.restore()
            for generator, drawn, offset in self._drawn:  # a capture draws nothing: its first replay does
                generator.draw_as(drawn)
                generator.offset = offset
        if recorder.why_broken:
            raise RuntimeError(f"CUDA error: operation failed due to a previous error during capture: "
                               f"{recorder.why_broken}")
        self._steps = recorder.steps

    def replay(self) -> None:
        """Runs it.

        Raises:
            RuntimeError: it has not been captured.
        """
        if self._steps is None:
            raise RuntimeError("CUDAGraph.replay: called without a preceding successful capture")
        with torch._C.DisableTorchFunction(), torch.no_grad(), generators.drawing(devices.current()):
            for step in self._steps:
                fresh = tuple(marks.tensors(step.run())) if step.results else step.run()
                for place, tensor in step.results:
                    tensor.copy_(fresh[place])

    def reset(self) -> None:
        """It is as if it had not been captured."""
        self._steps = None

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Replays draw from it as the program would.

        Raises:
            RuntimeError: it is no GPU's.
        """
        if getattr(generator, "index", None) is None:
            raise RuntimeError("CUDAGraph.register_generator_state: expected a generator of device type cuda, got "
                               f"one of {generator.device}")
        self._generators.append(generator)

    def pool(self) -> tuple[int, int]:
        """The name of its memory, of which there is one."""
        return graph_pool_handle()


class graph(contextlib.AbstractContextManager):
    """torch.cuda.graph."""

    def __init__(self, cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None,
                 capture_error_mode: str = "global", **_: Any):
        self.cuda_graph = cuda_graph
        self._pool, self._mode = pool, capture_error_mode
        self._stream = streams.stream(stream or streams.Stream())

    def __enter__(self) -> None:
        self._stream.__enter__()
        self.cuda_graph.capture_begin(self._pool, self._mode)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.cuda_graph.capture_end()
        except RuntimeError:
            if error is None:
                raise
        finally:
            self._stream.__exit__(kind, error, trace)


class MemPool(absent.Partial):
    """In place of torch.cuda.MemPool: a name, as no memory is kept for later.

    Attributes:
        id: two numbers, of which no other pool has the same.
    """

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False):
        if allocator is not None:
            absent.refuse("an allocator of torch.cuda.MemPool")
        self.id = 0, next(_numbers)


@contextlib.contextmanager
def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
    """A block whose tensors are of that pool, which changes nothing."""
    yield


def graph_pool_handle() -> tuple[int, int]:
    """A name for the one memory that there is."""
    return 0, 1


def is_capturing() -> bool:
    """Whether a graph captures what is called."""
    return bool(_captures)


def check_call(func: Callable, args: tuple, kwargs: dict) -> None:
    """Raises RuntimeError where a capture does not permit a function of torch: the host would wait for a copy."""
    for one in _captures:
        if refusals.is_waiting_copy(func, args, kwargs):
            one._recorder.refuse(f"{getattr(func, '__name__', func)} copies between the host and a GPU, and waits")


def synchronize(device: Any = None) -> None:
    """torch.cuda.synchronize, which a capture does not permit."""
    for one in _captures:
        one._recorder.refuse("torch.cuda.synchronize")
    streams.synchronize(device)


_captures: list[CUDAGraph] = []
_numbers = itertools.count(2)  # (0, 1) is the pool of graphs


def _written(func: Any, args: tuple, kwargs: dict) -> Iterator[torch.Tensor]:
    """The arguments that an operation's schema says it writes."""
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from marks.tensors(args[i] if i < len(args) else kwargs.get(argument.name))
