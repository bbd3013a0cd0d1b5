# SPDX-License-Identifier: MIT
"""vLLM's unquantised layers of experts: `apply` of their method, after vLLM's own routing, with fused_moe before it."""

import functools
import importlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import device
from aiter_like.enums import ActivationType
from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.integrations.takeover import LEFT
from aiter_like.ops.common import marks
from aiter_like.ops.common.contents import as_int32

_METHOD = "vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method"
_UTILS = "vllm.model_executor.utils"
_NAME, _OWNER, _OP = "vllm.experts", "vllm", "moe_gemm"

_ARCHS = frozenset({"gfx942", "sm_90"})  # our kernels were made for these

# Backends of vLLM that leave the matrices in their order, or that shuffle them and mark it.
_READABLE = frozenset({"TRITON", "AITER", "CPU"})

# vLLM's activation → ours, and the gates' place among the rows. gpt-oss's has a limit and a factor of its own.
_ACTIVATIONS = {"silu": (ActivationType.Silu, "separated"), "gelu": (ActivationType.Gelu, "separated")}
_GPT_OSS = {"swigluoai": "interleave", "swigluoai_uninterleave": "separated"}

_Weights = tuple[Tensor, Tensor, Tensor | None, Tensor | None]

_plain: weakref.WeakKeyDictionary[torch.nn.Module, _Weights] = weakref.WeakKeyDictionary()
"""Layer → its weights before vLLM packed them for its own products on a CPU."""


def take_methods(platform: str) -> None:
    """Puts ours before vLLM's.

    Raises:
        ImportError, AttributeError: this vLLM has another method.
    """
    method = importlib.import_module(_METHOD).UnquantizedFusedMoEMethod
    stock = method.apply
    takeover.take_attribute(method, "apply", _NAME, apply, _OP, _OWNER)
    if platform == "cpu" and method.apply is not stock:
        takeover.replace_attribute(method, "process_weights_after_loading", _keeping_weights(method), _OWNER)


def apply(method: Any, layer: torch.nn.Module, x: Tensor, topk_weights: Tensor, topk_ids: Tensor, shared_experts: Any,
          shared_experts_input: Tensor | None) -> Tensor | object:
    """`UnquantizedFusedMoEMethod.apply`: what the experts that are here make of each token, weighted and added up.
    Shared experts are the runner's business where nothing is sent between devices.

    Raises:
        UnsupportedError: the matrices are in another order, tokens are sent to experts of other devices, or the
            formula is another one.
    """
    if x.is_cuda and device.target_of(x.device).arch not in _ARCHS:
        return LEFT
    if method.unquantized_backend.name not in _READABLE:
        raise UnsupportedError(f"experts of vLLM's backend {method.unquantized_backend.name}")
    if method.moe.moe_parallel_config.use_all2all_kernels or method.mk_can_overlap_shared_experts:
        raise UnsupportedError("experts whose tokens are sent between devices")
    if layer.apply_router_weight_on_input:
        raise UnsupportedError("experts whose inputs are weighted")
    if method.unquantized_backend.name == "CPU" and layer not in _plain:
        raise UnsupportedError("experts whose matrices were packed when they were loaded")
    w13, w2, bias1, bias2 = _plain.get(layer) or _weights(layer)
    ids = as_int32(topk_ids)
    if layer.expert_map is not None:  # the last of the table is for numbers that are no expert's
        here = torch.nn.functional.pad(layer.expert_map, (0, 1), value=-1)
        ids = here[ids.clamp(-1, len(layer.expert_map))].int()
    return aiter_like.fused_moe(x, w13, w2, topk_weights.float(), ids, bias1=bias1, bias2=bias2,
                                **_formula(layer))


def _weights(layer: torch.nn.Module) -> _Weights:
    """Matrices, with the mark of the order that they are in, and biases."""
    parameters = layer.w13_weight, layer.w2_weight
    for parameter, data in zip(parameters, found := [one.data for one in parameters]):
        if layout := marks.layout_of(parameter):
            marks.mark(data, layout)
    biases = (getattr(layer, name, None) for name in ("w13_bias", "w2_bias"))
    return (*found, *(None if one is None else one.data for one in biases))


def _formula(layer: torch.nn.Module) -> dict[str, Any]:
    """Arguments of fused_moe that say what is between the products."""
    name = layer.activation.value
    alpha, beta, limit = (getattr(layer, f"swiglu_{part}", None) for part in ("alpha", "beta", "limit"))
    if name in _ACTIVATIONS and alpha in (None, 1.0) and beta in (None, 0.0):
        kind, mode = _ACTIVATIONS[name]
        return {"activation": kind, "gate_mode": mode, "swiglu_limit": limit or None}
    if name in _GPT_OSS and alpha in (None, 1.702) and beta in (None, 1.0):
        return {"activation": ActivationType.Swiglu, "gate_mode": _GPT_OSS[name],
                "swiglu_limit": 7.0 if limit is None else limit}
    raise UnsupportedError(f"experts with the activation {name}, alpha {alpha}, beta {beta}")


def _keeping_weights(method: type) -> Callable:
    """vLLM packs the matrices for a CPU, from 0.33 on into the same memory: ours read a copy of them as they were."""
    original = method.process_weights_after_loading

    @functools.wraps(original)
    def process_weights_after_loading(method: Any, layer: torch.nn.Module) -> None:
        is_packed = getattr(importlib.import_module(_UTILS), "is_weights_pre_processed", bool)()
        plain = tuple(None if one is None else one.clone() for one in _weights(layer))
        original(method, layer)
        if is_packed:  # They were packed before they were stored.
            _plain.pop(layer, None)
        else:
            _plain[layer] = plain

    return process_weights_after_loading
