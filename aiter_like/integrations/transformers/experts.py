# SPDX-License-Identifier: MIT
"""Layers of experts of transformers models: which formula one has, and fused_moe for it. Read by transformers.py.

Since version 5 such a layer has its matrices in two parameters, and attributes that say how they are stored. What is
between the two products is recognised by what the layer's own code computes on a few random numbers.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from aiter_like.enums import ActivationType
from aiter_like.errors import UnsupportedError
from aiter_like.ops.common.contents import as_int32
from aiter_like.ops.moe.fused_moe import fused_moe

_WHAT_IT_SAYS = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm", "num_experts")
_PROBE_ROWS, _PROBE_COLUMNS = 7, 64
_REACH = 6.0  # A probe has numbers as large as this, so that limits of 7 show.
_ALPHA = 1.702


def experts_forward(module: nn.Module) -> Callable | None:
    """A forward function (module, hidden_states, ids, weights) for a layer of experts; None where `module` is none."""
    if not all(hasattr(module, name) for name in _WHAT_IT_SAYS) or not module.has_gate or module.has_post_expert_norm:
        return None
    matrices = [module._parameters.get(name) for name in ("gate_up_proj", "down_proj")]
    if any(one is None or one.ndim != 3 or not one.is_floating_point() for one in matrices):
        return None
    form = _gate_of(module)
    if form is None:
        return None

    def experts(module: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        both, down = module.gate_up_proj, module.down_proj
        if hidden_states.ndim != 2 or hidden_states.dtype != both.dtype or torch.is_autocast_enabled(
                hidden_states.device.type):
            raise UnsupportedError(f"experts: {list(hidden_states.shape)} of {hidden_states.dtype} with matrices of "
                                   f"{both.dtype}, or under autocast")
        if torch.is_grad_enabled() and any(one.requires_grad for one in (hidden_states, both, top_k_weights)):
            raise UnsupportedError("experts: no kernel has a derivative")
        if module.is_transposed:
            both, down = both.mT, down.mT
        biases = (module.gate_up_proj_bias, module.down_proj_bias) if module.has_bias else (None, None)
        return fused_moe(hidden_states, both, down, top_k_weights.float(), as_int32(top_k_index), bias1=biases[0],
                         bias2=biases[1], **form)

    return experts


@torch.no_grad()
def _gate_of(module: nn.Module) -> dict[str, Any] | None:
    """Arguments of fused_moe with which it lets through what the module does; None: another formula."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_PROBE_ROWS, _PROBE_COLUMNS, generator=generator, dtype=torch.float32, device="cpu") * _REACH
    try:
        expected = module._apply_gate(x)
    except (RuntimeError, TypeError, ValueError, AttributeError):
        return None
    if not isinstance(expected, Tensor) or expected.shape != (_PROBE_ROWS, _PROBE_COLUMNS // 2):
        return None
    for form, found in _forms(module, x):
        if torch.allclose(found, expected, rtol=1e-5, atol=1e-5):
            return form
    return None


def _forms(module: nn.Module, x: Tensor) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """The forms of an activation in fused_moe, each with its result."""
    limits = [getattr(module, name, None) for name in ("limit", "swiglu_limit")]
    for limit in (None, *(float(one) for one in limits if isinstance(one, (int, float)) and one > 0)):
        for mode in ("separated", "interleave"):
            gate, up = x.chunk(2, -1) if mode == "separated" else (x[..., ::2], x[..., 1::2])
            if limit is not None:
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            for kind, found in ((ActivationType.Silu, silu(gate) * up), (ActivationType.Gelu, gelu(gate) * up),
                                (ActivationType.Swiglu, gate * (_ALPHA * gate).sigmoid() * (up + 1))):
                if kind is not ActivationType.Swiglu or limit is not None:  # Swiglu has a limit of its own without
                    yield {"activation": kind, "swiglu_limit": limit, "gate_mode": mode}, found
