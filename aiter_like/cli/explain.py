# SPDX-License-Identifier: MIT
"""`aiter-like explain`: which backend and kernel would serve a call."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aiter_like.errors import did_you_mean

_SUMMARY = "which backend and kernel would serve a call, and why not the others"


def add_commands(subparsers: argparse._SubParsersAction) -> None:
    """Adds `explain`; its parser sets `run`: of the parsed arguments, returns the exit status."""
    explain = subparsers.add_parser(
        "explain", description=_SUMMARY, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="A tensor is dtype[sizes], anything else a Python literal:\n"
               "  aiter-like explain rms_norm input=bf16[32,4096] weight=bf16[4096] epsilon=1e-6\n"
               "  aiter-like explain flash_attn_func q=bf16[1,99,8,64] k=bf16[1,99,2,64] v=bf16[1,99,2,64] causal=True")
    explain.add_argument("op", help="a public function, e.g. rms_norm")
    explain.add_argument("arguments", nargs="*", metavar="name=value")
    explain.add_argument("--device", default="auto", help="auto, cpu (simulated MI300X where there is no GPU), cuda")
    explain.add_argument("--counts", action="store_true",
                         help="then make the call, of random numbers and zeros, on the simulated MI300X, and print "
                              "what its kernels execute")
    explain.set_defaults(run=_explain)


def _explain(args: argparse.Namespace) -> int:
    import torch

    import aiter_like

    function = function_of(args.op)
    name = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"--device must be auto, cpu, cuda or cuda:N, got {name!r}")
    if name != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"--device {name}: torch sees no GPU; --device cpu is the simulated MI300X")
    values = arguments_of(function, args.arguments, torch.device(name))
    with torch.no_grad():
        explanations = aiter_like.explain(function, **values)
    for explanation in explanations if isinstance(explanations, tuple) else (explanations,):
        print(explanation)
    if args.counts:
        _count(function, values, name)
    return 0


def _count(function: Callable, values: dict[str, Any], device_name: str) -> None:
    """Makes the call with every kernel counted."""
    import torch

    from aiter_like import device, sim
    from aiter_like.sim import counting

    if not device.target_of(torch.device(device_name)).simulated:
        raise ValueError(f"--counts: {device_name} is not the simulated MI300X, which alone counts; add --device cpu")
    with torch.no_grad(), sim.enabled(checks=False, counters=True) as session:
        function(**filled(values))
    for launch in session.launches:
        print(f"{launch['kernel']}, grid {launch['grid']}, block {launch['block']}, simulated:")
        print("\n".join(f"  {line}" for line in counting.summary(launch)))


def function_of(name: str) -> Callable:
    """A public function."""
    import aiter_like

    function = getattr(aiter_like, name, None)
    if not callable(function):
        raise ValueError(_no_function(name))
    return function


def arguments_of(function: Callable, texts: Sequence[str], device: Any) -> dict[str, Any]:
    """`["x=bf16[32,4096]", "causal=True"]` as keyword arguments of a function, tensors uninitialised."""
    values = dict(_argument(text, device) for text in texts)
    known = inspect.signature(function).parameters
    free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())
    needed = [name for name, parameter in known.items() if parameter.default is parameter.empty and
              parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)]
    unknown = next((name for name in values if name not in known and not free), None)
    missing = [name for name in needed if name not in values]
    if unknown is None and not missing and len(values) == len(texts):
        return values
    what = (f"no argument {unknown!r}{did_you_mean(unknown, known)}" if unknown is not None else
            f"{', '.join(missing)} must be given" if missing else "an argument is there twice")
    raise ValueError(f"{function.__name__}: {what}; its arguments: {_shown(known.values())}")


def _shown(parameters: Iterable[inspect.Parameter]) -> str:
    return ", ".join(parameter.name if parameter.default is parameter.empty else
                     f"{parameter.name}={parameter.default!r}" for parameter in parameters)


def filled(values: dict[str, Any]) -> dict[str, Any]:
    """The same arguments; tensors get normal random numbers, the same ones each time, those of integers zeros, for they
    may be indices.
    """
    import torch

    numbers = torch.Generator().manual_seed(0)  # counts may depend on them
    for value in values.values():
        if isinstance(value, torch.Tensor):
            value.copy_(torch.randn(value.shape, generator=numbers) if value.is_floating_point() else
                        torch.zeros(value.shape))
    return values


def _no_function(name: str) -> str:
    """Suggests a public function instead of a name that is none."""
    import aiter_like
    from aiter_like.dispatch import OPS

    if name in OPS:
        functions = ", ".join(function.__name__ for function in OPS[name].public)
        return f"{name} is an operator, and no function" + (f"; made of it: {functions}" if functions else "")
    return f"no public function {name!r}{did_you_mean(name, aiter_like.__all__)}"


def _argument(text: str, device: Any) -> tuple[str, Any]:
    """`x=bf16[32,4096]` → ("x", tensor); `causal=True` → ("causal", True)."""
    import ast

    import torch

    from aiter_like.dtypes import DTYPES

    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"an argument must be name=value, got {text!r}")
    dtype, bracket, sizes = value.partition("[")
    if bracket and dtype.isidentifier():
        if dtype not in DTYPES:
            raise ValueError(f"{name}: no dtype {dtype!r}{did_you_mean(dtype, DTYPES)}; there are: {', '.join(DTYPES)}")
        if not re.fullmatch(r"(\s*\d+\s*(,|(?=\])))*\]", sizes):
            raise ValueError(f"{name} must be dtype[sizes], got {value!r}")
        shape = [int(size) for size in sizes.removesuffix("]").split(",") if size]
        try:
            return name, torch.empty(shape, dtype=DTYPES[dtype], device=device)
        except RuntimeError as error:  # more than there is
            raise ValueError(f"{name}={value}: {str(error).partition(chr(10))[0]}") from None
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
