# SPDX-License-Identifier: MIT
"""vLLM's unquantised linear layers and its head of logits: their methods' `apply`, with `linear.product` before it."""

import functools
import importlib
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aiter_like.integrations import linear, takeover
from aiter_like.integrations.takeover import LEFT, take

_log = logging.getLogger("aiter_like")
_LAYERS = "vllm.model_executor.layers"
_NAME, _OWNER = "vllm.linear", "vllm"

# Their subclasses inherit what is put in place; quantised layers, and those of torchao, have methods of their own.
_METHODS = ((f"{_LAYERS}.linear", "UnquantizedLinearMethod"),
            (f"{_LAYERS}.vocab_parallel_embedding", "UnquantizedEmbeddingMethod"))

_taken: dict[type, Callable] = {}  # method → our `apply`


def apply(method: Any, layer: torch.nn.Module, x: Tensor, bias: Tensor | None = None) -> Tensor | object:
    """`UnquantizedLinearMethod.apply`."""
    if not isinstance(getattr(method, "_gemm_impl", apply), types.FunctionType):
        return LEFT  # FlashInfer's products, which `--linear-backend` asked for
    return linear.product(x, layer.weight, bias, _OWNER)


def take_methods(platform: str) -> None:
    """Puts ours before vLLM's; on a CPU only where AITER_LIKE_BACKENDS asks for a kernel of gemm_a16w16.

    Raises:
        ImportError, AttributeError: this vLLM has other methods.
    """
    if platform == "cpu" and not linear.is_asked_for():
        _log.info("%s: left to the engine, AITER_LIKE_BACKENDS names neither ck nor triton for the simulated MI300X",
                  _NAME)
        return
    linear.announce(_OWNER, _own_product)
    for module, name in _METHODS:
        method = getattr(importlib.import_module(module), name)
        if _is_taken(method):
            continue
        served = take(_NAME, apply, method.apply, linear.OP)
        if served is not method.apply:
            _taken[method] = served
            takeover.replace_attribute(method, "apply", served, _OWNER)
            if platform == "cpu":
                takeover.replace_attribute(method, "process_weights_after_loading", _keeping_weights(method), _OWNER)


def taken_methods() -> list[str]:
    """The names of the methods that ours are in."""
    return sorted(method.__name__ for method in _taken if _is_taken(method))


def _is_taken(method: type) -> bool:
    return method in _taken and vars(method).get("apply") is _taken[method]


def _own_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of vLLM's methods with a weight that it has not packed."""
    layers = sys.modules[f"{_LAYERS}.utils"]
    return layers.dispatch_unquantized_gemm()(None, x, weight, bias) if x.is_cuda else torch.nn.functional.linear(
        x, weight, bias)


def _keeping_weights(method: type) -> Callable:
    """vLLM packs weights for a CPU, for products of its own, and takes them out of the layer, or may write there: ours
    read them in the layer as they were."""
    original = method.process_weights_after_loading

    @functools.wraps(original)
    def process_weights_after_loading(method: Any, layer: torch.nn.Module) -> None:
        weight = layer.weight
        if weight.ndim != 2:  # a convolution's: its function is vLLM's and reads it as it was packed
            original(method, layer)
            return
        plain = weight.detach().clone()
        original(method, layer)
        is_kept = weight.is_meta or torch.equal(weight, plain)
        layer.weight = weight if is_kept else torch.nn.Parameter(plain, requires_grad=False)

    return process_weights_after_loading
