# SPDX-License-Identifier: MIT
"""AITER's gather of latents of a paged cache, which a product makes keys and values of."""

from __future__ import annotations

import torch
from torch import Tensor

import aiter_like
from aiter_like import check
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.declare import aiter
from aiter_like.ops.common import elements, marks
from aiter_like.ops.common.contents import are_on_host, check_lengths, check_starts, check_values
from aiter_like.ops.gemm.gemm_a8w8_blockscale import BLOCK
from aiter_like.ops.gemm.problems import SIXTEEN_BITS

_OP = "gather_kv_b_proj"


@aiter("aiter.ops.triton.gather_kv_b_proj", callers="V")
def gather_kv_b_proj(k_buffer: Tensor, k_scale: Tensor, kv_indptr: Tensor, kv_indices: Tensor,
                     kv_prefix_sum_context_lens: Tensor, kv_proj_weight: Tensor, kv_proj_scale: Tensor | None,
                     k_prefix: Tensor, v_prefix: Tensor, weight_preshuffle: bool = False,
                     shuffled_kv_cache: bool = False) -> None:
    """Keys and values of sequences, of their latents in a paged cache: copies of rows, and `gemm_a8w8` or
    `gemm_a8w8_blockscale` where cache and weights are fp8, else `gemm_a16w16`.

    Args:
        k_buffer: [blocks, page_size, latent + pe] bf16|fp16 or the device's fp8.
        k_scale: 1 fp32 element: what an element of an fp8 cache counts; else of no meaning.
        kv_indptr: [batch + 1] integers: where each sequence's pages begin in `kv_indices`.
        kv_indices: [pages] integers, numbers of pages; what is none becomes the nearest on a GPU, where nobody looks.
        kv_prefix_sum_context_lens: [batch + 1] integers: where each sequence's tokens begin in the results.
        kv_proj_weight: [heads · (nope + v_dim), latent] 16 bits or the device's fp8. For another dtype than the
            cache's, fp8 becomes 16 bits here, in each call.
        kv_proj_scale: [n] or [n, 1] of each row, or [n / 128, latent / 128] of blocks; None: 1. Scales of blocks round
            weights of another dtype than the cache's once more, to 16 bits.
        k_prefix: [tokens, heads, nope + pe], written; rows behind the last sequence's tokens are of no meaning.
        v_prefix: [tokens, heads, v_dim], written.
        weight_preshuffle: the weights are in the order of `shuffle_weight`.
        shuffled_kv_cache: False.
    """
    check.flag(_OP, "weight_preshuffle", weight_preshuffle)
    if shuffled_kv_cache:
        raise UnsupportedError(f"{_OP}: no backend supports shuffled_kv_cache, the order of kernels for gfx950 and "
                               f"gfx1250", _OP, {"shuffled_kv_cache": "True"})
    check.tensor(_OP, "k_buffer", k_buffer, rank=3, dtypes=(*SIXTEEN_BITS, *elements.FP8))
    check.tensor(_OP, "kv_proj_weight", kv_proj_weight, rank=2, dtypes=(*SIXTEEN_BITS, *elements.FP8),
                 device=k_buffer.device)
    check.tensor(_OP, "k_prefix", k_prefix, rank=3, device=k_buffer.device)
    (n, latent), (tokens, heads, k_dim) = kv_proj_weight.shape, k_prefix.shape
    pe = k_buffer.shape[2] - latent
    check.tensor(_OP, "v_prefix", v_prefix, shape=(tokens, heads, None), device=k_buffer.device)
    head_rows = k_dim - pe + v_prefix.shape[2]
    if pe < 0 or n != heads * head_rows:
        raise ValueError(f"{_OP}: kv_proj_weight must have {heads} · {head_rows} rows for k_prefix of shape "
                         f"{tuple(k_prefix.shape)} and v_prefix of {tuple(v_prefix.shape)}, got {n}")
    _check_scale(kv_proj_scale, n, latent)
    rows = _rows(k_buffer, kv_indptr, kv_indices, kv_prefix_sum_context_lens, tokens)
    found = k_buffer.flatten(0, 1)[rows]  # [tokens, latent + pe]
    is_fp8 = k_buffer.dtype in elements.FP8
    if is_fp8:
        check.tensor(_OP, "k_scale", k_scale, dtypes=(torch.float32,), device=k_buffer.device)
    if is_fp8 and kv_proj_weight.dtype == k_buffer.dtype and kv_proj_scale is not None:
        product = _product_of_fp8(found[:, :latent], k_scale, kv_proj_weight, kv_proj_scale, weight_preshuffle)
    else:
        x = found[:, :latent].bfloat16() if is_fp8 else found[:, :latent]  # exact
        product = _wide_product(x, k_scale if is_fp8 else None, kv_proj_weight, kv_proj_scale, weight_preshuffle)
    turned = found[:, None, latent:].float() * k_scale if is_fp8 else found[:, None, latent:]
    keys, values = product.view(tokens, heads, -1).split((k_dim - pe, v_prefix.shape[2]), 2)
    k_prefix[..., :k_dim - pe], k_prefix[..., k_dim - pe:] = keys, turned
    v_prefix.copy_(values)


def _check_scale(scale: Tensor | None, n: int, latent: int) -> None:
    if scale is None:
        return
    check.tensor(_OP, "kv_proj_scale", scale, dtypes=elements.FLOATS, last_contiguous=False)
    blocks = -(-n // BLOCK), -(-latent // BLOCK)
    if tuple(scale.shape) not in ((n,), (n, 1), blocks):
        raise ValueError(f"{_OP}: kv_proj_scale must have shape ({n},), ({n}, 1) or {blocks}, got {tuple(scale.shape)}")


def _rows(cache: Tensor, indptr: Tensor, pages: Tensor, starts: Tensor, tokens: int) -> Tensor:
    """The row of the cache of each token, on the device alone."""
    for name, tensor in (("kv_indptr", indptr), ("kv_indices", pages), ("kv_prefix_sum_context_lens", starts)):
        check.tensor(_OP, name, tensor, rank=1, dtypes=elements.INTEGERS, device=cache.device)
    if len(indptr) != len(starts) or len(starts) < 2:
        raise ValueError(f"{_OP}: kv_prefix_sum_context_lens must have as many elements as kv_indptr, at least 2, got "
                         f"{len(starts)} and {len(indptr)}")
    check_lengths(_OP, "kv_prefix_sum_context_lens", starts, tokens, None)
    check_starts(_OP, "kv_indptr", indptr, len(pages), "entries of kv_indices")
    if are_on_host(starts, indptr, pages):
        check_values(_OP, "kv_indices", pages[:indptr[-1]], 0, len(cache) - 1, "name pages")
        if (wrong := starts[(starts.diff() > indptr.diff() * cache.shape[1]).nonzero()[:, 0]]).numel():
            raise ValueError(f"{_OP}: kv_indptr must give each sequence the pages of its tokens, got too few for that "
                             f"whose tokens begin at {wrong[0].item()}")
    (blocks, page_size, _), token = cache.shape, torch.arange(tokens, device=cache.device)
    sequence = (torch.searchsorted(starts.long(), token, right=True) - 1).clamp(max=len(starts) - 2)
    position = token - starts.long()[sequence]
    place = indptr.long()[sequence] + position // page_size
    page = pages.long()[place.clamp(max=max(len(pages) - 1, 0))] if len(pages) else place
    return page.clamp(0, blocks - 1) * page_size + position % page_size


def _product_of_fp8(x: Tensor, x_scale: Tensor, weights: Tensor, scale: Tensor, is_shuffled: bool) -> Tensor:
    scale = scale.float()
    if scale.numel() == len(weights):
        product = aiter_like.gemm_a8w8_bpreshuffle if is_shuffled else aiter_like.gemm_a8w8
        return product(x, weights, x_scale.reshape(1), scale.reshape(-1, 1))
    scales = x_scale.reshape(1, 1).expand(scale.shape[1], len(x)).contiguous().t()  # blocks outermost
    product = aiter_like.gemm_a8w8_blockscale_bpreshuffle if is_shuffled else aiter_like.gemm_a8w8_blockscale
    return product(x, weights, scales, scale)


def _wide_product(x: Tensor, x_scale: Tensor | None, weights: Tensor, scale: Tensor | None,
                  is_shuffled: bool) -> Tensor:
    """By `gemm_a16w16`, and behind it, in fp32, the scale of `x` and those of rows."""
    is_of_rows = scale is not None and scale.numel() == len(weights)
    weights = _wide_weights(weights, None if is_of_rows else scale, is_shuffled, x.dtype)
    factor = scale.float().reshape(1, -1) if is_of_rows else None
    if x_scale is not None:
        factor = x_scale.reshape(1, 1) if factor is None else factor * x_scale
    if factor is None:
        return aiter_like.gemm_a16w16(x, weights)
    return aiter_like.gemm_a16w16(x, weights, otype=torch.float32).mul_(factor)


def _wide_weights(weights: Tensor, scale: Tensor | None, is_shuffled: bool, dtype: torch.dtype) -> Tensor:
    """Those of 16 bits without scales of blocks as they are; others in `dtype`."""
    if scale is None and weights.dtype == dtype:
        return marks.mark(weights.view(weights.shape)) if is_shuffled else weights
    plain = (aiter_like.unshuffle_weight(weights) if is_shuffled else weights).float()
    if scale is not None:
        plain *= scale.repeat_interleave(BLOCK, 0)[:len(weights)].repeat_interleave(BLOCK, 1)[:, :weights.shape[1]]
    return plain.to(dtype)
