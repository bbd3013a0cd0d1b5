# SPDX-License-Identifier: MIT
"""SGLang's AITER attention backends without SGLang: their calls, as recorded from version 0.5.23, by AITER's names.

Keywords, shapes, dtypes and the lengths of its buffers are SGLang's: tables of the largest batch, one-element scales
without dimensions, lengths in 64 bits. Each call runs on the simulated MI300X and is compared with float64.
test_sglang.py holds the keywords against SGLang's source.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

import aiter_like as aiter
from aiter_like import sim
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter import names as aiter_names
from aiter_like.testing import relative_l2

pytestmark = pytest.mark.usefixtures("simulated")

unified_attention = next(row.value for row in aiter_names.table()
                         if "aiter.ops.triton.attention.unified_attention" in row.modules)

BF16, FP8, LIMIT = torch.bfloat16, torch.float8_e4m3fnuz, 2**-8
MOST, LENGTHS = 6, (37, 1, 90)  # sequences that SGLang's buffers are made for, and keys of those that run
LATENT, ROPE, TILE = 512, 64, 256


@pytest.fixture
def launches():
    """Names of the kernels that ran on the simulated MI300X so far, and their launches."""
    with sim.enabled(checks=False) as session:
        yield lambda: {name: counters["launches"] for name, counters in session.counters.items()}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def starts(counts: Any, most: int | None = None) -> Tensor:
    """Cumulative counts, int32; with `most` in a buffer for so many sequences, whose end is old."""
    found = torch.tensor([0, *counts]).cumsum(0).int()
    return found if most is None else torch.cat((found, torch.full((most - len(counts),), 7, dtype=torch.int32)))


class Pool:
    """Keys of LENGTHS in slots of a pool, in random order; unused ones hold NaN."""

    def __init__(self, *widths: int, dtype: torch.dtype = BF16):
        self.caches = [torch.full((sum(LENGTHS) + 9, *width), torch.nan).to(dtype) for width in widths]
        order = torch.randperm(len(self.caches[0]), generator=torch.Generator().manual_seed(1))
        self.slots = order[:sum(LENGTHS)].int()
        for seed, (cache, width) in enumerate(zip(self.caches, widths)):
            cache.view(torch.uint8 if dtype == FP8 else dtype)[self.slots.long()] = random(
                len(self.slots), *width, seed=seed, dtype=dtype).view(torch.uint8 if dtype == FP8 else dtype)

    def rows(self, cache: Tensor, index: int) -> Tensor:
        """Keys of one sequence in float64."""
        slots = self.slots.split(LENGTHS)[index].long()
        bits = cache.view(torch.uint8)[slots].view(FP8) if cache.dtype == FP8 else cache[slots]
        return bits.double()

    def table(self) -> Tensor:
        """[sequences, longest] with zeros behind the keys."""
        table = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.int32)
        for row, slots in zip(table, self.slots.split(LENGTHS)):
            row[:len(slots)] = slots
        return table


def attention64(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = True, window: int = -1) -> Tensor:
    """[rows, heads, dim] in float64 of one sequence, whose last tokens are the queries."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    distance = torch.arange(len(q))[:, None] + len(k) - len(q) - torch.arange(len(k))
    hidden = (distance < 0) & causal | (distance > window if window >= 0 else torch.zeros_like(distance).bool())
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


def assert_close(out: Tensor, expected: list[Tensor]) -> None:
    assert relative_l2(out, torch.cat(expected)) < LIMIT


# ---- keys and values by head


def paged(q: Tensor, pool: Pool, counts: list[int], scale: float, **options: Any) -> list[Tensor]:
    k, v = pool.caches
    return [attention64(rows, pool.rows(k, index), pool.rows(v, index), scale, **options)
            for index, rows in enumerate(q.double().split(counts))]


@pytest.mark.parametrize("kind", ("bf16", "fp8"))
def test_decode_by_paged_attention_ragged(launches, kind):
    """forward_decode: pages of one key, last-page lengths of the largest batch, scales with any cache."""
    dtype, scale = FP8 if kind == "fp8" else BF16, torch.tensor([0.5])
    pool = Pool((2, 64), (2, 64), dtype=dtype)
    q, o = random(3, 8 * 64), torch.full((3, 8 * 64), torch.nan, dtype=BF16)
    k_cache, v_cache = pool.caches
    aiter.paged_attention_ragged(
        o.view(-1, 8, 64), torch.empty(MOST * 8 * 4 * 66 * 4, dtype=torch.uint8), q.view(-1, 8, 64),
        k_cache.view(-1, 1, 2, 64), v_cache.view(-1, 1, 2, 64), 0.125, starts(LENGTHS), pool.slots,
        torch.ones(MOST, dtype=torch.int32), 1, 4, None, "fp8_e4m3" if kind == "fp8" else "auto", "NHD", 0.0, scale,
        scale, None, 256)
    factor = 0.5 if kind == "fp8" else 1.0
    assert_close(o.view(3, 8, 64), [x * factor for x in paged(q.view(3, 8, 64), pool, [1] * 3, 0.125 * factor)])
    assert any("paged_attention" in name for name in launches())


@pytest.mark.parametrize("kind", ("bf16", "window", "fp8"))
def test_extend_by_mha_batch_prefill(launches, kind):
    """forward_extend over the pool: [slots, heads, dim], a page table of single keys, starts in larger buffers."""
    counts, is_fp8 = [9, 1, 30], kind == "fp8"
    pool = Pool((2, 64), (2, 64), dtype=FP8 if is_fp8 else BF16)
    q = random(sum(counts), 8, 64).to(FP8 if is_fp8 else BF16)
    scale = torch.tensor([1.0]) if is_fp8 else None
    sequences = len(LENGTHS) + 1
    given = {} if is_fp8 else {"out": torch.full((len(q), 8, 64), torch.nan, dtype=BF16)}
    o = aiter.mha_batch_prefill_func(
        q, *pool.caches, starts(counts, MOST)[:sequences], starts(LENGTHS, MOST)[:sequences], pool.slots, max(counts),
        max(LENGTHS), causal=True, logits_soft_cap=0.0, alibi_slopes=None, return_lse=False, return_attn_probs=False,
        window_size=(16, -1) if kind == "window" else (-1, -1), sink_ptr=None, q_descale=scale, k_descale=scale,
        v_descale=scale, **given)
    assert not given or o.data_ptr() == given["out"].data_ptr()
    found = relative_l2(o, torch.cat(paged(q, pool, counts, 0.125, window=16 if kind == "window" else -1)))
    assert found < (2**-5 if is_fp8 else LIMIT)  # fp8: P is rounded to 3 bits
    assert launches()


@pytest.mark.parametrize("kind", ("decode", "verify", "fp8"))
def test_unified_attention(launches, kind):
    """forward_decode, verification of two tokens of a draft, queries and pages in fp8; lengths in 64 bits."""
    count, dtype = 2 if kind == "verify" else 1, FP8 if kind == "fp8" else BF16
    pool, scale = Pool((2, 64), (2, 64), dtype=dtype), torch.tensor([1.0]) if kind == "fp8" else None
    # Of one key, a sequence that verifies two tokens has one that sees no key.
    q, o = random(3 * count, 8, 64).to(dtype), torch.full((3 * count, 8 * 64), torch.nan, dtype=BF16)
    unified_attention(
        q=q, k=pool.caches[0].view(-1, 1, 2, 64), v=pool.caches[1].view(-1, 1, 2, 64), out=o.view(-1, 8, 64),
        cu_seqlens_q=torch.arange(4, dtype=torch.int32) * count, seqused_k=torch.tensor(LENGTHS), max_seqlen_q=count,
        max_seqlen_k=max(LENGTHS), softmax_scale=0.125, causal=True, window_size=(-1, -1), block_table=pool.table(),
        softcap=0.0, q_descale=scale, k_descale=scale, v_descale=scale, sinks=None)
    expected = torch.cat(paged(q, pool, [count] * 3, 0.125)).nan_to_num(0.0)
    assert relative_l2(o.view(-1, 8, 64), expected) < LIMIT
    assert launches()


# ---- latent attention


def latent(q: Tensor, pool: Pool, counts: list[int], scale: float) -> list[Tensor]:
    """The latent is both key, with its rotated part, and value."""
    keys = [pool.rows(pool.caches[0], index) for index in range(len(LENGTHS))]
    return [attention64(rows, k, k[..., :LATENT], scale) for rows, k in zip(q.double().split(counts), keys)]


def memory(sizes: Any) -> list[Tensor]:
    """Buffers as SGLang makes them of what get_…_metadata_info_v1 says: of any content."""
    return [torch.full(shape if isinstance(shape, tuple) else (shape,), 99, dtype=torch.int64).to(dtype)
            for shape, dtype in sizes]


def plan(qo_indptr: Tensor, kv_indptr: Tensor, heads: int, dtype: torch.dtype, count: int, splits: int,
         fast_mode: bool, intra_batch_mode: bool) -> dict[str, Tensor]:
    """make_mla_decode_meta_data_buffer and make_mla_meta_data."""
    batch, names = len(qo_indptr) - 1, ("work_meta_data", "work_indptr", "work_info_set", "reduce_indptr",
                                        "reduce_final_map", "reduce_partial_map")
    meta, indptr, info, *reduce = memory(aiter.get_mla_metadata_info_v1(
        batch, count, heads, dtype, dtype, is_sparse=False, fast_mode=fast_mode, num_kv_splits=splits,
        intra_batch_mode=intra_batch_mode))
    aiter.get_mla_metadata_v1(
        qo_indptr, kv_indptr, torch.ones(batch, dtype=torch.int32), heads, 1, False, meta, info, indptr, *reduce,
        kv_granularity=16, max_seqlen_qo=count, uni_seqlen_qo=count, fast_mode=fast_mode, max_split_per_batch=splits,
        intra_batch_mode=intra_batch_mode, is_cp_round_robin=False, dtype_q=dtype, dtype_kv=dtype)
    return dict(zip(names, (meta, indptr, info, *reduce)))


@pytest.mark.parametrize(("heads", "kind", "count", "splits"), (
    (16, "bf16", 1, None), (16, "fp8", 1, 64), (128, "bf16", 1, None), (32, "fp8", 1, -1), (16, "fp8", 4, 32)), ids=str)
def test_latent_decode(launches, heads, kind, count, splits):
    """forward_decode and, of four tokens, target verification, without a plan and with one; queries may be bf16."""
    dtype = FP8 if kind == "fp8" else BF16
    pool = Pool((1, LATENT + ROPE), dtype=dtype)
    q, scale = random(3 * count, heads, LATENT + ROPE), torch.ones(()) if kind == "fp8" else None
    given: dict[str, Any] = dict.fromkeys(("work_meta_data", "work_indptr", "work_info_set", "reduce_indptr",
                                           "reduce_final_map", "reduce_partial_map"))
    qo_indptr, kv_indptr = torch.arange(4, dtype=torch.int32) * count, starts(LENGTHS)
    if splits is not None:
        q = q.to(FP8)
        given = plan(qo_indptr, kv_indptr, heads, dtype, count, splits, fast_mode=splits < 0,
                     intra_batch_mode=splits > 0)
    o = q.new_empty((len(q), heads, LATENT), dtype=BF16)
    aiter.mla_decode_fwd(
        q, pool.caches[0].view(-1, 1, 1, LATENT + ROPE), o, qo_indptr=qo_indptr, kv_indptr=kv_indptr,
        kv_indices=pool.slots, kv_last_page_lens=torch.ones(3, dtype=torch.int32), max_seqlen_q=count, sm_scale=0.06,
        logit_cap=0.0, q_scale=scale, kv_scale=scale, intra_batch_mode=(splits or 0) > 0,
        num_kv_splits=None if splits == -1 else splits, **given)
    expected = torch.cat(latent(q, pool, [count] * 3, 0.06)).nan_to_num(0.0)
    assert relative_l2(o, expected) < LIMIT
    assert any("mla_decode" in name for name in launches())


def test_latent_decode_of_a_shard(launches):
    """Decode context parallelism: (out, log-sum-exp) of this rank's keys, positional, and of the verification, whose
    causal mask looks at the numbers of the keys of all ranks."""
    pool, scale = Pool((1, LATENT + ROPE), dtype=FP8), torch.ones(())
    q = random(3, 16, LATENT + ROPE).to(FP8)
    starts_q, starts_k = torch.arange(4, dtype=torch.int32), starts(LENGTHS)
    given = plan(starts_q, starts_k, 16, FP8, 1, 64, fast_mode=True, intra_batch_mode=False)
    for extra in ({}, {"g_kv_indptr": starts([2 * length for length in LENGTHS]), "cp_world_size": 2, "cp_rank": 1}):
        out = torch.empty(3, 16, LATENT, dtype=BF16)
        _, lse = aiter.mla_decode_fwd(
            q, pool.caches[0].view(-1, 1, 1, LATENT + ROPE), out, starts_q, starts_k, pool.slots,
            torch.ones(3, dtype=torch.int32), 1, sm_scale=0.06, num_kv_splits=64, q_scale=scale, kv_scale=scale,
            intra_batch_mode=False, return_lse=True, **given, **extra)
        assert_close(out, latent(q, pool, [1] * 3, 0.06))
        scores = torch.cat([torch.einsum("qhd,khd->qhk", row.double(), pool.rows(pool.caches[0], index).expand(
            -1, 16, -1)).mul(0.06).logsumexp(-1) for index, row in enumerate(q.double().split(1))])
        torch.testing.assert_close(lse.view(3, 16).double(), scores, rtol=1e-4, atol=1e-4)
    assert launches()


@pytest.mark.parametrize("kind", ("bf16", "fp8"))
def test_latent_decode_of_chosen_tokens(launches, kind):
    """DeepSeek sparse attention: starts in a buffer of the largest batch, last-page lengths of another length."""
    dtype, scale = FP8 if kind == "fp8" else BF16, torch.ones(()) if kind == "fp8" else None
    pool = Pool((1, LATENT + ROPE), dtype=dtype)
    q, cu_seqlens_q, kv_indptr = random(3, 16, LATENT + ROPE).to(dtype), starts([1] * 3), starts(LENGTHS, MOST)
    given, last_page_lens = {}, cu_seqlens_q
    if kind == "fp8":
        meta, indptr, info, *reduce = memory(aiter.get_mla_metadata_info_v1(
            3, 1, 16, dtype, dtype, is_sparse=True, fast_mode=True, intra_batch_mode=False))
        last_page_lens = torch.ones(3, dtype=torch.int32)
        aiter.get_mla_metadata_v1(
            cu_seqlens_q, kv_indptr, last_page_lens, 16, 1, False, meta, info, indptr, *reduce, page_size=1,
            kv_granularity=16, max_seqlen_qo=1, uni_seqlen_qo=1, fast_mode=True, dtype_q=dtype, dtype_kv=dtype)
        given = dict(zip(("work_meta_data", "work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map",
                          "reduce_partial_map"), (meta, indptr, info, *reduce)))
    o = torch.empty(3, 16, LATENT, dtype=BF16)
    aiter.mla_decode_fwd(
        q, pool.caches[0].view(-1, 1, 1, LATENT + ROPE), o, cu_seqlens_q, kv_indptr, pool.slots, last_page_lens, 1,
        sm_scale=0.06, logit_cap=0.0, q_scale=scale, kv_scale=scale, **given)
    assert_close(o, latent(q, pool, [1] * 3, 0.06))
    assert launches()


def test_latent_prefill(launches):
    """forward_extend over the latents, of a whole prompt and of continued ones."""
    counts, pool = [9, 1, 30], Pool((1, LATENT + ROPE))
    q, o = random(40, 16 * (LATENT + ROPE)), torch.full((40, 16 * LATENT), torch.nan, dtype=BF16)
    aiter.mla_prefill_fwd(
        q.view(-1, 16, LATENT + ROPE), pool.caches[0].view(-1, 1, 1, LATENT + ROPE), o.view(-1, 16, LATENT),
        starts(counts), starts(LENGTHS), pool.slots, torch.ones(3, dtype=torch.int32), 30, 0.06, 0.0)
    assert_close(o.view(-1, 16, LATENT), latent(q.view(-1, 16, LATENT + ROPE), pool, counts, 0.06))
    assert any("mla_decode" in name for name in launches())


def test_expanded_prefill_of_fp8(launches):
    """_mla_fp8_prefill_attn_ps: a plan from lengths on the host, keys by head, the sum of the parts."""
    counts, heads = [9, 1, 30], 4
    q, k, v = (random(sum(rows), heads, width).to(FP8) for rows, width in ((counts, 192), (LENGTHS, 192),
                                                                          (LENGTHS, 128)))
    meta, indptr, info, *reduce = memory(aiter.get_ps_metadata_info_v1(
        batch_size=3, num_head_k=heads, max_qlen=30, qlen_granularity=TILE))

    def prepare(need_lse: bool) -> None:
        aiter.get_ps_metadata_v1(
            starts(counts), starts(LENGTHS), torch.tensor(LENGTHS, dtype=torch.int32), 1, heads, meta, indptr, info,
            *reduce, qhead_granularity=1, qlen_granularity=TILE, kvlen_granularity=128, block_size=1, is_causal=True,
            need_lse=need_lse)

    with pytest.raises(UnsupportedError, match="need_lse"):
        prepare(True)  # SGLang wants it on gfx950 alone, and would find no log-sum-exps
    prepare(False)
    rows, one = reduce[2].size(0) * TILE, torch.ones(())
    logits, lse, output = torch.empty(rows, heads, 128), torch.empty(rows, heads), torch.empty(40, heads, 128).to(BF16)
    aiter.mla_prefill_ps_asm_fwd(q, k, v, starts(counts), starts(LENGTHS), torch.arange(sum(LENGTHS)).int(), indptr,
                                 info, 30, 0.07, True, logits, lse, output, one, one, one)
    aiter.mla_reduce_v1(logits, lse, *reduce, TILE, 0, output, None)
    parts = zip(q.double().split(counts), k.double().split(LENGTHS), v.double().split(LENGTHS))
    assert relative_l2(output, torch.cat([attention64(*part, 0.07) for part in parts])) < 2**-6  # of P in 16 bits
    assert launches()


@pytest.mark.parametrize("causal", (True, False))
def test_expanded_prefill_with_its_sums(launches, causal):
    """_forward_extend_skip_prefix and …_prefix_chunk: new tokens alone, and all of a chunk; SGLang merges by the sums,
    [heads, tokens] here, [tokens, heads] there."""
    counts, lengths = [9, 1, 30], [9, 1, 30] if causal else [37, 5, 90]
    q, k, v = (random(sum(rows), 4, width) for rows, width in ((counts, 192), (lengths, 192), (lengths, 128)))
    out, lse = aiter.flash_attn_varlen_func(
        q, k, v, starts(counts), starts(lengths), max(counts), max(lengths), softmax_scale=0.07, causal=causal,
        return_lse=True)[:2]
    parts = list(zip(q.double().split(counts), k.double().split(lengths), v.double().split(lengths)))
    assert_close(out, [attention64(*part, 0.07, causal=causal) for part in parts])
    if not causal:
        sums = torch.cat([torch.einsum("qhd,khd->qhk", rows, keys).mul(0.07).logsumexp(-1) for rows, keys, _ in parts])
        torch.testing.assert_close(lse.transpose(0, 1).double(), sums, rtol=1e-3, atol=1e-3)
    assert launches()
