# SPDX-License-Identifier: MIT
"""The attention that transformers models call by name, and the mask function that belongs to it.

Read by transformers.py, which registers both. Masks are what transformers' own functions make of them, as numbers to
add to the scores, so that models may go on computing with them; where position alone decides there is none.
"""

import functools
import inspect
import re
import sys
from typing import Any

import torch
from torch import Tensor
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask
from transformers.utils.import_utils import is_tracing

from aiter_like.errors import UnsupportedError
from aiter_like.ops.attention.flash_attn import flash_attn_func, flash_attn_varlen_func
from aiter_like.ops.common.contents import as_int32

# transformers passes these too, which are not the attention function's business: position ids are in q and k.
_NEUTRAL = {"position_ids", "cache_position", "encoder_hidden_states", "use_cache", "output_hidden_states",
            "output_router_logits", "return_dict", "num_items_in_batch", "logits_to_keep", "is_training", "labels"}
_WIDE = (torch.bfloat16, torch.float16)


def attention_mask(batch_size: int, q_length: int, kv_length: int, q_offset: int | Tensor = 0, kv_offset: int = 0,
                   mask_function: Any = causal_mask_function, attention_mask: Tensor | None = None,
                   local_size: int | None = None, allow_is_causal_skip: bool = True,
                   allow_is_bidirectional_skip: bool = False, dtype: torch.dtype = torch.float32, config: Any = None,
                   **options: Any) -> Tensor | None:
    """The mask of one forward, as transformers' mask functions are called; `attention_forward` reads it.

    Args:
        attention_mask: [batch, tokens] bool, False where there is padding; or None.
        local_size: width of a sliding window or of chunks.
        allow_is_causal_skip, allow_is_bidirectional_skip: there may be no mask where the layer knows it.
        dtype: of the model's hidden states.
        config: of the model.
        others: as in `transformers.masking_utils.sdpa_mask`, with its options.

    Returns:
        None: each query sees every key up to its own position, or, in a layer that is not causal, every key; of
        them the layer's sliding window. Else [batch, 1, q_length, kv_length] in `dtype`: 0 where a key takes part,
        −inf where not. Where position alone decides, as in a static cache, it has an attribute `visible_keys`, the
        number of keys that the last query sees, or their sums over the sequences before, int32 [batch + 1], where it
        stands on the device. A model that changes the mask loses it.
    """
    if allow_is_causal_skip and local_size is not None and _passes_window(config, attention_mask):
        local_size = None  # the kernel has windows: the mask is left out as if there was none
    is_free = attention_mask is None and local_size is None
    is_plain = mask_function is causal_mask_function and local_size is None and not kv_offset
    # Decided by sizes alone, which tracing allows.
    if is_free and allow_is_causal_skip and isinstance(q_offset, int) and (q_length == 1 or kv_length == q_length):
        return None
    if mask_function is bidirectional_mask_function:
        if allow_is_bidirectional_skip and (is_free or not is_tracing(attention_mask) and bool(attention_mask.all())):
            return None
        if attention_mask is not None and attention_mask.shape[-1] == kv_length and not kv_offset:
            keys = _additive(attention_mask[:, None, None], dtype)  # one row for all queries
            return keys.expand(batch_size, 1, q_length, kv_length)
    mask = sdpa_mask(batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
                     kv_offset=kv_offset, mask_function=mask_function, attention_mask=attention_mask,
                     local_size=local_size, allow_is_causal_skip=allow_is_causal_skip,
                     allow_is_bidirectional_skip=allow_is_bidirectional_skip, **options)
    if mask is None:
        return None
    mask = _additive(mask, dtype)
    if is_plain and (attention_mask is None or _is_full(attention_mask, q_offset + q_length)):
        mask.visible_keys = q_offset + q_length
        if isinstance(q_offset, Tensor):
            sequences = torch.arange(batch_size + 1, dtype=torch.int32, device=q_offset.device)
            mask.visible_keys = sequences * (q_offset + q_length).to(torch.int32)
    return mask


def attention_forward(
        module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
        scaling: float | None = None, dropout: float = 0.0, is_causal: bool | None = None,
        sliding_window: int | None = None, softcap: float | None = None, s_aux: Tensor | None = None,
        compute_dtype: torch.dtype | None = None, **options: Any) -> tuple[Tensor, None]:
    """Attention as transformers calls it, through `flash_attn_func` and `flash_attn_varlen_func`.

    Args:
        module: the calling layer; its `is_causal` counts where the argument is None.
        query: [batch, num_heads, seqlen_q, head_dim].
        key, value: [batch, num_kv_heads, seqlen_k, head_dim].
        attention_mask: None, or [batch, 1 or num_heads, seqlen_q, seqlen_k]: True or 0 where a key takes part, False
            or what is added to the score elsewhere. Where there is one, it alone says what is visible; with an
            attribute `visible_keys` that is enough, see `attention_mask`.
        scaling: softmax scale, 1/sqrt(head_dim) where None.
        dropout, is_causal: as in transformers.
        sliding_window: a query sees so many keys, itself included.
        softcap: scores become softcap · tanh(score / softcap).
        s_aux: [num_heads], one more score per row in the softmax's denominator, with no value (gpt-oss).
        compute_dtype: q, k and v are cast to it for the kernel; the result has the model's dtype. None: no casts but
            those to autocast's dtype, which the result then has, as that of torch's sdpa.
        options: position_bias, [1 or batch, num_heads, seqlen_q, seqlen_k], added to the scores; cu_seq_lens_q,
            cu_seq_lens_k, max_length_q, max_length_k of sequences packed into one row.

    Returns:
        ([batch, seqlen_q, num_heads, head_dim] in the query's dtype, or autocast's, None).

    Raises:
        UnsupportedError: an option that would change the result and that the operator lacks.
        TypeError: q is neither bfloat16 nor float16, and there is no compute_dtype.
    """
    position_bias, packed = None, None
    if not options.keys() <= _NEUTRAL:
        position_bias = options.pop("position_bias", None)
        packed = [options.pop(f"{name}_{x}", None) for name in ("cu_seq_lens", "max_length") for x in "qk"]
        _refuse_others(options)
    if query.dtype == torch.float32 and compute_dtype is None and torch.is_autocast_enabled(query.device.type):
        autocast = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(autocast), key.to(autocast), value.to(autocast)
    if (compute_dtype or query.dtype) not in _WIDE:
        raise TypeError(f"attention of {query.dtype}: only bfloat16 and float16 are computed; "
                        "enable(model, compute_dtype=torch.bfloat16) casts")
    if any(x.stride(-1) != 1 and x.shape[-1] > 1 for x in (query, key, value)):
        raise UnsupportedError("attention of heads that are not contiguous")
    is_causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    # The kernel takes any outer strides, so these transposes move no data.
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)  # [B, S, H, D]
    if compute_dtype is not None:
        q, k, v = q.to(compute_dtype), k.to(compute_dtype), v.to(compute_dtype)
    window = (sliding_window - 1, 0, 0) if sliding_window and is_causal else (-1, -1, 0)
    shared = {"dropout_p": dropout, "softmax_scale": scaling, "logits_soft_cap": softcap or 0.0,
              "sink_ptr": None if s_aux is None else s_aux.float()}
    if packed is not None and None not in packed[:2] and q.shape[0] == 1 and position_bias is None:
        out = flash_attn_varlen_func(
            q[0], k[0], v[0], as_int32(packed[0]), as_int32(packed[1]), packed[2] or q.shape[1],
            packed[3] or k.shape[1], causal=is_causal, window_size=window, **shared)
        return out[None].to(query.dtype), None
    causal, keys = False, getattr(attention_mask, "visible_keys", None)
    if isinstance(keys, int):
        k, v = k[:, :keys], v[:, :keys]
    elif keys is not None and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        keys = None  # lengths on the device have no derivative
    if keys is not None:
        attention_mask, causal, window = None, True, (-1, -1, 0)
    elif attention_mask is not None:
        window = (-1, -1, 0)
    else:
        causal = is_causal and q.shape[1] > 1
        if causal and k.shape[1] > q.shape[1]:
            # transformers leaves the mask out here only for a static cache at position 0: later keys are not filled.
            k, v = k[:, :q.shape[1]], v[:, :q.shape[1]]
    bias = _bias(attention_mask, position_bias, q.dtype, k.shape[1])
    out = flash_attn_func(q, k, v, causal=causal, window_size=window, bias=bias,
                          cu_seqlens_kv=keys if isinstance(keys, Tensor) else None, **shared)
    return out.to(query.dtype), None


def stock_attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
                    **options: Any) -> tuple[Tensor, Tensor | None]:
    """Serves a layer that `attention_forward` refuses, by transformers' sdpa; softcap and sinks, which sdpa lacks, by
    the model's own eager function.

    Raises:
        UnsupportedError: neither has the option.
    """
    options.pop("compute_dtype", None)
    is_causal = options.get("is_causal")
    is_causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    window, seqlen_q = options.get("sliding_window"), query.shape[2]
    lacks = [name for name in ("softcap", "s_aux") if options.get(name) is not None]
    if attention_mask is None and is_causal and (lacks or window and key.shape[2] > window):
        if seqlen_q > 1:
            key, value = key[:, :, :seqlen_q], value[:, :, :seqlen_q]
        row = torch.arange(key.shape[2] - seqlen_q, key.shape[2], device=query.device)[:, None]
        distance = row - torch.arange(key.shape[2], device=query.device)
        seen = (distance >= 0) & (distance < (window or key.shape[2]))
        attention_mask = _additive(seen[None, None], query.dtype)
    if not lacks:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise UnsupportedError(f"no attention of transformers takes {', '.join(lacks)} for {type(module).__name__}")
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        attention_mask = _additive(attention_mask, query.dtype)
    return eager(module, query, key, value, attention_mask, **options)


def _refuse_others(options: dict[str, Any]) -> None:
    """Raises for what is set, unknown here, and might change the result."""
    active = [name for name, given in options.items()
              if given is not None and given is not False and name not in _NEUTRAL]
    if active:
        raise UnsupportedError(f"aiter_like attention in transformers does not take: {', '.join(sorted(active))}")


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `mask` is True, −inf elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, float("-inf"))


def _bias(mask: Tensor | None, position_bias: Tensor | None, dtype: torch.dtype, seqlen_k: int) -> Tensor | None:
    """What is added to the scores, in a dtype that the operator takes."""
    if mask is not None:
        mask = _additive(mask, dtype) if mask.dtype == torch.bool else mask
        mask = mask[..., :seqlen_k]
    if position_bias is not None:
        position_bias = position_bias[..., :seqlen_k]
        mask = position_bias if mask is None else mask + position_bias
    return mask if mask is None or mask.dtype in (dtype, torch.float32) else mask.to(dtype)


def _is_full(mask: Tensor, end: int | Tensor) -> bool:
    """Whether `mask` hides no key before `end`. Waits for the device, as transformers does where it looks for padding,
    so False where a graph is made.
    """
    if is_tracing(mask):
        return False
    if isinstance(end, Tensor):
        return bool(mask.all() & (end <= mask.shape[-1]))
    return end <= mask.shape[-1] and bool(mask[:, :end].all())


def _passes_window(config: Any, tensor: Tensor | None) -> bool:
    """Whether the layers of this model hand their sliding window to the attention function. It is not looked up while
    tracing, which cannot follow it."""
    if config is None or is_tracing(tensor) or getattr(config, "attention_chunk_size", None) is not None:
        return False
    return _hands_window_on(type(config).__module__.replace("configuration_", "modeling_"))


@functools.cache
def _hands_window_on(modeling: str) -> bool:
    module = sys.modules.get(modeling)
    return module is not None and re.search(r"sliding_window=(self\.|getattr\()", inspect.getsource(module)) is not None
