# SPDX-License-Identifier: MIT
"""Backend: one implementation of an operator, what it refuses, its kernels, its revision, and how it is bound."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiter_like import env
from aiter_like.call import with_fields
from aiter_like.device import Target
from aiter_like.dispatch.surroundings import with_defaults, without_autocast
from aiter_like.dispatch.table import Row
from aiter_like.errors import BuildError, UnsupportedError
from aiter_like.modules import revision_python
from aiter_like.modules.recipe import ModuleSpec

_PACKAGE = Path(__file__).resolve().parents[1]

OWN_KINDS = ("hip", "ck", "asm", "triton")
KINDS = (*OWN_KINDS, "vendor", "torch")
"""Our own kernels; "vendor": the library of the GPU's vendor (hipBLASLt, cuBLAS), by way of torch; the reference."""


@dataclass(frozen=True)
class Backend:
    """One implementation of an operator.

    Attributes:
        name: one of KINDS.
        function: a `compile_ops` stub; "<module>:<function>", a module of this package that is imported on first use
            ("ops.norm.triton.rms_norm:rms_norm"); or a function. It takes the call object; a tuned row's params arrive
            by keyword (at a stub: in its gen_func). One of a triton backend launches nothing: it returns its launches
            (jit/triton_launch.py).
        refusal: of (target, call): None, or the reason why this backend cannot serve the call.
        kernels: of (target, call, **params): names of its kernels that have these parameters, best first, where it has
            several; the chosen one arrives by keyword as `kernel`.
        differentiable: autograd passes through it.
        space: of (target, call): the parameters that the tuner tries beyond the default, a dict for each trial, such
            as {"num_warps": 8}; all of them values that a tuned row can hold (int, float, bool, text).
        cost: of (call, facts, **params), the facts being the device's numbers (device.py): what a trial is expected to
            cost, in a unit of its own, infinite where it cannot run; the tuner leaves out what is far from this
            backend's cheapest.
        self_check: of (device, call): a small call that takes the same kernel as this one; for a backend with more
            kernels than the operator's own cases can name.
        address_refusal: of (call): None, or the reason why it cannot take the addresses of these tensors, as
            ops/common/vectors.py tells it; then the call goes on to the next backend. A launcher's own check, an
            AddressError, is for those that call it past dispatch.
        call: the operator's call object, which `Op` enters.
    """

    name: str
    function: Any
    refusal: Callable[..., str | None] | None = None
    kernels: Callable[..., list[str]] | None = None
    differentiable: bool = False
    space: Callable[..., Iterable[Mapping[str, Any]]] | None = None
    cost: Callable[..., float] | None = None
    self_check: Callable[..., tuple] | None = None
    address_refusal: Callable[..., str | None] | None = None
    call: type | None = None

    def __post_init__(self):
        if self.name not in KINDS:
            raise ValueError(f"backend must be one of {', '.join(KINDS)}, got {self.name!r}")

    @property
    def is_jit(self) -> bool:
        """Whether it is a module of our own that is built on first use."""
        return hasattr(self.function, "bind")

    def taking_fields(self, call: type) -> Backend:
        """This backend as dispatch has it: its functions take the fields of `call` by position (call.py)."""
        after_target = {name: with_fields(call, getattr(self, name), before=1)
                        for name in ("refusal", "kernels", "space", "self_check")}
        after_target["self_check"] = with_defaults(after_target["self_check"])
        is_torch = self.name in ("torch", "vendor") and callable(self.function)
        return replace(self, function=without_autocast(self.function) if is_torch else self.function, call=call,
                       address_refusal=with_fields(call, self.address_refusal), cost=with_fields(call, self.cost),
                       **after_target)

    def kernel_names(self, target: Target, args: tuple, params: Mapping[str, Any]) -> list[str]:
        """The kernels that can serve the call, best first."""
        if self.kernels is not None:
            return list(self.kernels(target, *args, **params))
        if self.is_jit:
            return [self.function.kernel_name(args, **params)]
        return [self.function.partition(":")[2] if isinstance(self.function, str) else self.name]

    def fixed_kernels(self) -> frozenset[str] | None:
        """The names a tuned row may give; None where they depend on the call."""
        if self.kernels is not None or self.is_jit:
            return None
        return frozenset(self.kernel_names(None, (), {}))

    def revision(self, platform: str) -> str:
        """The hash of what the device runs, for "hip" or "cuda" (modules/revision.py): the begin of a tuned row's
        kernel_rev; "" for a function in Python."""
        if platform not in self._revisions:
            self._revisions[platform] = self._revision(platform)
        return self._revisions[platform]

    @functools.cached_property
    def _revisions(self) -> dict[str, str]:
        return {}

    def _revision(self, platform: str) -> str:
        if self.is_jit:
            return self.function.text_revision(platform)
        if not isinstance(self.function, str):
            return ""
        module, _, launcher = self.function.partition(":")
        return revision_python.text_revision(_PACKAGE / f"{module.replace('.', '/')}.py", launcher)

    def toolchain(self, platform: str) -> str:
        """The compiler for "hip" or "cuda", such as "nvcc 13.0" or "triton 3.6"; without one, the compiler that made
        the prebuilt modules; "" where that cannot be known.
        """
        if not self.is_jit:
            package = "triton" if isinstance(self.function, str) else "torch"
            return f"{package} {'.'.join(importlib.import_module(package).__version__.split('.')[:2])}"
        from aiter_like.modules import build, toolchain

        try:
            found = toolchain.find(platform)
        except BuildError:
            return build.maker_of_prebuilt(env.get("AITER_LIKE_PREBUILT_DIR"), platform)
        return f"{found.name} {'.'.join(map(str, found.version[:2]))}"

    def staleness(self, row: Row) -> str | None:
        """Why a tuned row no longer speaks of this backend's kernel, or None, as far as a call asks: not how it is
        launched (declaration.py). An empty cell makes no claim."""
        platform = "hip" if row.key[0].startswith("gfx") else "cuda"
        text = row.kernel_rev.partition("-")[0]
        if text and text != (here := self.revision(platform)):
            return f"it timed revision {text} of the kernel, this is {here or 'unknown'}"
        if row.is_modelled:
            from aiter_like.sim import seam  # most machines' calls do not need it

            if row.model_version != (model := seam.model_version()):
                return f"version {row.model_version} of the cycle model timed it, this is version {model}"
        name, _, version = row.toolchain.partition(" ")
        here = self.toolchain(platform) if version else ""
        if here and f"{here}.".startswith(f"{name} {version}."):
            return None
        return f"it timed what {row.toolchain} made, here is {here}" if here else None

    def bind(self, target: Target, args: tuple, candidate: Candidate) -> Callable:
        """The function to call with the operator's arguments.

        Raises:
            BuildError: its module cannot be built or loaded.
            UnsupportedError: a package that it needs is not installed.
        """
        params = self._params(candidate)
        if self.is_jit:
            return self.function.bind(target, args, **params)
        function = _import(self.function) if isinstance(self.function, str) else self.function
        function = functools.partial(function, **params) if params else function
        function = with_fields(self.call, function) if self.call is not None else function
        if self.name != "triton":
            return function
        from aiter_like.jit.triton_launch import Launcher  # imports Triton

        return Launcher(function)

    def module(self, target: Target, args: tuple, candidate: Candidate) -> ModuleSpec:
        """The module that `bind` builds or loads, of a backend that is compiled."""
        return self.function.spec(target, args, **self._params(candidate))

    def _params(self, candidate: Candidate) -> dict[str, Any]:
        return {**candidate.params, **({} if self.kernels is None else {"kernel": candidate.kernel})}


def _import(name: str) -> Callable:
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(f"aiter_like.{module}"), function)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "triton":
            raise
        raise UnsupportedError(f"triton cannot be imported: {error}") from error


class Candidate:
    """A backend that serves the call, with parameters, and where the choice comes from; `row`: a tuned one.

    Attributes:
        kernel: its name; worked out when it is first asked for, as few calls ask.
    """

    def __init__(self, backend: Backend, kernel: str | Callable[[], str], params: Mapping[str, Any], source: str,
                 row: Row | None = None):
        self.backend, self.params, self.source, self.row = backend, params, source, row
        self._kernel = kernel

    @functools.cached_property
    def kernel(self) -> str:
        return self._kernel() if callable(self._kernel) else self._kernel
