# SPDX-License-Identifier: MIT
"""AITER's attention over chosen rows of pools, with a sink, against the formula in float64."""

import pytest
import torch
from seeded import numbers

from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.attention import sparse_attention as sparse

FP8 = torch.float8_e4m3fnuz
TOKENS, HEADS, DIM, ROWS, SCALE = 4, 5, 512, 40, 512**-0.5


def choices(seed, lengths=(7, 0, 19, 2)):
    starts = torch.tensor((0, *lengths)).cumsum(0).int()
    indices = torch.randint(ROWS, (int(starts[-1]),), generator=torch.Generator().manual_seed(seed)).int()
    indices[::5] = -1
    return indices, starts


def expect(q, pools, sink):
    """pools: (rows in float64, indices, starts)."""
    out = torch.zeros(q.shape, dtype=torch.float64)
    for t in range(len(q)):
        rows = torch.cat([pool[[i for i in indices[starts[t]:starts[t + 1]].tolist() if i >= 0]]
                          for pool, indices, starts in pools])
        scores = q[t].double() @ rows.T * SCALE
        if sink is not None:
            scores = torch.cat((scores, sink.double()[:, None]), 1)
        weights = scores.softmax(-1)[:, :len(rows)] if scores.shape[1] else scores
        out[t] = weights @ rows
    return out


def close(got, expected):
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), expected, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("is_fp8", (False, True))
def test_decoding(simulated, is_fp8):
    q, pool, sink = numbers(TOKENS, HEADS, DIM), numbers(ROWS, DIM, seed=1), numbers(HEADS, seed=2).float()
    indices, starts = choices(3)
    scales = torch.rand(ROWS, DIM // 64, generator=torch.Generator().manual_seed(4)) + 0.5 if is_fp8 else None
    given = pool.to(FP8) if is_fp8 else pool
    wide = given.double()
    if is_fp8:
        wide = wide * scales.double().repeat_interleave(64, 1)
    found = sparse.pa_decode_sparse(q, given, indices, starts, sink, SCALE, scales, kv_splits=4, skip_reduce=True)
    close(found, expect(q, [(wide, indices, starts)], sink))
    assert not found[1].any()


@pytest.mark.parametrize("has_sink", (False, True))
def test_two_pools(simulated, has_sink):
    q, pool, kv = numbers(TOKENS, HEADS, DIM), numbers(ROWS, DIM, seed=1), numbers(ROWS, DIM, seed=5)
    sink = numbers(HEADS, seed=2).float() if has_sink else None
    first, second = choices(3), choices(6, (0, 0, 3, 8))
    out = torch.empty_like(q)
    assert sparse.pa_sparse_prefill_opus(q, pool, *first, kv, *second, sink, SCALE, out) is out
    close(out, expect(q, [(pool.double(), *first), (kv.double(), *second)], sink))


def test_nothing_chosen(simulated):
    q, pool = numbers(TOKENS, HEADS, DIM), numbers(ROWS, DIM)
    none, starts = torch.zeros(0, dtype=torch.int32), torch.zeros(TOKENS + 1, dtype=torch.int32)
    assert not sparse.pa_decode_sparse(q, pool, none, starts, torch.zeros(HEADS), SCALE).any()
    assert not sparse.pa_decode_sparse(q, pool[:0], none, starts, torch.zeros(HEADS), SCALE).any()


def test_bad_arguments():
    q, pool, sink = numbers(TOKENS, HEADS, DIM), numbers(ROWS, DIM), torch.zeros(HEADS)
    indices, starts = choices(3)
    with pytest.raises(UnsupportedError, match="pa_decode_sparse: no backend supports extra_cache"):
        sparse.pa_decode_sparse(q, pool, indices, starts, sink, SCALE, extra_cache=pool)
    with pytest.raises(UnsupportedError, match="pa_decode_sparse: no backend supports unified_kv"):
        sparse.pa_decode_sparse(q, pool[None], indices, starts, sink, SCALE)
    with pytest.raises(TypeError, match="pa_decode_sparse: q must have dtype"):
        sparse.pa_decode_sparse(q.float(), pool, indices, starts, sink, SCALE)
    with pytest.raises(ValueError, match="pa_decode_sparse: attn_sink must have shape"):
        sparse.pa_decode_sparse(q, pool, indices, starts, sink[1:], SCALE)
    with pytest.raises(ValueError, match="pa_decode_sparse: kv_indptr must have shape"):
        sparse.pa_decode_sparse(q, pool, indices, starts[1:], sink, SCALE)
    with pytest.raises(ValueError, match="pa_decode_sparse: kv_scales must have shape"):
        sparse.pa_decode_sparse(q, pool.to(FP8), indices, starts, sink, SCALE, torch.ones(ROWS, 4))
    with pytest.raises(ValueError, match="pa_sparse_prefill_opus: kv_indices_extend must be given"):
        sparse.pa_sparse_prefill_opus(q, pool, indices, starts, pool, None, starts, sink, SCALE)
