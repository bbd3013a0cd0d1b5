# SPDX-License-Identifier: MIT
"""mla_decode in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from aiter_like.ops.attention.call import FP8
from aiter_like.ops.attention.reference import softmax_of
from aiter_like.ops.mla.call import MlaDecodeCall


def mla_decode_ref(call: MlaDecodeCall) -> None:
    """The formula in torch, in fp32, sequence by sequence; writes `out` and `lse`. Reads the lengths on the host."""
    v_dim = call.out.shape[2]
    for index, start, end, first, last in _sequences(call):
        latent = _latent_of(call, index, first, last)
        q = call.q[start:end].float() * (call.q_scale if call.q_scale is not None and call.q.dtype in FP8 else 1.0)
        scores = torch.einsum("qhd,kd->hqk", q, latent) * call.softmax_scale
        if call.softcap > 0:
            scores = call.softcap * torch.tanh(scores / call.softcap)
        p, lse = softmax_of(scores, _visible(call, index, end - start, first, len(latent)), None)
        result = torch.einsum("hqk,kd->qhd", p, latent[:, :v_dim])
        call.out[start:end] = result.masked_fill(lse.t()[..., None] == -torch.inf, 0.0)  # 0 · NaN is no 0
        if call.lse is not None:
            call.lse[start:end] = lse.t()


def _sequences(call: MlaDecodeCall) -> list[tuple[int, int, int, int, int]]:
    """(index, first row, end of rows, first page, end of pages) of sequences with rows: by the lengths, or by a plan,
    whose pieces are put together again.
    """
    total_q, entries = call.q.shape[0], call.kv_indices.shape[0]
    rows = call.qo_indptr.long().clamp(0, total_q).tolist()
    pages = call.kv_indptr.long().clamp(0, entries).tolist()
    found = [(index, rows[index], rows[index + 1], pages[index], max(pages[index:index + 2]))
             for index in range(call.batch)]
    if call.is_planned:
        count = min(max(int(call.work_indptr[-1]), 0), call.work_info.shape[0])
        whole: dict[int, tuple[int, int, int, int, int]] = {}
        for index, _, start, end, first, last in call.work_info[:count, :6].tolist():
            start, first = min(max(start, 0), total_q), min(max(first, 0), entries)
            seen = whole.get(start, (0, 0, 0, first, first))
            whole[start] = (min(max(index, 0), call.batch - 1), start, min(end, total_q), min(seen[3], first),
                            max(seen[4], min(last, entries)))
        found = list(whole.values())
    return [(index, start, min(end, start + call.max_seqlen_q), first, last)
            for index, start, end, first, last in found if start < end]


def _latent_of(call: MlaDecodeCall, index: int, first: int, last: int) -> Tensor:
    """Keys of a sequence in fp32, [keys, dim]; zeros where an entry names no page, which `_visible` hides."""
    entries = call.kv_indices[first:last].long()
    count = len(entries) * call.page_size
    if call.kv_last_page_lens is not None and call.page_size > 1:
        count -= call.page_size - min(max(int(call.kv_last_page_lens[index]), 0), call.page_size)
    is_page = (entries >= 0) & (entries < call.kv.shape[0])
    kv = call.kv if call.kv.shape[0] else call.kv.new_zeros(1, *call.kv.shape[1:])  # a page to index
    latent = kv[entries.clamp(0, kv.shape[0] - 1)][:, :, 0].float()
    latent = torch.where(is_page[:, None, None], latent, 0.0).flatten(0, 1)[:max(count, 0)]
    return latent * call.kv_scale if call.kv_scale is not None and call.kv.dtype in FP8 else latent


def _visible(call: MlaDecodeCall, index: int, rows: int, first: int, keys: int) -> Tensor:
    """bool [rows, keys]."""
    key = torch.arange(keys, device=call.q.device)
    entries = call.kv_indices[first + key // call.page_size]
    visible = ((entries >= 0) & (entries < call.kv.shape[0])).expand(rows, keys)
    if not call.causal:
        return visible
    position, total = torch.arange(rows, device=call.q.device) - rows, keys
    if call.g_kv_indptr is not None:
        start, end = call.g_kv_indptr[index:index + 2].clamp(min=0).tolist()
        total = max(end - start, 0)
        key = key * call.cp_world_size + call.cp_rank
    return visible & (key <= (total + position)[:, None])
