# SPDX-License-Identifier: MIT
"""vLLM's attention backends with our unified_attention and cache write. `register` points vLLM's registry at names of
this module; `__getattr__` makes the class of a name when vLLM asks for it, from the backend that it replaces."""

import dataclasses
import functools
import importlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.takeover import take

_log = logging.getLogger("aiter_like")

_FLOATS = (torch.bfloat16, torch.float16)
_PLAIN_CACHES = ("auto", "bfloat16", "float16")
_FP8_CACHES = ("fp8", "fp8_e4m3")

# Platform → the members of vLLM's AttentionBackendEnum that become ours. vLLM never chooses CUSTOM by itself, and its
# CPU platform always takes CPU_ATTN.
_MEMBERS = {"cpu": ("CPU_ATTN",), "cuda": ("CUSTOM",), "rocm": ("ROCM_AITER_FA", "ROCM_AITER_UNIFIED_ATTN", "CUSTOM")}
_BASE_OF_CUSTOM = "TRITON_ATTN"  # on every GPU, with the cache layout that we read


def register(platform: str) -> None:
    """Overrides the members of `platform` ("cpu", "cuda" or "rocm"), unless another plugin has.

    Raises:
        UnsupportedError: vLLM runs on another platform.
    """
    if platform not in _MEMBERS:
        raise UnsupportedError(f"vLLM's platform {platform} is not served, only {', '.join(_MEMBERS)}")
    backends = _registry()
    for name in _MEMBERS[platform]:
        member = backends.AttentionBackendEnum[name]
        if not member.is_overridden():
            backends.register_backend(member, f"{__name__}.{name}")
        elif not _is_ours(member):
            _log.info("vllm.attention: %s is left to another plugin", name)


def unregister() -> None:
    """Gives the members back; layers that exist keep serving."""
    for member in _registry().AttentionBackendEnum.__members__.values():
        if member.is_overridden() and _is_ours(member):
            member.clear_override()


def _registry() -> Any:
    return importlib.import_module("vllm.v1.attention.backends.registry")


def _is_ours(member: Any) -> bool:
    return member.get_path().startswith(f"{__name__}.")


def __getattr__(name: str) -> type:
    """The backend class that replaces the member `name`."""
    if not any(name in members for members in _MEMBERS.values()):
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return _backend(name)


@functools.cache
def _backend(name: str) -> type:
    path = _registry().AttentionBackendEnum[_BASE_OF_CUSTOM if name == "CUSTOM" else name].value
    module, _, class_name = path.rpartition(".")
    base = getattr(importlib.import_module(module), class_name)
    if name == "ROCM_AITER_FA" and base.get_impl_cls() is not None and _is_shuffled():
        _log.info("vllm.attention: left to the engine, the cache is shuffled (VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT)")
        return base
    impl = serve(base.get_impl_cls(), has_own_layout=name == "CPU_ATTN")
    if impl is base.get_impl_cls():
        return base
    changes = {"get_impl_cls": staticmethod(lambda: impl), "__module__": __name__}
    if name == "CUSTOM":
        changes["get_name"] = staticmethod(lambda: name)  # vLLM looks the member up by it
    return type(f"Served{class_name}", (base,), changes)


def _is_shuffled() -> bool:
    return importlib.import_module("vllm._aiter_ops").rocm_aiter_ops.is_shuffle_kv_cache_enabled()


def serve(base: type, has_own_layout: bool) -> type:
    """A subclass of an engine's attention implementation that calls ours.

    Args:
        base: the class with `forward` and `do_kv_cache_update`.
        has_own_layout: `base` keeps keys and values in an order of its own within the cache, so that a call of its
            `forward` needs them copied into that first. Otherwise it reads what we write.

    Returns:
        The class; `base` where AITER_LIKE_DISABLE leaves attention to the engine.
    """
    stock_attend, stock_write = base.forward, base.do_kv_cache_update
    if has_own_layout:
        stock_attend, stock_write = _attend_a_copy(base), _write_in_torch(base)
    attend = take("vllm.attention", _unquantised(attention) if has_own_layout else attention, stock_attend,
                  "unified_attention")
    write = take("vllm.kv_cache", _unquantised(cache_write) if has_own_layout else cache_write, stock_write,
                 "reshape_and_cache")
    if attend is stock_attend:
        return base

    def forward(self: Any, layer: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor,
                attn_metadata: Any, *args: Any, **kwargs: Any) -> Tensor:
        chosen = base.forward if attn_metadata is None else attend  # None: vLLM measures its memory
        return chosen(self, layer, query, key, value, kv_cache, attn_metadata, *args, **kwargs)

    return type(f"Served{base.__name__}", (base,), {"forward": functools.wraps(base.forward)(forward),
                                                   "do_kv_cache_update": write, "__module__": __name__})


def attention(impl: Any, layer: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor,
              attn_metadata: Any, output: Tensor, output_scale: Tensor | None = None,
              output_block_scale: Tensor | None = None) -> Tensor:
    """`AttentionImpl.forward` of prefill and decoding; keys and values are in the cache already. Writes `output`."""
    _check_layer(impl, kv_cache)
    _check_call(impl, attn_metadata, output_block_scale)
    keys, values = pages(kv_cache, impl)
    tokens = attn_metadata.num_actual_tokens
    aiter_like.unified_attention(
        query[:tokens], keys, values, output[:tokens], attn_metadata.query_start_loc, _max_query_len(attn_metadata),
        attn_metadata.seq_lens, attn_metadata.max_seq_len, impl.scale, True, _window(impl), attn_metadata.block_table,
        float(impl.logits_soft_cap or 0), layer._q_scale if query.dtype not in _FLOATS else None, layer._k_scale,
        layer._v_scale, alibi_slopes=impl.alibi_slopes, output_scale=output_scale, sinks=getattr(impl, "sinks", None))
    return output


def cache_write(impl: Any, layer: torch.nn.Module, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor,
                *, backend: str | None = None) -> None:
    """`AttentionImpl.do_kv_cache_update`: writes keys and values into their slots."""
    _check_layer(impl, kv_cache)
    kind = "auto" if impl.kv_cache_dtype in _PLAIN_CACHES else impl.kv_cache_dtype
    aiter_like.reshape_and_cache_flash(key, value, *pages(kv_cache, impl), slot_mapping, kind, layer._k_scale,
                                       layer._v_scale, backend=backend)


def pages(kv_cache: Tensor, impl: Any) -> tuple[Tensor, Tensor]:
    """Keys and values, [num_blocks, page_size, num_kv_heads, head_size] each, as views.

    vLLM packs them: [num_blocks, num_kv_heads, page_size, 2 · head_size], so neither is contiguous.
    """
    if impl.kv_cache_dtype in _FP8_CACHES:
        kv_cache = kv_cache.view(dtypes.fp8_of(target_of(kv_cache.device).arch))
    return kv_cache.transpose(1, 2).split(impl.head_size, dim=-1)


def _check_layer(impl: Any, kv_cache: Tensor) -> None:
    """Checks what holds for all calls of a layer, those that write its cache included."""
    kind = getattr(impl, "attn_type", "decoder")
    if kind != "decoder":
        raise UnsupportedError(f"attention of type {kind}")
    if impl.kv_cache_dtype not in (*_PLAIN_CACHES, *_FP8_CACHES):
        raise UnsupportedError(f"a cache of {impl.kv_cache_dtype}")
    if impl.kv_cache_dtype in _PLAIN_CACHES and kv_cache.dtype not in _FLOATS:
        raise UnsupportedError(f"a cache of {kv_cache.dtype}")
    heads, width = impl.num_kv_heads, 2 * impl.head_size
    if kv_cache.ndim != 4 or (kv_cache.shape[1], kv_cache.shape[3]) != (heads, width):
        raise UnsupportedError(f"a cache must have shape [num_blocks, {heads}, page_size, {width}], got "
                               f"{tuple(kv_cache.shape)}")


def _check_call(impl: Any, attn_metadata: Any, output_block_scale: Tensor | None) -> None:
    """Refuses what some backends know and our operator does not."""
    asked = {
        "a mask that is not causal": attn_metadata.causal is not True,
        "ranges that are seen in both directions": getattr(attn_metadata, "mm_prefix_range_tensor", None) is not None,
        "a prefix beside the window": getattr(attn_metadata, "rswa_prefix_lens", None) is not None,
        "a square root of the ALiBi distance": getattr(impl, "use_alibi_sqrt", False),
        "chunks that look back": getattr(impl, "chunk_lookback", -1) > -1,
        "scales by block for its result": output_block_scale is not None,
        "parts of the context on other ranks": getattr(impl, "dcp_world_size", 1) > 1,
    }
    if any(asked.values()):
        raise UnsupportedError(f"attention with {', '.join(name for name, is_asked in asked.items() if is_asked)}")


def _window(impl: Any) -> tuple[int, int]:
    """(left, right): vLLM's GPU backends keep that, the one for CPUs the number of keys in the window or -1."""
    window = impl.sliding_window
    if isinstance(window, tuple):
        return window
    return (window - 1, 0) if window is not None and window > 0 else (-1, -1)


def _max_query_len(attn_metadata: Any) -> int:
    """The batch's longest query; ROCM_AITER_FA keeps it for each of the batch's parts."""
    found = getattr(attn_metadata, "max_query_len", None)
    if found is not None:
        return found
    parts = (attn_metadata.decode_metadata, attn_metadata.extend_metadata, attn_metadata.prefill_metadata)
    return max(part.max_query_len for part in parts if part is not None)


def _unquantised(function: Callable) -> Callable:
    """`function`, for a cache that is copied for the engine's own, which would have to read our fp8."""
    @functools.wraps(function)
    def checked(impl: Any, *args: Any, **kwargs: Any) -> Any:
        if impl.kv_cache_dtype not in _PLAIN_CACHES:
            raise UnsupportedError(f"a cache of {impl.kv_cache_dtype} on this platform")
        return function(impl, *args, **kwargs)

    return checked


def _write_in_torch(base: type) -> Callable:
    """The cache write that `serve` falls back to where the engine's own has another layout than what we read."""
    write = _unquantised(functools.partial(cache_write, backend="torch"))

    @functools.wraps(base.do_kv_cache_update)
    def do_kv_cache_update(impl: Any, *args: Any, **kwargs: Any) -> None:
        try:
            write(impl, *args, **kwargs)
        except UnsupportedError:  # then attention is refused too, and the cache is the engine's
            base.do_kv_cache_update(impl, *args, **kwargs)

    return do_kv_cache_update


def _attend_a_copy(base: type) -> Callable:
    """The engine's own attention, on a copy of the pages in use if they are ours."""
    @functools.wraps(base.forward)
    def forward(impl: Any, layer: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor,
                attn_metadata: Any, *args: Any, **kwargs: Any) -> Tensor:
        try:
            _unquantised(_check_layer)(impl, kv_cache)
        except UnsupportedError:
            return base.forward(impl, layer, query, key, value, kv_cache, attn_metadata, *args, **kwargs)
        used = attn_metadata.block_table[:, :-(-attn_metadata.max_seq_len // kv_cache.shape[2])]
        used = used.long().clamp(0, kv_cache.shape[0] - 1)
        keys, values = (side[used.flatten()].flatten(0, 1) for side in pages(kv_cache, impl))
        copy = kv_cache.new_zeros(used.numel(), *kv_cache.shape[1:])
        slots = torch.arange(keys.shape[0], device=keys.device)
        base.do_kv_cache_update(impl, layer, keys, values, copy, slots)
        table = torch.arange(used.numel(), dtype=attn_metadata.block_table.dtype, device=used.device).view(used.shape)
        attn_metadata = dataclasses.replace(attn_metadata, block_table=table)
        return base.forward(impl, layer, query, key, value, copy, attn_metadata, *args, **kwargs)

    return forward
