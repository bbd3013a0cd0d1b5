# SPDX-License-Identifier: MIT
"""SGLang's attention backend `aiter_like`: extend and decode over the token pool, chosen by --attention-backend.

The class that SGLang would use without it (Triton's on a GPU, torch's on a CPU) is its base and serves what we refuse:
speculative decoding, quantised and windowed pools, cross attention.
"""

import functools
import logging
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.ops.attention.mha_batch_prefill import mha_batch_prefill_func
from aiter_like.ops.common.contents import as_int32

NAME = "aiter_like"
_POOLS = "sglang.srt.mem_cache.memory_pool"

_log = logging.getLogger("aiter_like")
_has_choice = False


class Sequences(NamedTuple):
    """The places of a batch's queries and keys, as the kernel reads them: int32, on the device.

    Attributes:
        starts: [batch + 1]: rows of each sequence in q.
        lengths: [batch]: keys of each sequence, its new ones included.
        slots: [batch, width]: slot of each key in the token pool; beyond a sequence's length anything.
        longest: not less than the queries of any sequence.
    """

    starts: Tensor
    lengths: Tensor
    slots: Tensor
    longest: int


def install() -> None:
    """Enters the backend under its name, and the name among the choices of --attention-backend."""
    global _has_choice
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend(NAME)(create)
    if NAME not in choices.ATTENTION_BACKEND_CHOICES:
        choices.add_attention_backend_choices([NAME])
        _has_choice = True


def uninstall() -> None:
    """Takes both out again."""
    global _has_choice
    from sglang.srt.arg_groups import choices
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    if ATTENTION_BACKENDS.get(NAME) is create:
        del ATTENTION_BACKENDS[NAME]
    if _has_choice:
        choices.ATTENTION_BACKEND_CHOICES.remove(NAME)
        _has_choice = False


def create(runner: Any) -> Any:
    """The backend for a model runner; SGLang's own where the model's attention is latent (MLA)."""
    if str(runner.device).startswith("cpu"):
        from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend as Own
    else:
        from sglang.srt.layers.attention.triton_backend import TritonAttnBackend as Own
    if runner.use_mla_backend:
        _log.warning("sglang attention falls back to %s: latent attention is not served", Own.__name__)
        return Own(runner)
    return backend_over(Own)(runner)


@functools.cache
def backend_over(own: type) -> type:
    """The backend class, with `own` for what it refuses."""

    class AiterLikeAttnBackend(own):
        def __init__(self, runner: Any) -> None:
            super().__init__(runner)
            self._sequences: Sequences | None = None
            self._reasons: dict[Any, str] = {}  # layer → why it is not served, or ""

        def init_forward_metadata(self, forward_batch: Any) -> None:
            super().init_forward_metadata(forward_batch)
            self._sequences = None  # made by the first layer that needs it

        def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
            super().init_forward_metadata_in_graph(forward_batch)
            self._sequences = _sequences(self, forward_batch, is_static=True)

        forward_extend = takeover.take("sglang.attention", _forward, own.forward_extend, "unified_attention")
        forward_decode = takeover.take("sglang.attention", _forward, own.forward_decode, "unified_attention")

    return AiterLikeAttnBackend


def _forward(backend: Any, q: Tensor, k: Tensor | None, v: Tensor | None, layer: Any, forward_batch: Any,
             save_kv_cache: bool = True, sinks: Tensor | None = None, **options: Any) -> Tensor:
    """Writes the new keys and values into the pool, and attends to all of a sequence's."""
    _refuse(backend, layer, forward_batch, options)
    if backend._sequences is None:
        backend._sequences = _sequences(backend, forward_batch, is_static=False)
    pool, sequences = backend.token_to_kv_pool, backend._sequences
    if save_kv_cache and k is not None and v is not None:
        pool.set_kv_buffer(layer, sys.modules[_POOLS].KVWriteLoc.for_batch(forward_batch), k, v)
    q = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
    out = mha_batch_prefill_func(
        q, pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id), sequences.starts, None, None,
        sequences.longest, sequences.slots.shape[1], softmax_scale=layer.scaling, logits_soft_cap=layer.logit_cap,
        causal=layer.attn_type.value != "encoder_only", window_size=(_window(layer), -1),
        block_table=sequences.slots, seqlen_k=sequences.lengths, sink_ptr=None if sinks is None else sinks.float())
    return out.view(out.shape[0], -1)


def _sequences(backend: Any, forward_batch: Any, is_static: bool) -> Sequences | None:
    """From the batch. `is_static`: for a captured graph, which is replayed with other lengths: the widest table."""
    if _kind_refused(forward_batch):
        return None  # its layers are refused
    device, lengths = forward_batch.seq_lens.device, as_int32(forward_batch.seq_lens)
    table = backend.req_to_token_pool.req_to_token
    known = None if is_static else forward_batch.seq_lens_cpu
    width = table.shape[1] if known is None else max(int(known.max()), 1)
    slots = table[forward_batch.req_pool_indices, :width]
    if forward_batch.forward_mode.is_decode():
        starts = torch.arange(lengths.shape[0] + 1, dtype=torch.int32, device=device)
        return Sequences(starts, lengths, slots, 1)
    counts = forward_batch.extend_seq_lens
    starts = torch.nn.functional.pad(as_int32(as_int32(counts).cumsum(0)), (1, 0))
    known = None if is_static else forward_batch.extend_seq_lens_cpu
    return Sequences(starts, lengths, slots, width if known is None else max(known))


def _window(layer: Any) -> int:
    """Keys before its own that a query sees; -1: all."""
    return -1 if layer.sliding_window_size is None else layer.sliding_window_size


def _kind_refused(forward_batch: Any) -> str:
    """Why no batch of this kind is served, or ""."""
    if forward_batch.forward_mode.name not in ("EXTEND", "MIXED", "DECODE"):
        return f"forward mode {forward_batch.forward_mode.name}"
    if forward_batch.spec_info is not None:
        return "speculative decoding"
    return "an encoder's keys" if forward_batch.encoder_lens is not None else ""


def _refuse(backend: Any, layer: Any, forward_batch: Any, options: dict[str, Any]) -> None:
    """Raises for what is left to SGLang's own, before anything is written."""
    reason = backend._reasons.get(layer)
    if reason is None:
        reason = backend._reasons[layer] = _layer_refused(backend, layer)
    reason = reason or _kind_refused(forward_batch)
    if given := sorted(name for name, value in options.items() if value is not None):
        reason = f"options {', '.join(given)}"
    if reason:
        raise UnsupportedError(f"sglang attention: not served: {reason}")


def _layer_refused(backend: Any, layer: Any) -> str:
    """Why a layer is not served, or ""."""
    pool = backend.token_to_kv_pool
    reasons = {
        "cross attention": layer.is_cross_attention,
        "attention in both directions": layer.attn_type.value == "decoder_bidirectional",
        "chunked attention": layer.use_irope,
        "temperature by length": layer.xai_temperature_len > 0,
        f"logit cap by {layer.logit_capping_method}": layer.logit_cap > 0 and layer.logit_capping_method != "tanh",
        f"a pool of class {type(pool).__name__}": type(pool).__name__ != "MHATokenToKVPool",
        "a layout of the pool's own": getattr(pool, "kv_cache_layout", None) != "nhd",
        "quantised keys": getattr(pool, "is_quantized_kv_cache", False) or pool.dtype.itemsize != 2,
        "decode context parallelism": getattr(backend, "dcp_size", 1) > 1,
        "deterministic mode": getattr(backend, "enable_deterministic", False),
    }
    return ", ".join(reason for reason, is_given in reasons.items() if is_given)
