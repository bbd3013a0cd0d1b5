# SPDX-License-Identifier: MIT
"""Puts layers.py behind SGLang's layers, through the hooks that SGLang gives plugins.

A layer asks `_resolve_forward_method` once for the method that serves it; a hook around it answers with ours, which has
that method as its fall-back. So what SGLang decides before (a forced backend, a path that a layer is pinned to, its
mode under torch.compile) stays SGLang's. Out-of-tree platforms have a registry of forward functions instead.
Linear layers have a method object, around whose `apply` there is a hook of its own; so has the sampler's function.
"""

import functools
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch

from aiter_like.integrations import linear, takeover
from aiter_like.integrations.sglang import layers, sampler


@dataclass(frozen=True)
class Layer:
    """A class of SGLang: its dotted path, the operator that serves it, and the function that calls the operator."""

    path: str
    op: str
    forward: Callable

    @property
    def name(self) -> str:
        return f"sglang.{self.path.rpartition('.')[2]}"

    @property
    def target(self) -> str:
        return f"{self.path}._resolve_forward_method"


LAYERS = (
    Layer("sglang.srt.layers.layernorm.RMSNorm", "rms_norm", layers.forward_rms_norm),
    Layer("sglang.srt.layers.layernorm.GemmaRMSNorm", "rms_norm", layers.forward_gemma_rms_norm),
    Layer("sglang.srt.layers.activation.SiluAndMul", "act_and_mul", layers.forward_silu_and_mul),
    Layer("sglang.srt.layers.activation.GeluAndMul", "act_and_mul", layers.forward_gelu_and_mul),
    Layer("sglang.srt.layers.rotary_embedding.base.RotaryEmbedding", "rope", layers.forward_rotary_embedding),
)

LINEAR = "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply"

_is_on = False
_hooked: set[str] = set()  # SGLang cannot unregister a hook: one that is off answers what it was given
_registered: list[tuple[dict, type, Callable | None]] = []  # registry, class, what was there


def install() -> None:
    """Registers the hooks; SGLang applies them after all plugins have registered theirs."""
    global _is_on
    from sglang.srt.platforms import current_platform
    from sglang.srt.plugins import hook_registry

    _is_on = True
    if current_platform.is_out_of_tree():
        for layer in LAYERS:
            _register_out_of_tree(layer, current_platform.get_dispatch_key_name())
        return
    hooks = {layer.target: functools.partial(_answer, layer) for layer in LAYERS}
    if current_platform.is_cuda() or current_platform.is_rocm() or linear.is_asked_for():
        hooks |= _linear_hook() | sampler.hook(lambda: _is_on)
    for target in [target for target in hooks if target not in _hooked]:
        _hooked.add(target)
        hook_registry.HookRegistry.register(target, hooks[target], hook_registry.HookType.AROUND)
    if hook_registry._current_plugin_source.get() is None:  # called by the user: nobody applies them afterwards
        hook_registry.HookRegistry.apply_hooks()


def uninstall() -> None:
    """Layers that are made from now on are SGLang's own again."""
    global _is_on
    _is_on = False
    _served.cache_clear()
    while _registered:
        registry, cls, before = _registered.pop()
        if before is None:
            registry.pop(cls, None)
        else:
            registry[cls] = before


def _answer(layer: Layer, resolve: Callable, instance: Any) -> Callable:
    """The method that serves `instance`: ours before SGLang's, where that is one of the class named by `layer`."""
    method = resolve(instance)
    function = getattr(method, "__func__", None)
    if not _is_on or function is None or not _is_of(layer, function):
        return method  # a subclass has a method of its own
    if torch.compiler.is_dynamo_compiling():
        return method  # a graph that is being traced has no room for what the first answer reads and logs
    return MethodType(_served(layer, function), instance)


def _is_of(layer: Layer, function: Callable) -> bool:
    return f"{function.__module__}.{function.__qualname__}".rpartition(".")[0] == layer.path


@functools.cache
def _served(layer: Layer, function: Callable) -> Callable:
    return takeover.take(layer.name, layer.forward, function, layer.op)


def _linear_hook() -> dict[str, Callable]:
    """Target → hook: around SGLang's `apply`, which both functions get as their first argument. Made before any layer
    runs, as a graph that is being traced has no room for it."""

    def stock(own: Callable, method: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        return own(method, layer, x, bias)

    def ours(own: Callable, method: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        return layers.apply_linear(layer, x, bias) if _is_on else takeover.LEFT

    linear.announce("sglang", layers.own_linear)
    served = takeover.take("sglang.linear", ours, stock, linear.OP)
    return {} if served is stock else {LINEAR: served}


def _register_out_of_tree(layer: Layer, platform: str) -> None:
    from sglang.kernels.fused_op import BaseFusedOp

    cls = pkgutil.resolve_name(layer.path)
    registry = BaseFusedOp._oot_forward_registry.setdefault(platform, {})
    before = registry.get(cls)
    original = before or getattr(cls, f"forward_{platform}", cls.forward_native)
    _registered.append((registry, cls, before))
    BaseFusedOp.register_oot_forward(cls, _served(layer, original), platform)
