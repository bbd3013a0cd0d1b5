# SPDX-License-Identifier: MIT
"""Torch's functions within sim.as_gpu(): their devices are the CPU's, and where a program's tensors are is remembered
by marks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._device import DeviceContext, _device_constructors

from aiter_like.sim.torch_cuda import absent, devices, generators, graphs, marks, products, refusals, wide

_CPU = torch.device("cpu")
_SHARING = (torch.as_tensor, torch.asarray)  # their result may have the memory of what they are given


class Mode(TorchFunctionMode):
    """Turns the devices among the arguments of torch's functions, and marks their results.

    Attributes:
        is_on: False: it does nothing any more, on whichever thread.
    """

    is_on = True

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        if not self.is_on:
            return func(*args, **kwargs)
        if refusals.sync_mode[0]:
            refusals.check_waiting(func, args, kwargs)
        if graphs.is_capturing():
            graphs.check_call(func, args, kwargs)
        if wide.is_meant(func, args, kwargs):
            return wide.called(func, args, kwargs)
        answer = _ANSWERS.get(func)
        return answer(func, args, kwargs) if answer else _called(func, args, kwargs)


def with_default_device(context: DeviceContext, func: Callable, types: Any, args: tuple = (),
                        kwargs: dict | None = None) -> Any:
    """In place of DeviceContext's own: a default device that is a GPU makes marked tensors."""
    kwargs = kwargs or {}
    if func in _device_constructors() and kwargs.get("device") is None:
        with torch._C.DisableTorchFunction():  # the mode, which may be below, would see the CPU
            return _called(func, args, kwargs | {"device": context.device})
    return func(*args, **kwargs)


def _called(func: Callable, args: tuple, kwargs: dict) -> Any:
    """Any function: with device=…, or where its arguments are."""
    is_placed = kwargs.get("device") is not None
    index = devices.index_of(kwargs["device"]) if is_placed else None
    if index is not None:
        kwargs = kwargs | {"device": _CPU}
    is_pinned = kwargs.get("pin_memory", False) and (index is None or refusals.check_pinned(args))
    if "pin_memory" in kwargs:
        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    if index is None:
        refusals.check_places(func, args, kwargs)
        refusals.check_indices(func, args)
    has_default = not is_placed and _device.CURRENT_DEVICE is not None and func in _device_constructors()
    if generators.is_drawing(func) and not has_default:  # The default device makes its own call.
        place = index if is_placed else marks.first_place(args, kwargs)
        results = generators.call(lambda named: _made(func, args, named, index), func, kwargs, place)
    else:
        results = _made(func, args, kwargs, index)
    if is_pinned:
        return marks.put(results, None)
    if not is_placed:
        is_constructor = func in _device_constructors() and not (args and isinstance(args[0], torch.Tensor))
        if not is_constructor and next(marks.tensors(results), None) is not None:
            marks.follow(results, marks.tensors((args, kwargs)))
        return results
    if func in _SHARING:
        return _moved(args[0], results, index)
    for tensor in marks.tensors(results) if index is not None else ():
        marks.put(tensor, index)
    return results


def _made(func: Callable, args: tuple, kwargs: dict, index: int | None) -> Any:
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        told = refusals.out_of_memory(error)
        if told is None or (index is None and marks.first_place(args, kwargs) is None):
            raise
        raise told from error


def _moved(source: Any, result: torch.Tensor, index: int | None) -> torch.Tensor:
    """`result`, which a function made of `source`, on that GPU, or with None on the host. Between the two there is no
    common memory.
    """
    is_tensor = isinstance(source, torch.Tensor)
    if is_tensor and marks.index_of(source) == index:
        marks.follow(result, [source])
        return result
    if index is None and not is_tensor:
        return result
    if not is_tensor or marks.holder_of(result) is marks.holder_of(source):
        result = result.clone()
    if is_tensor:
        _return_gradient(result, marks.index_of(source))
    return marks.remove(result) if index is None else marks.put(result, index)


def _return_gradient(result: torch.Tensor, index: int | None) -> None:
    """The gradient of a tensor that has been copied from another device goes back there."""
    if result.grad_fn is None or marks.is_functional(result):
        return
    place = _CPU if index is None else devices.of_index(index)
    result.register_hook(lambda gradient: gradient if gradient is None else gradient.to(place))


def _to(func: Callable, args: tuple, kwargs: dict) -> Any:
    tensor, *rest = args
    place = kwargs.get("device", kwargs.get("other", rest[0] if rest else None))
    if not isinstance(place, (str, torch.device, torch.Tensor)) and type(place) is not int:
        return _called(func, args, kwargs)  # a type alone
    if isinstance(place, torch.Tensor):
        index = marks.index_of(place)
    else:
        index = devices.index_of(place)
        if index is None and torch.device(place).type != "cpu":
            return func(*args, **kwargs)
        if kwargs.get("device") is not None:
            kwargs = kwargs | {"device": _CPU}
        else:
            rest[0] = _CPU
    return _moved(tensor, func(tensor, *rest, **kwargs), index)


def _cuda(func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    tensor, *rest = args
    index = devices.number_of(kwargs.get("device", rest[0] if rest else None))
    layout = kwargs.get("memory_format", torch.preserve_format)
    if marks.index_of(tensor) == index and layout is torch.preserve_format:
        return tensor
    result = tensor.clone() if layout is torch.preserve_format else tensor.clone(memory_format=layout)
    if marks.index_of(tensor) != index:
        _return_gradient(result, marks.index_of(tensor))
    return marks.put(result, index)


def _set_gradient(func: Callable, args: tuple, kwargs: dict) -> None:
    tensor, gradient = args
    if isinstance(gradient, torch.Tensor) and marks.index_of(gradient) != marks.index_of(tensor):
        raise RuntimeError("assigned grad has data located on a different device: "
                           f"{devices.told(marks.index_of(gradient))} instead of "
                           f"{devices.told(marks.index_of(tensor))}")
    func(*args, **kwargs)


def _scaled_product(func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    result = products.scaled(func, args, kwargs)
    return _called(func, args, kwargs) if result is None else result


def _place(func: Callable, args: tuple, kwargs: dict) -> torch.device:
    """torch.device, of which a number is a GPU's."""
    if len(args) == 1 and type(args[0]) is int and not kwargs:
        return devices.of_index(args[0])
    return func(*args, **kwargs)


def _parsed(func: Callable, args: tuple, kwargs: dict) -> tuple:
    """Reads the arguments of nn.Module.to: a number is a GPU's."""
    if args and type(args[0]) is int:
        args = (devices.of_index(args[0]), *args[1:])
    if type(kwargs.get("device")) is int:
        kwargs = kwargs | {"device": devices.of_index(kwargs["device"])}
    return func(*args, **kwargs)


def _cpu(func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    return _moved(args[0], func(*args, **kwargs), None)


def _type_as(func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    other = args[1] if len(args) > 1 else kwargs["other"]
    return _moved(args[0], func(*args, **kwargs), marks.index_of(other))


def _pin_memory(func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    tensor = args[0]
    if marks.index_of(tensor) is not None:
        kind = _type(torch.Tensor.type, (tensor,), {})
        raise RuntimeError(f"cannot pin '{kind}' only dense CPU tensors can be pinned")
    return tensor if marks.is_pinned(tensor) else marks.put(tensor.clone(), None)


def _device_of(func: Callable, args: tuple, kwargs: dict) -> torch.device:
    index, place = marks.index_of(args[0]), func(*args, **kwargs)
    return place if index is None or place.type == "meta" else devices.of_index(index)


def _to_numpy(func: Callable, args: tuple, kwargs: dict) -> Any:
    index = marks.index_of(args[0])
    if kwargs.get("force"):
        return func(*args, **kwargs) if index is None else args[0].detach().clone().numpy(force=True)
    if index is not None:
        raise TypeError(f"can't convert cuda:{index} device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
                        "to host memory first.")
    return func(*args, **kwargs)


def _exported(func: Callable, args: tuple, kwargs: dict) -> Any:
    """Refuses other libraries the memory of a tensor: they would take that of a GPU for the host's."""
    if marks.index_of(args[0]) is not None:
        absent.refuse(f"torch.Tensor.{func.__name__} on a GPU")
    return func(*args, **kwargs)


def _histc(func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """histc, which of integers a GPU has, and the CPU has not: counted in float64, with limits that are integers."""
    tensor = args[0] if args else kwargs["input"]
    if marks.index_of(tensor) is None or tensor.is_floating_point():
        return _called(func, args, kwargs)
    named = dict(zip(("input", "bins", "min", "max"), args, strict=False)) | kwargs | {"input": tensor.double()}
    limits = {name: int(named[name]) for name in ("min", "max") if name in named}
    return marks.put(torch.histc(**named | limits).to(tensor.dtype), marks.index_of(tensor))


def _repr(func: Callable, args: tuple, kwargs: dict) -> str:
    """torch's text, with the device where it stands in that of a GPU's tensor: after the values."""
    text, index = func(*args, **kwargs), marks.index_of(args[0])
    if index is None or "device=" in text or text.startswith("Parameter"):  # a parameter's is made of its tensor's
        return text
    values = text.rfind("]") if "]" in text else text.find("(")
    end = next((text.find(mark, values) for mark in (",", ")") if text.find(mark, values) >= 0), -1)
    return text if end < 0 else f"{text[:end]}, device='{devices.of_index(index)}'{text[end:]}"


def _format(func: Callable, args: tuple, kwargs: dict) -> str:
    tensor, spec = args
    return func(*args, **kwargs) if tensor.dim() == 0 or spec or tensor.is_meta else _repr(
        torch.Tensor.__repr__, (tensor,), {})


def _type(func: Callable, args: tuple, kwargs: dict) -> Any:
    tensor, wanted = args[0], args[1] if len(args) > 1 else kwargs.get("dtype")
    if wanted is None:
        name = func(*args)
        return name if marks.index_of(tensor) is None else name.replace("torch.", "torch.cuda.", 1)
    if not isinstance(wanted, torch.dtype) and (marks.index_of(tensor) is not None or "cuda" in str(wanted)):
        absent.refuse(f"torch.Tensor.type({wanted}) of a GPU")
    return _called(func, args, kwargs)


def _deepcopy(func: Callable, args: tuple, kwargs: dict) -> torch.Tensor:
    """A copy is where its tensor is; so is that of its gradient."""
    result = func(*args, **kwargs)
    marks.follow(result, args[:1])
    if args[0].grad is not None and result.grad is not None:
        marks.follow(result.grad, [args[0].grad])
    return result


def _get_device(func: Callable, args: tuple, kwargs: dict) -> int:
    index = marks.index_of(args[0])
    return func(*args, **kwargs) if index is None else index


_ANSWERS: dict[Any, Callable[[Callable, tuple, dict], Any]] = {
    torch.device: _place,
    torch._scaled_mm: _scaled_product,
    torch.Tensor.to: _to,
    torch._C._nn._parse_to: _parsed,
    torch.Tensor.type_as: _type_as,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.cpu: _cpu,
    torch.Tensor.pin_memory: _pin_memory,
    torch.Tensor.grad.__set__: _set_gradient,
    torch.Tensor.is_shared: lambda func, args, kwargs: marks.index_of(args[0]) is not None or func(*args, **kwargs),
    torch.Tensor.is_pinned: lambda func, args, kwargs: marks.is_pinned(args[0]),
    torch.Tensor.__repr__: _repr,
    torch.Tensor.__format__: _format,
    torch.Tensor.type: _type,
    torch.Tensor.__deepcopy__: _deepcopy,
    torch.Tensor.__dlpack_device__: _exported,
    torch.Tensor.__dlpack__: _exported,
    torch.histc: _histc,
    torch.Tensor.histc: _histc,
    torch.Tensor.get_device: _get_device,
    torch.get_device: _get_device,
    torch.Tensor.numpy: _to_numpy,
    torch.Tensor.__array__: _to_numpy,
    torch.Tensor.device.__get__: _device_of,
    torch.Tensor.is_cuda.__get__: lambda func, args, kwargs: marks.index_of(args[0]) is not None,
    torch.Tensor.is_cpu.__get__: lambda func, args, kwargs: func(*args) and marks.index_of(args[0]) is None,
}
