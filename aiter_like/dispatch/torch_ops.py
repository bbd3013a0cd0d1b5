# SPDX-License-Identifier: MIT
"""Operators in torch.library: schema from annotations, fake functions, refusal of autograd. Eager calls go past it.

Each `Op` is `torch.ops.aiter_like.<op>_out`, which writes its output arguments: this is what a traced public function
becomes. `register` adds `torch.ops.aiter_like.<op>`, which returns fresh tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from aiter_like.dispatch.registry import OPS
from aiter_like.errors import UnsupportedError

NAMESPACE = "aiter_like"


class _Namespace(torch._ops._OpNamespace):
    """`torch.ops.aiter_like`: an operator's module is imported when its name is first asked for."""

    __module__ = torch._ops.__name__  # operators inherit it, and torch.fx writes their names by it into source text

    def __getattr__(self, name: str) -> Any:
        OPS.get(name.removesuffix("_out"))
        return super().__getattr__(name)


setattr(torch.ops, NAMESPACE, _Namespace(NAMESPACE))
_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # it lives as long as the process

_TYPES = {"Tensor": "Tensor", "float": "float", "int": "SymInt", "bool": "bool", "str": "str", "dtype": "ScalarType",
          "tuple[int,int]": "SymInt[2]", "tuple[int,...]": "SymInt[]", "Sequence[int]": "SymInt[]",
          "list[Tensor]": "Tensor[]", "Sequence[Tensor]": "Tensor[]",
          "tuple[Tensor,...]": "Tensor[]"}
_EAGER_TYPES = (Tensor, Parameter)
_is_compiling = torch.compiler.is_compiling


def define(name: str, function: Callable, *, kernel: Callable, fake: Callable, writes: Iterable[str] = (),
           drop: Iterable[str] = (), returns: str = "()") -> Any:
    """Defines `torch.ops.aiter_like.<name>` with the parameters of `function`, less those in `drop`.

    Args:
        function: annotated function whose parameters become the schema; `backend` is added where it has none.
        kernel: runs the operator on real tensors of any device.
        fake: the same call on fake tensors.
        writes: parameters that are written.
        returns: the schema's return type.

    Returns:
        The operator's overload.

    Raises:
        TypeError: an annotation has no schema type.
        ValueError: the name is taken.
    """
    if hasattr(getattr(torch.ops, NAMESPACE), name):
        raise ValueError(f"torch.ops.{NAMESPACE}.{name} exists already")
    text = f"{name}({parameters(function, writes, drop)}) -> {returns}"
    _library.define(text, tags=(torch.Tag.pt2_compliant_tag,))
    overload = getattr(getattr(torch.ops, NAMESPACE), name).default
    _library.impl(name, kernel, "CompositeExplicitAutograd")
    _library.impl(name, _forward_only(name, overload), "Autograd", with_keyset=True)
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    return overload


def register(op: Any, function: Callable, fake: Callable | None = None) -> None:
    """Adds `torch.ops.aiter_like.<op>`: the public function without its `out`, returning fresh tensors.

    Args:
        op: the `Op` behind the function.
        function: the public function. Its return annotation is Tensor, or a tuple of Tensor.
        fake: its outputs for fake inputs; default: `function` itself, whose operators do nothing on fake tensors.
    """
    returned = _text(inspect.signature(function).return_annotation)
    returns = f"({returned[6:-1]})" if returned.startswith("tuple[") else returned
    if set(returns.strip("()").split(",")) != {"Tensor"}:
        raise TypeError(f"{op.name}: the public function must return Tensor or tuple[Tensor, …], got {returned}")
    define(op.name, function, kernel=function, fake=fake or function, drop=("out",), returns=returns)
    op.public.append(function)


def intercepted(args: Iterable[Any]) -> bool:
    """True when the call must pass through torch.library: a tensor is fake or a subclass, a torch dispatch mode records
    it, or torch.func transforms it.
    """
    if any(isinstance(arg, Tensor) and type(arg) not in _EAGER_TYPES for arg in args) or _is_compiling():
        return True
    return torch._C._len_torch_dispatch_stack() > 0 or is_transformed()  # the former is as old as torch 2.1


def differentiated(args: Iterable[Any]) -> bool:
    """Whether derivatives of torch follow a tensor, or a batch of it, that a kernel would not see: it is wrapped by a
    transform of torch.func, or has a tangent.
    """
    if has_dual_level() and any(map(_has_tangent, each_tensor(args))):
        return True
    return is_transformed() and any(
        torch._C._functorch.is_gradtrackingtensor(one) or torch._C._functorch.is_batchedtensor(one)
        for one in each_tensor(args))


def plan_of_empty(op: Any, forced: str | None, args: tuple) -> Callable | None:
    """The plan of an empty call through which autograd passes, or None: its outputs follow from the inputs too, as
    those of other calls do. Nothing is written in rows that no sequence has.
    """
    if not needs_grad(*each_tensor(args)) or \
            not any(each.differentiable and forced in (None, each.name) for each in op.backends):
        return None

    def join(*args: Any) -> None:
        written = list(each_tensor(args[index] for index in op.write_indices))
        sums = [one.flatten()[:0].sum() for one in each_tensor(args)
                if one.requires_grad and not any(one is other for other in written)]
        for out in written:
            if sums and out.ndim and out.dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
                out[:0].add_(sum(sums))

    return join


def needs_grad(*tensors: Any) -> bool:
    """Whether a public function has to bring the derivative by one of them: grad mode is on and it requires grad. Under
    torch.func's transforms, which want derivatives of derivatives too, the operator's reference has it.
    """
    return (torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in tensors)
            and not is_transformed())


def is_transformed() -> bool:
    """Whether a transform of torch.func is active. It has no public spelling, and is as old as torch 2.1."""
    return torch._C._are_functorch_transforms_active()


def has_dual_level() -> bool:
    """Whether tensors of this process may have tangents; no metadata tells of one that has."""
    return forward_ad._current_level >= 0


def each_tensor(args: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among the arguments, and in lists of them."""
    for arg in args:
        if isinstance(arg, Tensor):
            yield arg
        elif isinstance(arg, (tuple, list)):
            yield from (one for one in arg if isinstance(one, Tensor))


def _has_tangent(tensor: Tensor) -> bool:
    return forward_ad.unpack_dual(tensor).tangent is not None


def parameters(function: Callable, writes: Iterable[str] = (), drop: Iterable[str] = ()) -> str:
    """The parameters of `function` in torch's schema language.

    Raises:
        TypeError: an annotation has no schema type.
    """
    parts, keyword_only, written = [], [], set(writes)
    declared = [p for p in inspect.signature(function).parameters.values() if p.name not in drop]
    for parameter in declared:
        kind = _schema_type(function, parameter, len(parts) if parameter.name in written else None)
        default = "" if parameter.default is parameter.empty else f"={_default(parameter.default)}"
        keep = keyword_only if parameter.kind is parameter.KEYWORD_ONLY else parts
        keep.append(f"{kind} {parameter.name}{default}")
    if all(parameter.name != "backend" for parameter in declared):
        keyword_only.append("str? backend=None")
    return ", ".join([*parts, "*", *keyword_only] if keyword_only else parts)


def _schema_type(function: Callable, parameter: inspect.Parameter, alias: int | None) -> str:
    text = _text(parameter.annotation)
    inner = text.removesuffix("|None")
    kind = _TYPES.get(inner)
    if kind is None:
        raise TypeError(f"{function.__name__}: parameter {parameter.name} must be annotated with one of "
                        f"{', '.join(_TYPES)}, got {text!r}")
    if alias is not None:
        kind = kind.replace("Tensor", f"Tensor({chr(ord('a') + alias)}!)")
    return f"{kind}?" if text != inner else kind


def _text(annotation: Any) -> str:
    """An annotation as written, without blanks and module names; `from __future__ import annotations` or not."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    for prefix in ("torch.", "typing.", "collections.abc."):
        text = text.replace(prefix, "")
    return text.replace(" ", "")


def _default(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return str(list(value)) if isinstance(value, (tuple, list)) else str(value)


def _forward_only(name: str, overload: Any) -> Callable:
    """The Autograd kernel: these operators have no derivative, and a missing gradient must not pass unnoticed."""

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        for arg in each_tensor((*args, *kwargs.values())):
            if arg.requires_grad and torch.is_grad_enabled():
                raise UnsupportedError(f"torch.ops.{NAMESPACE}.{name} is forward only, and an argument requires "
                                       "grad: call it under torch.no_grad()", name)
            if has_dual_level() and _has_tangent(arg):
                raise UnsupportedError(f"torch.ops.{NAMESPACE}.{name} has no forward-mode derivative, and an argument "
                                       "has a tangent", name)
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*args, **kwargs)

    return kernel
