# SPDX-License-Identifier: MIT
"""Serves the attention of Hugging Face transformers models: `register()`, then `attn_implementation="aiter_like"`."""

from __future__ import annotations

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention import flash_attn_func

NAME = "aiter_like"

# What transformers passes besides and is not the attention function's business: a sliding window is in the mask
# (`sdpa_mask` leaves the mask out only where the window covers everything), position ids are in q and k.
_NEUTRAL = {"position_ids", "cache_position", "sliding_window", "encoder_hidden_states", "use_cache",
            "output_hidden_states", "output_router_logits", "return_dict", "num_items_in_batch"}


def register(compute_dtype: torch.dtype | None = None) -> None:
    """Enter this attention in transformers' registries under the name "aiter_like".

    Args:
        compute_dtype: dtype into which q, k and v are cast for the kernel, e.g. torch.bfloat16 in a float32 model;
            the result has the model's dtype. None casts nothing, and the operator refuses what it cannot take.
    """

    def forward(module, query, key, value, attention_mask, **kwargs):
        return attention_forward(module, query, key, value, attention_mask, compute_dtype=compute_dtype, **kwargs)

    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    compute_dtype: torch.dtype | None = None,
    **options,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it, through `flash_attn_func`.

    Args:
        module: the calling layer; its `is_causal` counts where the argument is None.
        query: [batch, num_heads, seqlen_q, head_dim].
        key, value: [batch, num_kv_heads, seqlen_k, head_dim].
        attention_mask: None, or what transformers' `sdpa_mask` made: True where a key takes part.
        scaling: softmax scale, 1/sqrt(head_dim) where None.
        dropout, is_causal: as in transformers.
        compute_dtype: see `register`.

    Returns:
        ([batch, seqlen_q, num_heads, head_dim] in the query's dtype, None).

    Raises:
        UnsupportedError: a mask that masks something (padding, packed sequences), or an option that would change the
            result and that the operator lacks (softcap, position bias, sinks).
    """
    active = sorted(name for name, given in options.items()
                    if given is not None and given is not False and name not in _NEUTRAL)
    if active:
        raise UnsupportedError(f"aiter_like attention in transformers does not take: {', '.join(active)}")
    if attention_mask is not None and not _is_open(attention_mask):
        raise UnsupportedError(
            "aiter_like attention in transformers takes no mask that masks something, got one of shape "
            f"{tuple(attention_mask.shape)}: run sentences of equal length, or one per call")
    seqlen_q, seqlen_k = query.shape[2], key.shape[2]
    wants_causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    causal = wants_causal and attention_mask is None and seqlen_q > 1     # with a mask, the mask says it all
    if causal and seqlen_k > seqlen_q:
        # transformers leaves the mask out here only for a static cache at position 0: later keys are not filled yet.
        key, value = key[:, :, :seqlen_q], value[:, :, :seqlen_q]
    # The kernel takes any outer strides, so these transposes move no data.
    q, k, v = (x.transpose(1, 2).to(compute_dtype or x.dtype) for x in (query, key, value))  # [B, S, H, D]
    out = flash_attn_func(q, k, v, dropout_p=dropout, softmax_scale=scaling, causal=causal)
    return out.to(query.dtype), None


def _is_open(mask: torch.Tensor) -> bool:
    """Whether the mask lets every query see every key."""
    return bool(mask.all()) if mask.dtype == torch.bool else not bool(mask.any())
