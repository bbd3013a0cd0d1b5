# SPDX-License-Identifier: MIT
"""Fake tensors (torch.export, FakeTensorMode) within sim.as_gpu(): torch, which here has no GPU's kernels, ends the
process when one of a GPU meets autograd. They are of the host, with the mark of the GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.export
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental import proxy_tensor
from torch.overrides import _get_current_function_mode_stack

from aiter_like.sim.torch_cuda import devices, marks

_aten = torch.ops.aten
_CPU = torch.device("cpu")
_PLACE = 2  # The device is the argument with this number.


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch's fake tensors: holder, name, what it means now."""
    yield FakeTensor, "__new__", _making(FakeTensor.__new__)
    yield FakeTensor, "device", property(_placed(FakeTensor.device.fget))
    yield torch.export, "export", _telling(torch.export.export)
    yield proxy_tensor, "make_fx", _traced(proxy_tensor.make_fx)


def follow(tensor: torch.Tensor, index: int | None) -> None:
    """Where the program has made a tensor, for the graph that is being traced, if one is."""
    mode = proxy_tensor.get_proxy_mode()
    slot = None if mode is None else proxy_tensor.get_proxy_slot(tensor, mode.tracer, None)
    value = None if slot is None else slot.proxy.node.meta.get("val")
    if index is not None and isinstance(value, torch.Tensor):
        marks.put(value, index)


def _telling(original: Callable) -> Callable:
    """A function that makes a program of graphs: they say on which GPU tensors are made."""
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        program = original(*args, **kwargs)
        _tell(program.graph_module)
        return program

    return make


def _traced(original: Callable) -> Callable:
    """make_fx, whose function makes a graph."""
    @functools.wraps(original)
    def make_fx(*args: Any, **kwargs: Any) -> Callable:
        trace = original(*args, **kwargs)

        def traced(*inputs: Any) -> torch.fx.GraphModule:
            module = trace(*inputs)
            _tell(module)
            return module

        return traced

    return make_fx


def _tell(module: torch.fx.GraphModule) -> None:
    """Calls of a graph name the GPU on which they make a tensor: the mode had told torch that it is the host."""
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            value = node.meta.get("val")
            if node.op != "call_function" or not isinstance(value, torch.Tensor):
                continue
            index = marks.index_of(value)
            if index is not None and node.kwargs.get("device") is not None:
                node.kwargs = node.kwargs | {"device": devices.of_index(index)}
            elif node.target is _aten.clone.default and index != marks.index_of(node.args[0].meta["val"]):
                node.target, node.args = _aten._to_copy.default, node.args[:1]  # a copy to another device
                node.kwargs = {"device": _CPU if index is None else devices.of_index(index)}
        if isinstance(part, torch.fx.GraphModule):
            part.recompile()


def _placed(original: Callable) -> Callable:
    """A fake tensor's device, as the program sees it; in the midst of a function of torch it is the host or `meta`."""
    def device(self: FakeTensor) -> torch.device:
        place = original(self)
        is_asked_by_program = place.type == "cpu" and _get_current_function_mode_stack()
        index = marks.index_of(self) if is_asked_by_program else None
        return place if index is None else devices.of_index(index)

    return device


def _making(original: Callable) -> Callable:
    def __new__(cls: type, *args: Any, **kwargs: Any) -> FakeTensor:
        index = None
        if len(args) > _PLACE:
            index = devices.index_of(args[_PLACE])
            if index is not None:
                args = (*args[:_PLACE], _CPU, *args[_PLACE + 1:])
        for name in ("device", "fake_device", "_fake_device"):
            named = devices.index_of(kwargs[name]) if kwargs.get(name) is not None else None
            if named is not None:
                index, kwargs = named, kwargs | {name: _CPU}
        made = original(cls, *args, **kwargs)
        return made if index is None else marks.put(made, index)

    return __new__
