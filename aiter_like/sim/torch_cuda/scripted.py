# SPDX-License-Identifier: MIT
"""Within sim.as_gpu(), tensors that functions of C++ make, which the mode of functions does not see: of scripted
functions and of lists of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from aiter_like.sim.torch_cuda import devices, marks


def replacements() -> Iterator[tuple[Any, str, Any]]:
    """Names of torch: holder, name, what it means now."""
    for kind in (torch._C.ScriptMethod, torch._C.ScriptFunction):
        yield kind, "__call__", _following(kind.__call__)
    yield torch.jit, "load", _loading(torch.jit.load)
    for name in ("nested_tensor", "as_nested_tensor"):
        yield torch.nested, name, _nested(getattr(torch.nested, name))


def _following(original: Callable) -> Callable:
    """A scripted function, whose results are where its arguments are."""
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        results = original(self, *args, **kwargs)
        marks.follow(results, [*marks.tensors(args), *marks.tensors(kwargs)])
        return results

    return call


def _loading(original: Callable) -> Callable:
    """torch.jit.load, whose map_location may name a GPU."""
    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        index = None if map_location is None else devices.index_of(map_location)
        module = original(f, map_location if index is None else "cpu", *args, **kwargs)
        for tensor in (*module.parameters(), *module.buffers()) if index is not None else ():
            marks.put(tensor, index)
        return module

    return load


def _nested(original: Callable) -> Callable:
    def made(tensor_list: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is None:
            index = next((marks.index_of(one) for one in marks.tensors(tensor_list)), None)
        else:
            index = devices.index_of(device)
        host = torch.device("cpu")
        parts = [one.to(host) for one in tensor_list] if isinstance(tensor_list, (list, tuple)) and all(
            isinstance(one, torch.Tensor) for one in tensor_list) else tensor_list
        result = original(parts, *args, device=host if index is not None else device, **kwargs)
        if index is None:
            return result
        for one in (result._values, result._offsets) if result.layout == torch.jagged else ():
            marks.put(one, index)
        return marks.put(result, index)

    return made
