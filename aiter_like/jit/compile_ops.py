# SPDX-License-Identifier: MIT
"""`@compile_ops`: a typed stub with a `...` body becomes a function of a module that is built and loaded on first use.

The annotations are the interface: they are compared once with the signature that the built function exports.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import torch

from aiter_like import paths
from aiter_like.call import call_type, signature
from aiter_like.device import Target, target_of
from aiter_like.errors import AddressError, BuildError, UnsupportedError
from aiter_like.jit.hip_runtime import load_hip_runtime
from aiter_like.modules import build, revision_cpp
from aiter_like.modules.recipe import ModuleSpec
from aiter_like.traced import exactly

_SUFFIX = re.compile(r"_(hip|ck|asm)$")


@dataclass(frozen=True)
class Instance:
    """One variant of a module.

    Attributes:
        name: its name in kernel lists and in the cache, "bf16_d64_rtna"; "" for a module of one variant.
        defines: the macros that select it.
    """

    name: str = ""
    defines: Mapping[str, Any] = field(default_factory=dict)


def compile_ops(module: str, fc_name: str | None = None, gen_func: Callable[..., Instance] | None = None,
                gen_fake: Callable | None = None, *,
                prebuild: Sequence[Instance] | Callable[[], Sequence[Instance]] = (),
                platforms: Sequence[str] = ("hip", "cuda")) -> Callable[..., JitFunction]:
    """Turns a typed stub into a `JitFunction`. Compiles and probes nothing.

    Args:
        module: the source below csrc/, "norm/rms_norm.hip".
        fc_name: the exported function; default: the stub's name without a leading "_" and "_hip", "_ck" or "_asm".
        gen_func: of the call's arguments (and of a tuned row's parameters, by keyword): the Instance to build.
        gen_fake: taken for AITER's signature and not used: a traced call goes through the operator's own fake
            (dispatch/torch_ops.py), which every `Op` has.
        prebuild: calls (or instances) whose modules `aiter-like build` makes besides those of the operator's cases, or
            a function that gives them; default: the one without macros, if there is no gen_func.
        platforms: what the source is for; one with gfx942 instructions says ("hip",).
    """

    def decorate(stub: Callable) -> JitFunction:
        return register(JitFunction(stub, module, fc_name, gen_func, prebuild, tuple(platforms)))

    return decorate


def register(function: Any) -> Any:
    """Declares a function of a module for `aiter-like build`: a JitFunction, or an AsmFunction of jit/asm.py.

    Raises:
        ValueError: another one has the same module and name.
    """
    other = _registry.setdefault(function.stem, function)
    if (other.module, other.__name__) != (function.module, function.__name__):
        raise ValueError(f"compile_ops: {function.stem} is declared twice, as {other.__name__} and {function.__name__}")
    _registry[function.stem] = function
    return function


def registered() -> list[Any]:
    """Every declared function, by name; complete once `aiter_like` is imported."""
    return [_registry[name] for name in sorted(_registry)]


class JitFunction:
    """A function of a module that is built on first use.

    Attributes:
        module: the source below csrc/.
        function_name: the exported function.
        platforms: what the source is for, "hip" and "cuda" if it is portable.
    """

    def __init__(self, stub: Callable, module: str, fc_name: str | None, gen_func: Callable[..., Instance] | None,
                 prebuild: Sequence[Instance] | Callable[[], Sequence[Instance]],
                 platforms: tuple[str, ...]):
        self.__name__, self.__doc__, self.__module__ = stub.__name__, stub.__doc__, stub.__module__
        self.__wrapped__ = stub
        self.module = module
        self.function_name = fc_name or _SUFFIX.sub("", stub.__name__.removeprefix("_"))
        self.platforms = platforms
        self._gen_func = gen_func
        self._prebuild = prebuild
        self._bound: dict[tuple, Any] = {}  # (target, instance name, macros) → (tvm_ffi.Function, key) or BuildError

    def __repr__(self) -> str:
        return f"<JitFunction {self.function_name} of {self.module}>"

    @cached_property
    def call(self) -> type | None:
        """The stub's call object; None for a stub that lists its parameters."""
        return call_type(self.__wrapped__)

    @cached_property
    def signature(self) -> inspect.Signature:
        """The built function's signature as the stub declares it, annotations evaluated."""
        return signature(self.call) if self.call else inspect.signature(self.__wrapped__, eval_str=True)

    def text_revision(self, platform: str) -> str:
        """8 hex digits: what the device runs of the source, for "hip" or "cuda"."""
        return revision_cpp.text_revision(paths.csrc() / self.module, platform)

    @property
    def stem(self) -> str:
        """Module and function: what is unique."""
        return f"{PurePosixPath(self.module).with_suffix('')}:{self.function_name}"

    def __call__(self, *args: Any) -> Any:
        """Builds or loads for the device of the first tensor, and calls. The dispatcher binds once instead."""
        tensor = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
        if tensor is None:
            raise TypeError(f"{self.__name__}: no tensor among the arguments tells the device")
        return self.bind(target_of(tensor.device), args)(*args)

    def bind(self, target: Target, args: Sequence[Any], **params: Any) -> Callable:
        """The loaded function for these arguments: the bare tvm_ffi.Function, called with positional arguments.

        Raises:
            UnsupportedError: the source is not for the target's platform.
            BuildError: no compiler, the source does not compile for the target, or the signatures differ.
        """
        return self._resolve(target, args, params)[0]

    def module_key(self, target: Target, args: Sequence[Any], **params: Any) -> str:
        """Content key of the module that `bind` loads."""
        return self._resolve(target, args, params)[1]

    def kernel_name(self, args: Sequence[Any], **params: Any) -> str:
        """Name in explain() and tuned rows: "rms_norm", or "flash_attn_fwd[bf16_d64]" where there are instances."""
        instance = self._instance(args, params)
        return f"{self.function_name}[{instance.name}]" if instance.name else self.function_name

    def instances(self) -> tuple[Instance, ...]:
        """The modules that `aiter-like build` makes."""
        named = self._prebuild() if callable(self._prebuild) else self._prebuild
        found = {instance.name: instance for instance in map(self._as_instance, named)}
        return tuple(found.values()) or (() if self._gen_func else (Instance(),))

    def _as_instance(self, named: Any) -> Instance:
        return named if isinstance(named, Instance) else self._instance(named, {})

    def spec(self, target: Target, args: Sequence[Any] | None = None, **params: Any) -> ModuleSpec:
        """The module for these arguments; without them that of the macro-free instance."""
        instance = Instance() if args is None else self._instance(args, params)
        return self.instance_spec(instance, target.platform, target.arch)

    def instance_spec(self, instance: Instance, platform: str, arch: str) -> ModuleSpec:
        """The module of one instance for a platform ("hip", "cuda") and architecture."""
        name = str(PurePosixPath(self.module).with_suffix(""))
        return ModuleSpec(f"{name}-{instance.name}" if instance.name else name, (self.module,), kind=platform,
                          arch=arch, defines=instance.defines, root=paths.csrc())

    def _instance(self, args: Sequence[Any], params: Mapping[str, Any]) -> Instance:
        if self._gen_func is None:
            return Instance()
        made = self._gen_func(self.call(*args), **params) if self.call else self._gen_func(*args, **params)
        return Instance(made.name, {name: exactly(value) for name, value in made.defines.items()})

    def _resolve(self, target: Target, args: Sequence[Any], params: Mapping[str, Any]) -> tuple[Callable, str]:
        if target.platform not in self.platforms:
            accepted = " and ".join(self.platforms)
            raise UnsupportedError(f"{self.function_name}: {self.module} is for {accepted} targets, not for "
                                   f"{target.platform}", self.function_name)
        instance = self._instance(args, params)
        key = (target.platform, target.arch, target.simulated, instance.name, *sorted(instance.defines.items()))
        found = self._bound.get(key)
        if found is None:
            try:
                found = self._load(self.instance_spec(instance, target.platform, target.arch), target)
            except BuildError as error:  # kept: a failing compilation costs seconds, and each new shape would repeat it
                found = error
            self._bound[key] = found
        if isinstance(found, BuildError):
            raise found
        return found

    def _load(self, spec: ModuleSpec, target: Target) -> tuple[Callable, str]:
        import tvm_ffi

        tvm_ffi.register_error("AddressError", AddressError)  # else what a launcher throws arrives as RuntimeError
        entry = build.ensure(spec)
        if target.platform == "hip":
            load_hip_runtime(target.simulated)
        try:
            module = tvm_ffi.load_module(str(entry.path))
            function = module.get_function(self.function_name)
            metadata = module.get_function_metadata(self.function_name)
        except (AttributeError, RuntimeError, OSError) as error:
            raise BuildError(f"{spec.name}: cannot load {self.function_name}: {error}", module=spec.name) from error
        self._check_signature(spec, metadata)
        return function, entry.key

    def _check_signature(self, spec: ModuleSpec, metadata: dict | None) -> None:
        """Compares the stub's annotations with the exported signature.

        Raises:
            BuildError: they differ; the message shows both.
        """
        declared = self.signature
        stub = ", ".join(_annotation_type(parameter.annotation) for parameter in declared.parameters.values())
        stub += f" -> {_annotation_type(declared.return_annotation)}"
        if metadata is None:
            raise BuildError(f"{spec.name}: {self.function_name} exports no signature: use AITER_LIKE_EXPORT",
                             module=spec.name)
        schema = json.loads(metadata["type_schema"])
        # tvm-ffi <= 0.1.14 lists [return, *parameters]; later versions name the two.
        named = schema.get("named_args") or {"return": schema["args"][:1], "params": schema["args"][1:]}
        built = ", ".join(_schema_type(parameter) for parameter in named["params"])
        built += f" -> {_schema_type(named['return'][0])}"
        if stub != built:
            raise BuildError(f"{self.module}: {self.__name__} is declared as ({stub}), but the built "
                             f"{self.function_name} is ({built})", module=spec.name)


_registry: dict[str, Any] = {}

_ANNOTATIONS = {torch.Tensor: "Tensor", tuple[torch.Tensor, ...]: "tuple[Tensor]", int: "int", float: "float",
                bool: "bool", str: "str", None: "None", types.NoneType: "None", inspect.Signature.empty: "None"}
_SCHEMAS = {"DLTensor*": "Tensor", "ffi.Tensor": "Tensor", "ffi.String": "str", "std::string": "str"}


def _annotation_type(annotation: Any) -> str:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        inner = [part for part in typing.get_args(annotation) if part is not types.NoneType]
        if len(inner) == 1:
            return f"{_annotation_type(inner[0])} | None"
    name = _ANNOTATIONS.get(annotation)
    if name is None:
        raise TypeError(f"compile_ops: annotation {annotation!r} is none of Tensor, tuple[Tensor, ...], int, float, "
                        "bool, str, or one of these | None")
    return name


def _schema_type(schema: dict) -> str:
    if schema["type"] == "Optional":
        return f"{_schema_type(schema['args'][0])} | None"
    if schema["type"] == "ffi.Array":
        return f"tuple[{_schema_type(schema['args'][0])}]"
    return _SCHEMAS.get(schema["type"], schema["type"])
