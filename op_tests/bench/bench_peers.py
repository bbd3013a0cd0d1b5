# SPDX-License-Identifier: MIT
"""What other libraries have for our operators: timed by run.py with `--peers`, where they can be imported.

An entry takes the module and what the op_test gives, and returns a call that returns what ours returns. Nothing here is
needed.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

is_asked_for = False
"""Set by benching.main."""

FLASHINFER, FLAG_GEMS, LIGER = "flashinfer", "flag_gems", "liger_kernel.transformers.functional"
LIGER_OPS = "liger_kernel.ops"
VLLM_MOE = "vllm.model_executor.layers.fused_moe"
SGLANG_FP8, DEEP_GEMM = "sglang.srt.layers.quantization.fp8_kernel", "deep_gemm"


def _flashinfer_add_rms_norm(module: Any, x: Tensor, weight: Tensor, epsilon: float, residual: Tensor) -> Callable:
    """In place, on copies: a repeated call goes on with the sum, which takes the same time."""
    x, residual = x.clone(), residual.clone()

    def call() -> tuple[Tensor, Tensor]:
        module.fused_add_rmsnorm(x, residual, weight, epsilon)
        return x, residual

    return call


def _liger_rms_norm_backward(module: Any, dout: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> Callable:
    """In place, as by default, on a copy: a repeated call goes on with dx, which takes the same time."""
    block, waves = module.utils.calculate_settings(x.shape[-1])
    casting = module.rms_norm._str_to_casting_mode["llama"]
    return partial(module.rms_norm.rms_norm_backward, dout.clone(), x, weight, scale, 0.0, casting, block, waves, True,
                   None)


def _flashinfer_rope(module: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, is_neox: bool
                     ) -> Callable:
    """In place, on copies: a repeated call turns on, which takes the same time."""
    q, k, table = q.clone(), k.clone(), torch.cat((cos, sin), -1).float()

    def call() -> tuple[Tensor, Tensor]:
        module.apply_rope_with_cos_sin_cache_inplace(positions, q.flatten(1), k.flatten(1), q.shape[-1], table, is_neox)
        return q, k

    return call


def _liger_rope(module: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, is_neox: bool
                ) -> Callable:
    """In place as well; one sequence, whose positions are 0, 1, …"""
    if not is_neox:
        return functools.partial(_refuse, "NeoX pairs only")
    q, k = (x.clone().transpose(0, 1)[None] for x in (q, k))
    tables = [torch.cat((table, table), -1)[None] for table in (cos, sin)]
    return lambda: tuple(x[0].transpose(0, 1) for x in module.liger_rope(q, k, *tables)[:2])


def _deep_gemm(module: Any, out: Tensor, a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Callable:
    """Its scales of the activations lie with blocks outermost, as ours do."""
    def call() -> Tensor:
        module.fp8_gemm_nt((a, a_scale), (b, b_scale), out)
        return out

    return call


def _refuse(reason: str) -> None:
    raise ValueError(reason)


def _flashinfer_cache(module: Any, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor
                      ) -> Callable:
    """Pages of whole rows: the tokens are one sequence over the pages that the slots are in."""
    integers = functools.partial(torch.tensor, dtype=torch.int32, device=slots.device)
    page_size = key_cache.shape[1]
    pages = (slots[::page_size] // page_size).int()
    positions = torch.arange(len(slots), dtype=torch.int32, device=slots.device)
    return functools.partial(module.append_paged_kv_cache, key, value, torch.zeros_like(positions), positions,
                             (key_cache, value_cache), pages, integers([0, len(pages)]),
                             integers([(len(slots) - 1) % page_size + 1]))


def _flashinfer_decode(module: Any, call: Any) -> Callable:
    """Decoding on its tensor-core kernel, planned beforehand; one query of each sequence over pages of rows."""
    integers = {"dtype": torch.int32, "device": call.q.device}
    wrapper = module.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(1 << 28, dtype=torch.uint8, device=call.q.device), "NHD", use_tensor_cores=True)
    pages = -(-call.seqlens_k // call.page_size)
    starts = torch.zeros(call.batch + 1, **integers)
    starts[1:] = pages.cumsum(0)
    used = torch.arange(call.block_table.shape[1], **integers) < pages[:, None]
    wrapper.plan(starts, call.block_table[used], (call.seqlens_k - 1) % call.page_size + 1, call.num_heads,
                 call.num_kv_heads, call.head_dim, call.page_size, q_data_type=call.q.dtype,
                 kv_data_type=call.k.dtype)
    scales = {name: None if scale is None else float(scale)
              for name, scale in (("k_scale", call.k_scale), ("v_scale", call.v_scale))}
    return partial(wrapper.run, call.q, (call.k, call.v), **scales)


@functools.cache
def _flex(length_q: int, length_k: int, causal: bool) -> Callable:
    """FlexAttention, compiled for these lengths."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.config.recompile_limit = 1000
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length_q, length_k) if causal else None
    return torch.compile(partial(flex_attention, block_mask=mask, enable_gqa=True), dynamic=False)


def torch_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> dict[str, Callable[[], Tensor]]:
    """PyTorch's kernels on [batch, heads, length, dim]."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def stock(backend: SDPBackend) -> Tensor:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    return {"cuDNN": lambda: stock(SDPBackend.CUDNN_ATTENTION), "FA2": lambda: stock(SDPBackend.FLASH_ATTENTION),
            "FlexAttention": lambda: _flex(q.shape[2], k.shape[2], causal)(q, k, v)}


def mla_products(call: Any) -> Callable:
    """Two products of torch over latents that are gathered beforehand: what no paging could do better."""
    latent = call.kv[call.kv_indices.long()].view(call.batch, -1, call.kv.shape[3])

    def peer() -> Tensor:
        q = call.q.view(call.batch, -1, call.q.shape[2])
        p = torch.softmax(torch.bmm(q, latent.transpose(1, 2)) * call.softmax_scale, -1)
        return torch.bmm(p, latent[..., :call.out.shape[2]]).view_as(call.out)

    return peer


def _flashinfer_mla(module: Any, call: Any) -> Callable:
    """Its kernel for Hopper, planned beforehand."""
    wrapper = module.mla.BatchMLAPagedAttentionWrapper(
        torch.empty(128 << 20, dtype=torch.uint8, device=call.q.device), backend="fa3")
    lengths = torch.full((call.batch,), call.kv_indices.shape[0] // call.batch * call.page_size, dtype=torch.int32,
                         device=call.q.device)
    v_dim, out, latent = call.out.shape[2], torch.empty_like(call.out), call.kv[:, :, 0]
    wrapper.plan(call.qo_indptr, call.kv_indptr, call.kv_indices, lengths, call.q.shape[1], v_dim,
                 call.q.shape[2] - v_dim, call.page_size, False, call.softmax_scale, call.q.dtype, call.kv.dtype)
    return partial(wrapper.run, call.q[..., :v_dim], call.q[..., v_dim:], latent[..., :v_dim], latent[..., v_dim:],
                   out=out)


def _flash_mla(module: Any, call: Any) -> Callable:
    """DeepSeek's kernel, which plans in its first call."""
    if call.page_size != 64:
        return partial(_refuse, "pages of 64 only")
    pages = call.kv_indices.view(call.batch, -1)
    lengths = torch.full((call.batch,), pages.shape[1] * call.page_size, dtype=torch.int32, device=call.q.device)
    q, latent = call.q.view(call.batch, -1, *call.q.shape[1:]), call.kv.view(-1, 64, 1, call.kv.shape[3])
    plan, splits = module.get_mla_metadata(lengths, q.shape[1] * q.shape[2], 1)
    return lambda: module.flash_mla_with_kvcache(q, latent, pages, lengths, call.out.shape[2], plan, splits,
                                                 softmax_scale=call.softmax_scale)[0].view_as(call.out)


PEERS: dict[str, dict[str, Callable[..., Callable[[], Any]]]] = {
    "rms_norm": {
        FLASHINFER: lambda m, x, weight, epsilon: partial(m.rmsnorm, x, weight, epsilon),
        FLAG_GEMS: lambda m, x, weight, epsilon: partial(m.rms_norm, x, x.shape[-1:], weight, epsilon),
        LIGER: lambda m, x, weight, epsilon: partial(m.liger_rms_norm, x, weight, epsilon, in_place=False)},
    "add_rms_norm": {
        FLASHINFER: _flashinfer_add_rms_norm,
        LIGER: lambda m, x, weight, epsilon, residual: partial(m.liger_fused_add_rms_norm, x, residual, weight, epsilon,
                                                               in_place=False)},
    "layer_norm": {
        FLAG_GEMS: lambda m, x, weight, bias, epsilon: lambda: m.layer_norm(x, x.shape[-1:], weight, bias, epsilon)[0],
        LIGER: lambda m, x, weight, bias, epsilon: partial(m.liger_layer_norm, x, weight, bias, epsilon)},
    "rms_norm_backward": {
        FLAG_GEMS: lambda m, dout, x, weight, scale: partial(m.rms_norm_backward, dout, x, scale, x.shape[-1:], weight),
        LIGER_OPS: _liger_rms_norm_backward},
    "layer_norm_backward": {
        FLAG_GEMS: lambda m, dout, x, weight, bias, mean, scale: partial(
            m.layer_norm_backward, dout, x, x.shape[-1:], mean, scale, weight, bias, (True,) * 3),
        LIGER_OPS: lambda m, dout, x, weight, bias, mean, scale: partial(
            m.layer_norm.layer_norm_backward, dout, x, weight, bias, mean, scale)},
    "silu_and_mul": {
        FLASHINFER: lambda m, x: partial(m.silu_and_mul, x),
        FLAG_GEMS: lambda m, x: partial(m.silu_and_mul, *x.chunk(2, -1)),
        LIGER: lambda m, x: partial(m.liger_swiglu, *(half.contiguous() for half in x.chunk(2, -1)))},
    "gelu_and_mul": {
        FLASHINFER: lambda m, x: partial(m.gelu_and_mul, x),
        FLAG_GEMS: lambda m, x: partial(m.gelu_and_mul, *x.chunk(2, -1))},
    "group_quant": {
        FLAG_GEMS: lambda m, x, group_size, dtype: partial(m.per_token_group_quant_fp8, x, group_size, dtype=dtype)},
    "gemm_a8w8_blockscale": {
        SGLANG_FP8: lambda m, out, a, b, a_scale, b_scale: partial(
            m.w8a8_block_fp8_matmul_triton, a, b, a_scale.contiguous(), b_scale, [128, 128], out.dtype),
        DEEP_GEMM: _deep_gemm},
    "fused_moe": {
        VLLM_MOE: lambda m, *args: partial(m.fused_experts, *args, inplace=False)},
    "rope": {
        FLASHINFER: _flashinfer_rope,
        FLAG_GEMS: lambda m, q, k, cos, sin, positions, is_neox: partial(
            m.apply_rotary_pos_emb, q, k, cos, sin, positions, rotary_interleaved=not is_neox),
        LIGER: _liger_rope},
    "paged_attention": {FLASHINFER: _flashinfer_decode},
    "mla_decode": {FLASHINFER: _flashinfer_mla, "flash_mla": _flash_mla},
    "reshape_and_cache": {
        FLAG_GEMS: lambda m, *args: partial(m.reshape_and_cache, *args, "auto", None, None)},
    "reshape_and_cache_flash": {
        FLASHINFER: _flashinfer_cache,
        FLAG_GEMS: lambda m, *args: partial(m.reshape_and_cache_flash, *args, "auto", None, None)},
    "concat_and_cache_mla": {
        FLAG_GEMS: lambda m, *args: partial(m.concat_and_cache_mla, *args, "auto", args[0].new_ones(1).float())},
}
"""Operator → module → what prepares the call: layouts that are a user's once are made there, outside the time."""


def _installed(root: str) -> str:
    try:
        return importlib.metadata.version(root)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


@functools.cache
def _module(name: str) -> Any:
    """The module, or None, which is said once: a library that is missing or broken is left out."""
    root = name.partition(".")[0]
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001  libraries fail in many ways where their own needs are not met
        print(f"without {root}: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
        return None
    version = getattr(importlib.import_module(root), "__version__", None) or _installed(root)
    print(f"beside {root} {version}")
    return module


def calls(op: str, *args: Any) -> dict[str, Callable[[], Any]]:
    """Peer → call, for `Case.calls`; none unless they are asked for."""
    found = {}
    for name, prepare in PEERS[op].items() if is_asked_for else ():
        module = _module(name)
        if module is not None:
            try:
                found[name.partition(".")[0].removesuffix("_kernel")] = prepare(module, *args)
            except AttributeError as error:  # another version of the library
                print(f"without {name} for {op}: {error}")
    return found
