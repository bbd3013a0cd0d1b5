# SPDX-License-Identifier: MIT
"""Functions that serve SGLang's layers: each takes the layer and the arguments of its forward, as SGLang's own do.

UnsupportedError, raised before anything is written, leaves a call to the method that SGLang would have run.
"""

import sys
from typing import Any

import torch
from torch import Tensor

from aiter_like.errors import UnsupportedError
from aiter_like.integrations import linear
from aiter_like.integrations.takeover import LEFT
from aiter_like.ops.activation.act_and_mul import gelu_and_mul, gelu_tanh_and_mul, silu_and_mul
from aiter_like.ops.norm.rms_norm import rms_norm, rmsnorm, rmsnorm2d_fwd_with_add
from aiter_like.ops.rope.rotary import rotary_embedding_fwd

_UNQUANTISED = "sglang.srt.layers.quantization.unquant"
_GELU = {"tanh": gelu_tanh_and_mul, "none": gelu_and_mul}


def forward_rms_norm(layer: Any, x: Tensor, residual: Tensor | None = None,
                     post_residual_addition: Tensor | None = None,
                     quant_linear: Any = None) -> Tensor | tuple[Tensor, Tensor]:
    """RMSNorm.forward: the norm, or (norm of the sum, sum) with a residual; nothing is written in place."""
    _refuse("RMSNorm", {
        "a variance over part of the row": layer.variance_size_override is not None,
        "a residual kept in float32": layer.fp32_residual and residual is not None,
        "another dtype of the result": layer.override_orig_dtype not in (None, x.dtype),
        "a padded result": getattr(layer, "x_pad_to_multiple", 0) > 0,
        "quantisation for the next layer": _is_quantised(quant_linear or layer._quant_linear),
        "batch-invariant mode": _is_batch_invariant(),
    })
    rounds_first = int(layer.cast_x_before_out_mul)  # before the weight, as in transformers
    weight, epsilon = layer.weight.data, layer.variance_epsilon
    if residual is None:
        return rms_norm(x, weight, epsilon, rounds_first)
    return _add_and_norm(x, residual, post_residual_addition, weight, epsilon, False, rounds_first)


def forward_gemma_rms_norm(layer: Any, x: Tensor, residual: Tensor | None = None,
                           post_residual_addition: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
    """GemmaRMSNorm.forward: RMSNorm's with weight + 1."""
    weight, epsilon = layer.weight.data, layer.variance_epsilon
    if residual is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        rmsnorm(out, x, weight, epsilon, True)
        return out
    return _add_and_norm(x, residual, post_residual_addition, weight, epsilon, True, 0)


def forward_silu_and_mul(layer: Any, x: Tensor) -> Tensor:
    """SiluAndMul.forward."""
    return _act_and_mul(silu_and_mul, x)


def forward_gelu_and_mul(layer: Any, x: Tensor) -> Tensor:
    """GeluAndMul.forward."""
    _refuse("GeluAndMul", {f"approximate={layer.approximate!r}": layer.approximate not in _GELU})
    return _act_and_mul(_GELU[layer.approximate], x)


def forward_rotary_embedding(layer: Any, positions: Tensor, query: Tensor, key: Tensor, offsets: Tensor | None = None,
                             fused_set_kv_buffer_arg: Any = None) -> tuple[Tensor, Tensor]:
    """RotaryEmbedding.forward: turns `query` and `key` in place, as SGLang's kernels do, and returns them."""
    _refuse("RotaryEmbedding", {
        "the cache written on the way": fused_set_kv_buffer_arg is not None,
        "a table made for the call": hasattr(layer, "sin_cos_cache"),
    })
    table = layer.cos_sin_cache
    if table.device != query.device:
        table = layer.cos_sin_cache = table.to(query.device)
    cos, sin = table.chunk(2, dim=-1)
    positions = positions if offsets is None else positions + offsets
    rotary_embedding_fwd(positions.flatten(), query, key, layer.head_size, cos, sin, layer.is_neox_style, False)
    return query, key


def apply_linear(layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor | object:
    """UnquantizedLinearMethod.apply."""
    weight = layer.weight
    if type(weight.data) is not Tensor or getattr(layer, "use_intel_amx_backend", False):
        return LEFT  # quantised by torchao, or packed for a CPU
    backend = sys.modules[_UNQUANTISED].get_bf16_gemm_backend()
    if backend.is_cutedsl() or backend.is_gemv() or _is_batch_invariant():
        return LEFT  # SGLang was asked for these, or has them for a reason
    return linear.product(x, weight, bias, "sglang")


def own_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """SGLang's own product with a plain weight."""
    own = sys.modules[_UNQUANTISED]
    return own.tgemm.mm(x, weight, bias, otype=x.dtype) if own._use_aiter else torch.nn.functional.linear(
        x, weight, bias)


def _add_and_norm(x: Tensor, residual: Tensor, addition: Tensor | None, weight: Tensor, epsilon: float, is_gemma: bool,
                  rounds_first: int) -> tuple[Tensor, Tensor]:
    residual = residual if addition is None else residual + addition
    out, total = (torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(2))
    rmsnorm2d_fwd_with_add(out, x, residual, total, weight, epsilon, is_gemma, rounds_first)
    return out, total


def _act_and_mul(operator: Any, x: Tensor) -> Tensor:
    out = torch.empty(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype, device=x.device)
    operator(out, x)
    return out


def _is_batch_invariant() -> bool:
    """Whether SGLang was asked for results that do not depend on the batch: it has kernels for that."""
    return sys.modules["sglang.srt.batch_invariant_ops"].is_batch_invariant_mode_enabled()


def _is_quantised(linear: Any) -> bool:
    """Whether SGLang's own norm would hand fp8 to `linear`."""
    norms = sys.modules["sglang.srt.layers.layernorm"]
    return (linear is not None and norms._flashinfer_rmsnorm_quant_available
            and norms._fp8_static_input_scale(linear) is not None)


def _refuse(layer: str, asked: dict[str, bool]) -> None:
    for what, is_asked in asked.items():
        if is_asked:
            raise UnsupportedError(f"{layer} with {what} is not served")
