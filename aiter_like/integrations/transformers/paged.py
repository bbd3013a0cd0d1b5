# SPDX-License-Identifier: MIT
"""transformers' continuous batching (`generate_batch`): attention over its paged cache. Read by transformers.py.

transformers takes for it what is called "flash", and its own kernels for that: a model of ours is given such a name for
the time of a batch, and decodes through block tables.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.ops.attention.paged_attention import paged_attention
from aiter_like.ops.common.contents import as_int32

SUFFIX = "_flash"
_API = "transformers.generation.continuous_batching"
_FLOATS = (torch.bfloat16, torch.float16)


def attention_forward(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor,
                      attention_mask: Tensor | None, *, inner: Any, cache: Any = None, compute_dtype: Any = None,
                      scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None,
                      s_aux: Tensor | None = None, **options: Any) -> tuple[Tensor, None]:
    """Attention of the requests of a batch, whose tokens are in one row: [1, num_heads, tokens, head_dim].

    Args:
        inner: attention of packed sequences, for all but decoding by block tables.
        cache: transformers' paged cache, which takes the keys and values; None: a forward without one.
        others: as in `transformers_attention.attention_forward`, and what the cache reads.

    Returns:
        ([1, tokens, num_heads, head_dim], None).

    Raises:
        UnsupportedError: dropout or a compute dtype with block tables.
    """
    attend = functools.partial(inner, module, compute_dtype=compute_dtype, scaling=scaling, softcap=softcap,
                               s_aux=s_aux, sliding_window=sliding_window)
    if cache is None:
        return attend(query, key, value, attention_mask, **options)
    key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=options)
    table, keys, values = (options.pop(name, None) for name in ("block_table", "k_cache", "v_cache"))
    if table is None:
        for used in ("read_index", "write_index", "logits_indices", "logits_processor_args"):
            options.pop(used, None)
        return attend(query, key, value, None, **options)
    if options.get("dropout") or compute_dtype is not None:
        raise UnsupportedError("decoding by block tables with dropout or another dtype")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [requests, heads, head_dim]
    lengths = as_int32(options["cu_seq_lens_k"].diff()[:len(q)])
    _append(keys, values, k, v, table, lengths)
    out = paged_attention(q, keys, values, table, lengths, table.shape[1] * keys.shape[1], scaling,
                          window_left=sliding_window - 1 if sliding_window else -1, softcap=softcap or 0.0,
                          sinks=None if s_aux is None else s_aux.float())
    return out[None], None


def _append(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor) -> None:
    """Writes each request's key and value behind its earlier ones. By torch: both caches are views of one pool, with
    pages between one another, which an operator that writes two tensors refuses. A row without a request, as padding
    for a graph has them at the end, writes what the first row does.
    """
    size, last = keys.shape[1], (lengths - 1).clamp(min=0)
    slots = table.gather(1, (last // size).long()[:, None])[:, 0].long() * size + last % size
    is_used = lengths > 0
    slots = torch.where(is_used, slots, slots[:1]).clamp(min=0)
    for cache, new in ((keys, k), (values, v)):
        cache.view(-1, *cache.shape[2:])[slots] = torch.where(is_used[:, None, None], new, new[:1])


def install(is_ours: Callable[[str | None], bool], owner: str) -> None:
    """Lets continuous batching take the models whose attention is ours; again, it does nothing.

    Args:
        is_ours: whether a name of attention is one that is registered here.
        owner: see takeover.replace_attribute.

    Raises:
        ImportError, AttributeError: this transformers has other functions.
    """
    manager = importlib.import_module(f"{_API}.continuous_api").ContinuousBatchingManager
    start = importlib.import_module(f"{_API}.initialization")
    switch, check = manager.switch_to_cb_friendly_attn, start.ensure_decode_fast_path_is_available
    if hasattr(switch, "is_ours"):
        return

    @functools.wraps(switch)
    def switch_to_cb_friendly_attn(self: Any, model: Any, auto_switch_to_flash: bool = True) -> None:
        name = model.config._attn_implementation
        if not is_ours(name):
            switch(self, model, auto_switch_to_flash)
        elif not name.endswith(SUFFIX):
            if model.dtype in _FLOATS or not is_plain(name):
                model.config._attn_implementation = name + SUFFIX
            else:  # ours refuses it, and then there is no mask for another
                model.set_attn_implementation("sdpa")
                switch(self, model, auto_switch_to_flash)
            self._original_attn_impl = name

    def is_plain(name: str) -> bool:
        """Whether nothing is cast."""
        return not any(name.removesuffix(SUFFIX).endswith(str(dtype).rpartition(".")[2]) for dtype in _FLOATS)

    @functools.wraps(check)
    def ensure_decode_fast_path_is_available(config: Any, cb_config: Any, user_requested: bool) -> None:
        name = config._attn_implementation
        if not is_ours(name):
            check(config, cb_config, user_requested)
        elif not is_plain(name) or not all(start.ATTN_TYPE_TO_ALLOCATOR[kind].supports_block_table
                                           for kind in start.group_layers_by_attn_type(config)):
            cb_config.max_blocks_per_request = 0

    switch_to_cb_friendly_attn.is_ours = True
    takeover.replace_attribute(manager, "switch_to_cb_friendly_attn", switch_to_cb_friendly_attn, owner)
    takeover.replace_attribute(start, "ensure_decode_fast_path_is_available", ensure_decode_fast_path_is_available,
                               owner)
