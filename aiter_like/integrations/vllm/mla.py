# SPDX-License-Identifier: MIT
"""vLLM's latent attention on CPUs: cache writes, decoding over latents, and prompts over expanded keys. On ROCm vLLM's
own backends call AITER's names for these (VLLM_ROCM_USE_AITER_MLA)."""

import functools
import importlib
import logging
from typing import Any

import torch
from torch import Tensor

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.ops.common.contents import as_int32

_log = logging.getLogger("aiter_like")
_BACKENDS, _OWNER = "vllm.v1.attention.backends.mla", "vllm"
_FLOATS = (torch.bfloat16, torch.float16)


def take_methods(platform: str) -> None:
    """Puts ours before those of vLLM's classes for CPUs; nothing elsewhere.

    Raises:
        ImportError, AttributeError: this vLLM has other classes.
    """
    if platform != "cpu":
        return
    impl = importlib.import_module(f"{_BACKENDS}.cpu_mla").CPUMLAImpl
    stock = impl.forward_mqa
    prompts = importlib.import_module(f"{_BACKENDS}.prefill.cpu_sdpa").CPUSDPAMLAPrefillBackend
    for name, ours, holder, attribute, op in (
            ("vllm.mla_decode", decode, impl, "forward_mqa", "mla_decode"),
            ("vllm.mla_cache", cache_write, impl, "do_kv_cache_update", "reshape_and_cache"),
            ("vllm.mla_prefill", prefill, prompts, "_ragged_sdpa", "flash_attn_fwd")):
        takeover.take_attribute(holder, attribute, name, ours, op, _OWNER)
    if impl.forward_mqa is not stock:
        _prefer_reference()


def _prefer_reference() -> None:
    """On processors with AMX vLLM takes a backend whose latents lie in another order, unless it is told not to: there,
    too, it now takes the one that ours are in, unless AMX_MLA was asked for by name."""
    platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform
    original = platform.get_attn_backend_cls.__func__

    @functools.wraps(original)
    def get_attn_backend_cls(cls: type, selected_backend: Any, *args: Any, **kwargs: Any) -> str:
        found = original(cls, selected_backend, *args, **kwargs)
        # This import waits for a call: while vLLM loads its plugins, the configuration that it asks for is not there.
        names = importlib.import_module("vllm.v1.attention.backends.registry").AttentionBackendEnum
        amx = getattr(names, "AMX_MLA", None)
        if amx is None or found != amx.get_path() or selected_backend is amx:
            return found
        _log.info("vllm.mla_decode: CPU_MLA in place of AMX_MLA, whose cache has an order of its own")
        return names.CPU_MLA.get_path()

    takeover.replace_attribute(platform, "get_attn_backend_cls", classmethod(get_attn_backend_cls), _OWNER)


def decode(impl: Any, q: Tensor | tuple[Tensor, Tensor], kv_c_and_k_pe_cache: Tensor, attn_metadata: Any,
           layer: torch.nn.Module) -> tuple[Tensor, None]:
    """`CPUMLAImpl.forward_mqa`: one token of each sequence over the latents in its pages."""
    q = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
    table, lengths = attn_metadata.decode.block_table, attn_metadata.decode.seq_lens
    batch, page_size = len(lengths), kv_c_and_k_pe_cache.shape[1]
    if len(q) != batch:
        raise UnsupportedError(f"latent attention of {len(q)} tokens for {batch} sequences")
    counts = (lengths + page_size - 1) // page_size
    # The lengths are on the host on a CPU, so choosing by them waits for nothing.
    indices = as_int32(table[torch.arange(table.shape[1]) < counts[:, None]])
    starts = as_int32(torch.nn.functional.pad(counts.cumsum(0), (1, 0)))
    last = ((lengths - 1) % page_size + 1).to(torch.int32)
    out = torch.empty(batch, q.shape[1], impl.kv_lora_rank, dtype=q.dtype)
    aiter_like.mla_decode_fwd(q, kv_c_and_k_pe_cache.unsqueeze(2), out, torch.arange(batch + 1, dtype=torch.int32),
                              starts, indices, last, 1, page_size, sm_scale=impl.scale)
    return out, None


def cache_write(impl: Any, kv_c_normed: Tensor, k_pe: Tensor, kv_cache: Tensor, slot_mapping: Tensor,
                kv_cache_dtype: str, k_scale: Tensor, skip_scale: bool = False) -> None:
    """`CPUMLAImpl.do_kv_cache_update`; there are no scales on a CPU. `skip_scale` is new in vLLM 0.33."""
    if kv_cache.numel():
        aiter_like.concat_and_cache_mla(kv_c_normed, k_pe.squeeze(1), kv_cache, slot_mapping.flatten(), "auto", None)


def prefill(backend: Any, q: Tensor, k: Tensor, v: Tensor, q_cu_seq_lens: Tensor, kv_cu_seq_lens: Tensor, causal: bool,
            return_softmax_lse: bool) -> Tensor | tuple[Tensor, Tensor]:
    """`CPUSDPAMLAPrefillBackend._ragged_sdpa`: attention of prompts, one after the other in their tensors."""
    if q.dtype not in _FLOATS:
        raise UnsupportedError(f"latent attention of {q.dtype}")
    longest = [int(starts.diff().max()) for starts in (q_cu_seq_lens, kv_cu_seq_lens)]
    found = aiter_like.flash_attn_varlen_func(
        q, k, v, as_int32(q_cu_seq_lens), as_int32(kv_cu_seq_lens), *longest, softmax_scale=backend.scale,
        causal=causal, return_lse=return_softmax_lse)
    return tuple(found[:2]) if return_softmax_lse else found
