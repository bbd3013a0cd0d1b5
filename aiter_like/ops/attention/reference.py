# SPDX-License-Identifier: MIT
"""The scores of attention, their softmax and their derivatives in torch, for the references of its operators."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from aiter_like.ops.attention.call import FP8, AttentionBackwardCall, AttentionCall, AttentionDbiasCall, PagedCall
from aiter_like.ops.attention.paged_attention_call import PagedAttentionCall
from aiter_like.ops.common import philox

_FAR_LSE = 4096.0  # triton/flash_attn_bwd_far.py has the same
_MOST_SLOPE = 2.0**90  # times a distance it is finite in fp32, as the kernels have it
_MOST_SCORES = 1 << 27  # at once: 1 GiB in fp64, of which several are alive


def row_blocks(num_rows: int, scores_of_a_row: int) -> Iterator[slice]:
    """The rows of queries, as many at a time as have no more scores than the memory of a GPU holds easily."""
    step = max(_MOST_SCORES // max(scores_of_a_row, 1), 1)
    return (slice(first, min(first + step, num_rows)) for first in range(0, max(num_rows, 1), step))


def scores_of(call: AttentionCall | PagedCall, q: Tensor, k: Tensor, bias: Tensor | None,
              slopes: Tensor | None, lengths: Tensor | None = None, before: int = 0, behind: int = 0
              ) -> tuple[Tensor, Tensor, Tensor | float]:
    """Scores before the softmax, which of them a row sees, and their derivative by softmax_scale · q·k.

    Args:
        call: scale, softcap and window.
        q: [..., num_heads, rows, head_dim], in the dtype to compute in, descaled.
        k: [..., num_heads, keys, head_dim], likewise.
        bias: broadcast over the scores, [..., num_heads, rows of the sequence, keys].
        slopes: ALiBi's, [..., num_heads].
        lengths: keys that count, broadcast over the scores; None: all.
        before, behind: how many rows of the sequence lie before those of `q`, and behind them.
    """
    (rows, keys), device = (q.shape[-2], k.shape[-2]), q.device
    key = torch.arange(keys, device=device)
    end = keys if lengths is None else lengths
    place = torch.arange(rows, device=device)[:, None] + before
    distance = place + (end - before - rows - behind) - key  # how far a key is before the diagonal
    visible = (key < end).expand(distance.shape)
    if call.window_right >= 0:
        visible = visible & (distance >= -call.window_right)
    if call.window_left >= 0:
        visible = visible & ((distance <= call.window_left) | (key < call.sink_size))
    scores, slope = seen_rows(q, visible) @ seen_keys(k, visible).transpose(-2, -1) * call.softmax_scale, 1.0
    if call.softcap:
        tanh = torch.tanh(scores / call.softcap)
        scores, slope = call.softcap * tanh, 1 - tanh * tanh
    if bias is not None:
        if bias.shape[-2] > 1:
            bias = bias[..., before:before + rows, :]
        scores = scores + bias.to(scores.dtype)
    if slopes is not None:
        slopes = slopes.to(scores.dtype).clamp(-_MOST_SLOPE, _MOST_SLOPE)
        scores = scores - slopes[..., None, None] * distance.abs()
    return scores, visible, slope


def seen_keys(tensor: Tensor, visible: Tensor) -> Tensor:
    """[..., keys, dim] with zeros for keys that no row sees, whatever is there: 0 · NaN is no 0, in derivatives too."""
    return tensor.masked_fill(~visible.any(-2)[..., None], 0.0)


def seen_rows(tensor: Tensor, visible: Tensor) -> Tensor:
    """[..., rows, dim] with zeros for rows that see no key, whatever is there, as seen_keys has it."""
    return tensor.masked_fill(~visible.any(-1)[..., None], 0.0)


def product_with(p: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """P V [..., num_heads, rows, dim], without values that no row sees, and without derivatives of rows that see none.
    """
    return seen_rows(p @ seen_keys(values, visible), visible)


def softmax_of(scores: Tensor, visible: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """P [..., num_heads, rows, keys] and the log-sum-exp [..., num_heads, rows]; a row that sees nothing: 0 and −inf.

    sink: [num_heads], one more score in the denominator.
    """
    scores = scores.masked_fill(~visible, -math.inf)
    with_sink = scores
    if sink is not None:
        column = sink.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        with_sink = torch.cat((scores, column), -1)
    is_blind = (with_sink == -math.inf).all(-1, keepdim=True)
    with_sink = with_sink.masked_fill(is_blind, 0.0)  # a softmax of −inf alone would be NaN, and so its derivatives
    # Neither P nor the derivative of the log-sum-exp comes from that: far from 0 its rounding is in the exponent.
    near = with_sink.detach().logsumexp(-1, keepdim=True)
    lse = near + torch.exp(with_sink - near).sum(-1, keepdim=True).log()
    p = with_sink.softmax(-1)[..., :scores.shape[-1]]
    return p.masked_fill(is_blind, 0.0), lse.masked_fill(is_blind, -math.inf)[..., 0]


class RowsGradient(NamedTuple):
    """The derivatives of some rows of a sequence, each tensor [query heads, rows or keys, ...].

    Attributes:
        batch: the sequence's number.
        sequence, keys: its index in the tensors of rows, and of keys.
        rows: which of its rows.
        q, k, dout: zeros in rows that see no key, and in keys that none of the rows sees.
        dscores, dproducts: of the scores, and of q·k.
        survivors: P with dropout.
        dsink: [query heads]; None without a sink.
    """

    batch: int
    sequence: tuple
    keys: tuple
    rows: slice
    q: Tensor
    k: Tensor
    dout: Tensor
    dscores: Tensor
    dproducts: Tensor
    survivors: Tensor
    dsink: Tensor | None


def wide_dtype(call: AttentionBackwardCall | AttentionDbiasCall) -> torch.dtype:
    """The reference computes in this dtype."""
    return torch.promote_types(call.q.dtype, torch.float32)


def row_gradients(call: AttentionBackwardCall | AttentionDbiasCall) -> Iterator[RowsGradient]:
    """Every sequence, some rows at a time."""
    for batch in range(call.forward.batch):
        rows, keys = _rows_of(call, call.cu_seqlens_q, batch, call.q), _rows_of(call, call.cu_seqlens_k, batch, call.k)
        of_lse = (batch,) if call.cu_seqlens_q is None else (slice(None), *rows)
        q, k, v, dout, out = (tensor[index].transpose(0, 1).to(wide_dtype(call)) for tensor, index in (
            (call.q, rows), (call.k, keys), (call.v, keys), (call.dout, rows), (call.out, rows)))
        lse = call.lse[of_lse].to(q.dtype)
        dlse = torch.zeros_like(lse) if call.dlse is None else call.dlse[of_lse].to(q.dtype)
        k, v = (tensor.repeat_interleave(q.shape[0] // max(k.shape[0], 1), 0) for tensor in (k, v))
        bias, slopes = call.bias, call.alibi_slopes
        if bias is not None:
            bias = bias[rows] if call.forward.is_varlen else bias[batch if len(bias) > 1 else 0]
            bias = bias[..., :k.shape[1]]
        if slopes is not None and slopes.dim() == 2:
            slopes = slopes[batch]
        for own in row_blocks(q.shape[1], k.shape[0] * k.shape[1]):
            some = (tensor[:, own] for tensor in (q, dout, out, lse, dlse))
            yield RowsGradient(batch, rows, keys, own,
                               *_some_rows(call, batch, own, q.shape[1], k, v, bias, slopes, *some))


def _rows_of(call: AttentionBackwardCall | AttentionDbiasCall, cu_seqlens: Tensor | None, batch: int,
             tensor: Tensor) -> tuple:
    """Index of a sequence: its place in the batch, or its rows, inside the tensor whatever cu_seqlens holds."""
    if cu_seqlens is None:
        return (batch,)
    total = tensor.shape[0]
    start = min(max(int(cu_seqlens[batch]), 0), total)
    longest = call.max_seqlen_q if tensor is call.q else call.max_seqlen_k
    return (slice(start, max(min(int(cu_seqlens[batch + 1]), total, start + longest), start)),)


def _some_rows(call: AttentionBackwardCall | AttentionDbiasCall, batch: int, rows: slice, num_rows: int, k: Tensor,
               v: Tensor, bias: Tensor | None, slopes: Tensor | None, q: Tensor, dout: Tensor, out: Tensor, lse: Tensor,
               dlse: Tensor) -> tuple[Tensor | None, ...]:
    """The tensors of a RowsGradient."""
    scores, visible, slope = scores_of(call.forward, q, k, bias, slopes, None, rows.start, num_rows - rows.stop)
    q, dout = seen_rows(q, visible), seen_rows(dout, visible)
    sees = (lse > -math.inf) | lse.isnan()
    # Far from 0 the rounding of the log-sum-exp is in the exponent.
    is_far = (lse.abs() > _FAR_LSE) & lse.isfinite()
    exact = softmax_of(scores, visible, call.sink)[0]
    p = torch.where(is_far[..., None], exact, torch.exp(scores - lse[..., None]))
    p = torch.where(visible & sees[..., None], p, 0.0)
    delta = torch.where(sees, (dout * seen_rows(out, visible)).sum(-1) - dlse, 0.0)
    dp, survivors = dout @ v.transpose(1, 2), p
    if call.dropout_p:
        heads = batch * q.shape[0] + torch.arange(q.shape[0], device=q.device)
        kept = philox.attention_kept(call.rng_state, call.dropout_p, heads[:, None],
                                     torch.arange(rows.start, rows.stop, device=q.device), k.shape[1])
        dp, survivors = (torch.where(kept, tensor / (1 - call.dropout_p), 0.0) for tensor in (dp, p))
    dscores, dsink = torch.where(visible, p * (dp - delta[..., None]), 0.0), None
    dproducts = torch.where(visible, dscores * slope, 0.0) * call.softmax_scale
    if call.sink is not None:
        weights = torch.where(is_far, 1 - p.sum(-1), torch.exp(call.sink[:, None].to(q.dtype) - lse))
        dsink = -torch.where(sees, weights * delta, 0.0).sum(1)
    return q, seen_keys(k, visible), dout, dscores, dproducts, survivors, dsink


def pages_of(call: PagedCall | PagedAttentionCall, index: int) -> tuple[Tensor, int]:
    """Pages of a sequence, all in the cache, and its keys."""
    size = call.page_size
    if call.page_starts is None:
        count = min(max(int(call.seqlens_k[index]), 0), call.block_table.shape[1] * size)
        entries = call.block_table[index, :-(-count // size)]
    else:
        first, last = call.page_starts[index:index + 2].clamp(0, call.block_table.shape[0]).tolist()
        entries = call.block_table[first:last]
        tail = size if call.seqlens_k is None else min(max(int(call.seqlens_k[index]), 0), size)
        count = max((len(entries) - 1) * size + tail, 0) if len(entries) else 0
    return entries.long().clamp(0, call.k.shape[0] - 1), count


def rows_in(pages: Tensor, entries: Tensor, is_value: bool) -> Tensor:
    """Keys or values of some pages in fp32, [pages, page_size, num_kv_heads, dim]."""
    bits = pages.view(torch.uint8) if pages.dtype in FP8 else pages  # fp8 cannot be indexed
    found = bits[entries].view(pages.dtype).float()
    if found.ndim == 4:
        return found
    return found.permute(0, 1, 4, 2, 3).flatten(1, 2) if is_value else found.flatten(3)
