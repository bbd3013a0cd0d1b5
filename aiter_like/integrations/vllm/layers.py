# SPDX-License-Identifier: MIT
"""vLLM's operator classes served by ours: norms, gated activations, rotary embeddings. `register` enters them into
vLLM's registry of out-of-tree classes, so that a model instantiates ours wherever it names vLLM's."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.takeover import take

_log = logging.getLogger("aiter_like")
_LAYERS = "vllm.model_executor.layers"


def rms_norm(layer: torch.nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """`RMSNorm.forward`: the norm, or (norm of the sum, sum)."""
    if layer.variance_size_override is not None:
        raise UnsupportedError(f"a variance over the first {layer.variance_size_override} elements of a row")
    if not layer.has_weight:
        raise UnsupportedError("a norm without weight")
    return _norm(layer, x, residual, False)


def gemma_rms_norm(layer: torch.nn.Module, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """`GemmaRMSNorm.forward`: as `rms_norm`, times weight + 1."""
    return _norm(layer, x, residual, True)


def _norm(layer: torch.nn.Module, x: Tensor, residual: Tensor | None,
          gemma_norm: bool) -> Tensor | tuple[Tensor, Tensor]:
    x = _even_rows(x)
    out = torch.empty_like(x)
    if residual is None:
        aiter_like.rmsnorm(out, x, layer.weight.data, layer.variance_epsilon, gemma_norm)
        return out
    residual = _even_rows(residual)
    residual_out = torch.empty_like(residual)
    aiter_like.rmsnorm2d_fwd_with_add(out, x, residual, residual_out, layer.weight.data, layer.variance_epsilon,
                                      gemma_norm)
    return out, residual_out


def _even_rows(x: Tensor) -> Tensor:
    """Heads that are a slice of a projection, as Qwen3's before their norm, lie unevenly: those are copied."""
    return x if x.ndim < 3 else x.contiguous()


def silu_and_mul(layer: torch.nn.Module, x: Tensor) -> Tensor:
    """`SiluAndMul.forward`."""
    out = _half(x)
    aiter_like.silu_and_mul(out, x)
    return out


def gelu_and_mul(layer: torch.nn.Module, x: Tensor) -> Tensor:
    """`GeluAndMul.forward`, by erf or by tanh as the layer says."""
    out = _half(x)
    (aiter_like.gelu_tanh_and_mul if layer.approximate == "tanh" else aiter_like.gelu_and_mul)(out, x)
    return out


def clamped_silu_and_mul(layer: torch.nn.Module, x: Tensor) -> Tensor:
    """`SiluAndMulWithClamp.forward`: SiLU with a limit, or gpt-oss's SwiGLU."""
    out, kind = _half(x), (layer.alpha, layer.beta)
    if kind == (1.0, 0.0) and layer.swiglu_limit > 0:
        aiter_like.silu_and_mul(out, x, layer.swiglu_limit)
    elif (*kind, layer.swiglu_limit) == (1.702, 1.0, 7.0):
        aiter_like.swiglu_and_mul(out, x)
    else:
        raise UnsupportedError(f"swiglu with alpha {layer.alpha}, beta {layer.beta}, limit {layer.swiglu_limit}")
    return out


def _half(x: Tensor) -> Tensor:
    return torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)


def rotary_embedding(layer: torch.nn.Module, positions: Tensor, query: Tensor,
                     key: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """`RotaryEmbedding.forward`: query and key, turned in place as vLLM's own kernels do."""
    if layer.use_flashinfer:
        raise UnsupportedError("a table laid out for FlashInfer")
    cos, sin = layer._match_cos_sin_cache_dtype(query).chunk(2, dim=-1)
    aiter_like.rotary_embedding_fwd(positions, query, key, layer.head_size, cos, sin, layer.is_neox_style, False)
    return query, key


@dataclass(frozen=True)
class _Row:
    """A class of vLLM and what serves its `forward`; `op` is the operator's name for AITER_LIKE_DISABLE."""

    module: str
    name: str
    ours: Callable
    op: str


# The classes of linear layers and of experts (vLLM's PluggableLayer) have the same registry: their rows join here.
_ROWS = (
    _Row(f"{_LAYERS}.layernorm", "RMSNorm", rms_norm, "rms_norm"),
    _Row(f"{_LAYERS}.layernorm", "GemmaRMSNorm", gemma_rms_norm, "rms_norm"),
    _Row(f"{_LAYERS}.activation", "SiluAndMul", silu_and_mul, "act_and_mul"),
    _Row(f"{_LAYERS}.activation", "SiluAndMulWithClamp", clamped_silu_and_mul, "act_and_mul"),
    _Row(f"{_LAYERS}.activation", "GeluAndMul", gelu_and_mul, "act_and_mul"),
    *(_Row(f"{_LAYERS}.rotary_embedding", name, rotary_embedding, "rope") for name in (
        "RotaryEmbedding", "Llama3RotaryEmbedding", "LinearScalingRotaryEmbedding", "NTKScalingRotaryEmbedding",
        "DynamicNTKScalingRotaryEmbedding", "DynamicNTKAlphaRotaryEmbedding", "YaRNScalingRotaryEmbedding")),
)

# A class may not have its own of these if the function written for the first of its family is to serve it too.
_FORMULA = ("forward", "forward_native", "forward_cuda", "_match_cos_sin_cache_dtype")


def register() -> None:
    """Enters a class of ours for each row, unless another plugin has, or AITER_LIKE_DISABLE names it.

    Raises:
        ImportError, AttributeError: this vLLM lacks a class of the table.
    """
    registry = _registry()
    for row in _ROWS:
        base = getattr(importlib.import_module(row.module), row.name)
        if row.name in registry:
            if not _is_ours(registry[row.name]):
                _log.info("vllm.%s: left to another plugin", row.name)
        elif row.ours is rotary_embedding and not _has_formula_of(base, "RotaryEmbedding"):
            _log.info("vllm.%s: left to the engine, it has a formula of its own", row.name)
        else:
            _register(base, row)


def registered() -> list[str]:
    """The classes of vLLM that ours stand in for."""
    return sorted(name for name, entry in _registry().items() if _is_ours(entry))


def unregister() -> None:
    """Takes them out again; layers that exist keep serving."""
    for name in registered():
        del _registry()[name]


def _registry() -> dict[str, type]:
    return importlib.import_module("vllm.model_executor.custom_op").op_registry_oot


def _register(base: type, row: _Row) -> None:
    # `forward` is above vLLM's choice of forward_hip, forward_cuda, forward_cpu or, under Inductor, forward_native.
    forward = take(f"vllm.{row.name}", row.ours, base.forward, row.op)
    if forward is not base.forward:
        served = type(f"Served{row.name}", (base,), {"forward": forward, "__module__": __name__})
        base.register_oot(served, name=row.name)
        served.name = base.name  # register_oot overwrites it, and `custom_ops` of vLLM's configuration refers to it


def _is_ours(entry: type) -> bool:
    return entry.__module__ == __name__


def _has_formula_of(base: type, name: str) -> bool:
    first = getattr(importlib.import_module(f"{_LAYERS}.rotary_embedding"), name)
    return all(getattr(base, attribute) is getattr(first, attribute) for attribute in _FORMULA)
