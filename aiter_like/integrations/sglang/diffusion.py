# SPDX-License-Identifier: MIT
"""Serves the attention of SGLang's video and image models, through the plugin hooks that they have for themselves.

Where a layer is given a backend that computes dense attention, it gets a subclass: ours first, then that backend's own.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor

from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.ops.attention.flash_attn import flash_attn_func, flash_attn_varlen_func
from aiter_like.ops.common.contents import as_int32

_SELECTOR = "sglang.multimodal_gen.runtime.layers.attention.selector.get_attn_backend"
_DENSE = ("FA", "FA2", "AITER", "TORCH_SDPA", "TORCH_CUDNN_SDPA", "DYNAMIC_CUDNN_SDPA")

_is_on = False
_is_hooked = False  # SGLang cannot unregister a hook: one that is off answers what it was given


def install() -> None:
    """Registers the hook; SGLang applies it after all plugins have registered theirs."""
    global _is_on, _is_hooked
    from sglang.multimodal_gen.runtime.platforms import plugins

    _is_on = True
    if not _is_hooked:
        _is_hooked = True
        plugins.HookRegistry.register(_SELECTOR, _answer, plugins.HookType.AROUND)
    if plugins._current_plugin_source.get() is None:  # called by the user: nobody applies it afterwards
        plugins.HookRegistry.apply_hooks()


def uninstall() -> None:
    """Layers that are made from now on are SGLang's own again."""
    global _is_on
    _is_on = False
    _backend_over.cache_clear()
    _implementation_over.cache_clear()


def _answer(select: Callable, *args: Any, **kwargs: Any) -> type:
    """The backend class for a layer."""
    backend = select(*args, **kwargs)
    return _backend_over(backend) if _is_on and backend.get_enum().name in _DENSE else backend


@functools.cache
def _backend_over(own: type) -> type:
    """The backend class whose layers are served here, with `own` for what is refused."""

    class AiterLikeBackend(own):
        @staticmethod
        def get_impl_cls() -> type:
            return _implementation_over(own.get_impl_cls())

    return AiterLikeBackend


@functools.cache
def _implementation_over(own: type) -> type:
    from sglang.multimodal_gen.runtime.layers.attention.backends.attention_backend import AttentionImpl

    methods = {"forward": _forward}
    if own.forward_varlen is not AttentionImpl.forward_varlen:  # SGLang asks this of a class that packs sequences
        methods["forward_varlen"] = _forward_varlen
    return type("AiterLikeImpl", (own,), {
        name: takeover.take("sglang.diffusion_attention", ours, getattr(own, name), "flash_attn_fwd")
        for name, ours in methods.items()})


def _forward(layer: Any, query: Tensor, key: Tensor, value: Tensor, attn_metadata: Any = None,
             **options: Any) -> Tensor:
    """Attention of [batch, sequence, heads, head_dim]."""
    _refuse(layer, options)
    return flash_attn_func(query, key, value, softmax_scale=layer.softmax_scale, causal=layer.causal)


def _forward_varlen(layer: Any, query: Tensor, key: Tensor, value: Tensor, *, cu_seqlens: Tensor, max_seqlen: int,
                    cu_seqlens_host: tuple[int, ...] | None = None) -> Tensor:
    """Attention of packed sequences, [tokens, heads, head_dim]; queries and keys have the same bounds."""
    _refuse(layer, {})
    bounds = as_int32(cu_seqlens.to(device=query.device))
    return flash_attn_varlen_func(query, key, value, bounds, bounds, max_seqlen, max_seqlen,
                                  softmax_scale=layer.softmax_scale, causal=layer.causal)


def _refuse(layer: Any, options: dict[str, Any]) -> None:
    """Raises for what is left to SGLang's own."""
    skips = getattr(layer, "_request_skip_softmax_threshold", None)
    reasons = {
        f"options {', '.join(options)}": any(options.values()),
        "dropout": bool(getattr(layer, "dropout", 0.0) or getattr(layer, "dropout_p", 0.0)),
        "skipped softmax": skips is not None and skips()[0],
    }
    for reason, is_given in reasons.items():
        if is_given:
            raise UnsupportedError(f"sglang diffusion attention: {reason} is not served")
