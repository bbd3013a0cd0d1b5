# SPDX-License-Identifier: MIT
"""AITER's further calls of decoding over pages, by the kernels, beside float64: layouts, scales, ragged lengths."""

import pytest
import torch

import aiter_like as aiter
from aiter_like.enums import QuantType
from aiter_like.integrations.aiter.attention import paged_decode as calls

pytestmark = [pytest.mark.rotating, pytest.mark.usefixtures("simulated"), pytest.mark.sim_check("strict")]

BF16, F16, FP8, I8, I32 = torch.bfloat16, torch.float16, torch.float8_e4m3fnuz, torch.int8, torch.int32
BACKENDS = ("hip", "triton")
DIM = 64


def i32(values):
    return torch.tensor(values, dtype=I32)


def forced(backend, function, *args, **options):
    """Calls with that backend alone, after explain() has said that it serves."""
    with aiter.use_backend(backend):
        found = aiter.explain(function, *args, **options)
        for explanation in found if isinstance(found, list | tuple) else [found]:
            assert explanation.backend == backend, str(explanation)
        return function(*args, **options)


class Problem:
    """Sequences of `keys` keys and `tokens` queries each, on pages in random order; what no sequence has is NaN."""

    def __init__(self, keys, tokens=1, heads=(8, 2), page_size=16, dtype=BF16, kv_dtype=BF16, scales=None):
        generator = torch.Generator().manual_seed(sum(keys) + tokens + page_size)
        self.keys, self.tokens, self.heads, self.page_size = keys, tokens, heads, page_size
        counts = [-(-count // page_size) for count in keys]
        pages = sum(counts) + 2
        order = torch.randperm(pages, generator=generator)[:pages - 2].int()
        self.indices, self.indptr = order, i32([0, *torch.tensor(counts).cumsum(0).tolist()])
        self.table = torch.full((len(keys), max(counts) + 1), 2**30, dtype=I32)
        for index, own in enumerate(order.split(counts)):
            self.table[index, :len(own)] = own
        self.lengths = i32(keys)
        self.starts = i32([tokens * index for index in range(len(keys) + 1)])

        def random(*shape):
            return torch.randn(shape, generator=generator)

        self.q = random(len(keys) * tokens, heads[0], DIM).to(dtype)
        k, v = (random(pages, heads[1], page_size, DIM) for _ in range(2))
        self.scales = [None, None]
        if scales:
            shape = {"tensor": (1, 1, 1), "page": (pages, heads[1], 1), "token": (pages, heads[1], page_size)}[scales]
            self.scales = [torch.rand(shape, generator=generator) * 0.02 + 0.005 for _ in range(2)]
        self.k, self.v = ((x * 40).to(kv_dtype) if kv_dtype == I8 else x.to(kv_dtype) for x in (k, v))
        self.wide = [x.double() * (1 if scale is None else scale[..., None].double())
                     for x, scale in zip((self.k, self.v), self.scales)]
        self._hide()

    def _hide(self):
        """Writes NaN wherever there is no key."""
        if self.k.dtype == I8:
            return
        used = torch.zeros(self.k.shape[0], self.page_size, dtype=torch.bool)
        for own, count in zip(self.own_pages(), self.keys):
            used.view(-1)[(own[:, None] * self.page_size + torch.arange(self.page_size)).flatten()[:count]] = True
        for cache in (self.k, self.v):
            filled = cache.float().masked_fill_(~used[:, None, :, None], torch.nan).to(cache.dtype)
            cache.copy_(filled)

    def own_pages(self):
        return self.indices.long().split(self.indptr.diff().tolist())

    @property
    def packed(self):
        """K in packs of columns; V in columns."""
        return self._keys(), self.v.transpose(2, 3).contiguous()

    @property
    def shuffled(self):
        """K in packs of columns; V in packs of keys."""
        x = 16 // self.v.element_size()
        return self._keys(), self.v.unflatten(2, (-1, x)).transpose(3, 4).contiguous()

    def _keys(self):
        x = 16 // self.k.element_size()
        return self.k.unflatten(3, (-1, x)).transpose(2, 3).contiguous()

    def expected(self, window=0, sink=None, q_scale=None, is_causal=True, slopes=None):
        """Out [rows, heads, DIM] and log-sum-exps [rows, heads], in float64."""
        group, outs, lses = self.heads[0] // self.heads[1], [], []
        q = self.q.double() * (1 if q_scale is None else q_scale.double())
        for own, count, rows in zip(self.own_pages(), self.keys, q.split(self.tokens)):
            k, v = (x[own].transpose(1, 2).flatten(0, 1)[:count].repeat_interleave(group, 1) for x in self.wide)
            scores = torch.einsum("qhd,khd->hqk", rows, k) * DIM**-0.5
            distance = torch.arange(self.tokens)[:, None] + count - self.tokens - torch.arange(count)
            if slopes is not None:
                scores = scores - slopes.double()[:, None, None] * distance.abs()
            visible = (distance >= 0) if is_causal else torch.ones_like(distance, dtype=torch.bool)
            if window:
                visible &= distance < window
            scores = scores.masked_fill(~visible, -torch.inf)
            if sink is not None:
                scores = torch.cat([scores, sink.double()[:, None, None].expand(-1, self.tokens, 1)], 2)
            lses.append(scores.logsumexp(2).t() if scores.shape[2] else torch.full(rows.shape[:2], -torch.inf).double())
            p = scores.softmax(2).nan_to_num(0)[..., :count]
            outs.append(torch.einsum("hqk,khd->qhd", p, v))
        return torch.cat(outs), torch.cat(lses)


def near(found, expected):
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=4e-3)


def gluon(problem, backend, caches, out=None, **options):
    out = torch.full(problem.q.shape, 9, dtype=BF16) if out is None else out
    assert forced(backend, calls.pa_decode_gluon, out, problem.q, *caches, problem.lengths, problem.table, DIM**-0.5,
                  problem.tokens, calls.get_recommended_splits(len(problem.keys), problem.heads[1]), **options) is None
    return out


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("tokens", "page_size", "is_packed"), ((1, 16, True), (3, 64, False), (4, 16, False)))
def test_gluon(backend, tokens, page_size, is_packed):
    """vLLM's and SGLang's call: a window, sinks in bf16, several tokens; lengths 0, 1 and more than a part."""
    problem = Problem((0, 1, 70, 300), tokens, page_size=page_size)
    sink = torch.randn(8, generator=torch.Generator().manual_seed(1)).to(BF16)
    caches = problem.packed if is_packed else problem.shuffled
    for options, expected in (({}, {}), ({"sinks": sink, "sliding_window": 65}, {"sink": sink, "window": 65})):
        near(gluon(problem, backend, caches, **options), problem.expected(**expected)[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kv_dtype", "scales"), ((FP8, "tensor"), (FP8, "token"), (I8, "token")))
def test_gluon_of_bytes(backend, kv_dtype, scales):
    """Pages of 1024 keys in bytes; queries of fp8 have scales of their own."""
    problem = Problem((3, 1100), 2, (16, 1), 1024, FP8 if kv_dtype == FP8 else BF16, kv_dtype, scales)
    q_scale = torch.rand(4, 16, 1) if kv_dtype == FP8 else None
    given = [scale.flatten() if scales == "tensor" else scale[..., None] for scale in problem.scales]
    found = gluon(problem, backend, problem.shuffled, query_scale=q_scale, key_scale=given[0], value_scale=given[1])
    near(found, problem.expected(q_scale=q_scale)[0])


def test_gluon_counts_slopes():
    problem, slopes = Problem((40,)), torch.rand(8)
    near(gluon(problem, "triton", problem.packed, alibi_slopes=slopes), problem.expected(slopes=slopes)[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_gluon_as_engines_call_it(backend):
    """vLLM's sparse layers: a view of K and V in turn, so that V has fewer pages, and no window, which is −1; SGLang's
    graphs: lengths in 64 bits, and rows of a larger batch behind.
    """
    problem = Problem((40, 3, 100), heads=(8, 1))
    k, v = problem.shuffled
    both = torch.stack([k, v.view(k.shape)], 1).flatten(0, 1)  # page 2n: K of n, then its V
    expected, out = problem.expected()[0], torch.empty_like(problem.q)
    forced(backend, calls.pa_decode_gluon, out, problem.q, both, both[1:].view(-1, *v.shape[1:]),
           torch.cat([problem.lengths, i32([9])]).long(), torch.cat([problem.table, problem.table[:1]]) * 2, DIM**-0.5,
           1, 1, sliding_window=-1)
    near(out, expected)


def test_recommended_splits():
    """AITER's answers on 304 CUs."""
    assert [calls.get_recommended_splits(*sizes) for sizes in ((1, 1), (64, 8), (128, 1), (700, 1), (64, 4, 2))] == [
        8, 2, 5, 1, 4]


def persistent(problem, backend, scales=(None, None), **options):
    rows, heads = problem.q.shape[:2]
    q, out = torch.full((2, rows, heads + 3, DIM), 9, dtype=problem.q.dtype)[:, :, :heads]  # rows of q, k and v
    q.copy_(problem.q)
    parts, lse = forced(
        backend, calls.pa_persistent_fwd, q, *problem.shuffled, out, problem.tokens, problem.starts,
        problem.indptr, problem.indices, problem.lengths, None, None, None, None, None, *scales, **options)
    assert parts.shape == (0, 1, *out.shape[1:])
    return out, lse


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("tokens", "page_size"), ((1, 16), (4, 1024)))
def test_persistent(backend, tokens, page_size):
    """Ragged pages, and the log-sum-exps of all rows; without a mask each token of a sequence sees all keys."""
    problem = Problem((5, 0, 1, 33, 1050), tokens, (10, 1), page_size)
    for mask in (0, 1):
        out, lse = persistent(problem, backend, mask=mask)
        expected, expected_lse = problem.expected(is_causal=bool(mask))
        near(out, expected)
        torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dtype", "kv_dtype", "scales"), ((BF16, FP8, "token"), (F16, FP8, "page"), (BF16, I8, "page"),
                                                           (F16, I8, "tensor")))
def test_persistent_of_bytes(backend, dtype, kv_dtype, scales):
    problem = Problem((0, 20, 300), 2, (16, 2), 256, dtype, kv_dtype, scales)
    given = [{"token": scale[..., None], "page": scale[..., 0], "tensor": scale.flatten()}[scales]
             for scale in problem.scales]
    kind = QuantType.per_Token if scales == "token" else QuantType.per_1x128
    near(persistent(problem, backend, given, mask=1, quant_type=kind)[0], problem.expected()[0])


def test_longer_lists():
    """Of a captured graph's largest batch: what lies behind the batch is not read, and numbers may have 64 bits."""
    problem = Problem((17, 40))
    near(forced("triton", calls.pa_persistent_fwd, problem.q, *problem.shuffled, out := torch.empty_like(problem.q), 1,
                i32([0, 1, 2, 77]), torch.cat([problem.indptr, i32([-5])]).long(),
                torch.cat([problem.indices, i32([2**30])]).long(), problem.lengths.long(), None, None, None, None,
                None)[1], problem.expected()[1])
    near(out, problem.expected()[0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mask", (0, 1))
def test_one_after_the_other(backend, mask):
    """The plan, attention with it, and the sum of its partial results, as pa_persistent_fwd does it in AITER."""
    problem = Problem((1, 0, 700, 40, 2000), 2, (6, 2), 16)
    plan = [torch.empty(shape, dtype=dtype) for shape, dtype in aiter.get_pa_metadata_info_v1(5, 2)]
    with aiter.use_backend(backend):
        aiter.get_pa_metadata_v1(problem.starts, problem.indptr, problem.lengths, 3, 2, True, *plan, max_seqlen_qo=2)
    _, work_indptr, work_info, *reduce = plan
    assert reduce[0][-1] > 100  # entries
    parts, lses = torch.full((600, 1, 6, DIM), 7.0), torch.full((600, 1, 6, 1), 100.0)
    out = forced(backend, calls.pa_ps_fwd_asm, problem.q, *problem.shuffled, problem.indptr, problem.indices,
                 problem.lengths, DIM**-0.5, 2, qo_indptr=problem.starts, work_indptr=work_indptr, work_info=work_info,
                 splitData=parts, splitLse=lses, mask=mask)
    expected = problem.expected(is_causal=bool(mask))[0]
    near(out, expected)
    attended = out.clone()
    with aiter.use_backend(backend):
        calls.pa_reduce_v1(parts, lses, *reduce, 2, out)
    near(out, expected)
    torch.testing.assert_close(out, attended, rtol=2**-7, atol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kv_dtype", "algorithm"), ((BF16, 0), (FP8, 1), (I8, 2)))
def test_naive(backend, kv_dtype, algorithm):
    """Scales are [KV heads, slots]; empty ones are none."""
    problem = Problem((1, 0, 90), kv_dtype=kv_dtype, scales="token" if algorithm else None)
    scales = [torch.empty(0) if scale is None else scale.transpose(0, 1).flatten(1) for scale in problem.scales]
    given = torch.empty_like(problem.q)
    for out in (None, given):
        found = forced(backend, calls.pa_fwd_naive, problem.q, *problem.packed, problem.table, problem.lengths, *scales,
                       90, 2, DIM**-0.5, 1.0, 1.0, 16, algorithm, out)
        near(found, problem.expected()[0])
    assert found is given


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mtp", (0, 1))
def test_of_fp8_with_a_plan(backend, mtp):
    """The rows are complete, and so is what a caller adds up of the partial results of a plan."""
    problem = Problem((3, 300, 1100), mtp + 1, (16, 2), 256, FP8, FP8, "tensor")
    sink, q_scale = torch.randn(16), torch.tensor([0.5])
    info = i32([[0, -1, 0, 1 + mtp, 0, 1, 0, 0], [1, 0, 1 + mtp, 2 + 2 * mtp, 1, 2, 0, 0],
                [1, 1 + mtp, 1 + mtp, 2 + 2 * mtp, 2, 3, 0, 0], [2, -1, 2 + 2 * mtp, 3 + 3 * mtp, 3, 8, 0, 0],
                [2, 4, 0, 2, 0, 0, 0, 0]])  # the last one belongs to no part
    split_o, split_lse = torch.zeros(6, 1, 16, DIM), torch.full((6, 1, 16, 1), -torch.inf)
    q = problem.q.view(3, 1 + mtp, 2, 8, DIM)
    arguments = (q, *problem.shuffled, problem.indices, problem.lengths, DIM**-0.5, problem.indptr, 8, mtp, q_scale,
                 *(scale.flatten() for scale in problem.scales), problem.starts, i32([0, 1, 4]), info)
    found = forced(backend, calls.pa_decode_bf16_asm, *arguments, split_o, split_lse, sink)
    expected = problem.expected(sink=sink, q_scale=q_scale)[0]
    assert found.shape == q.shape and found.dtype == BF16
    near(found.view(expected.shape), expected)
    for row in range(1 + mtp):
        places = [row, 1 + mtp + row]
        weights = split_lse[places].softmax(0)
        near((weights * split_o[places]).sum(0)[0], expected[1 + mtp + row])
    assert not split_o[2 + 2 * mtp:].any() and split_lse[2 + 2 * mtp:].isneginf().all()


def test_bad_input():
    """Errors name the argument, and nothing is written."""
    problem = Problem((20, 3), 2)
    out = torch.full(problem.q.shape, 9, dtype=BF16)
    k, v = problem.shuffled
    decode = {"output": out, "query": problem.q, "key_cache": k, "value_cache": v, "context_lengths": problem.lengths,
              "block_tables": problem.table, "softmax_scale": 0.125, "query_length": 2, "max_context_partition_num": 1}
    listed = {"Q": problem.q, "K": k, "V": v, "output": out, "max_qlen": 2, "qo_indptr": problem.starts,
              "kv_indptr": problem.indptr, "kv_indices": problem.indices, "context_lens": problem.lengths,
              **dict.fromkeys(("work_indptr", "work_info", "reduce_indptr", "reduce_final_map", "reduce_partial_map"))}
    naive = {"query": problem.q, "key_cache": k, "value_cache": problem.packed[1], "block_tables": problem.table,
             "context_lens": problem.lengths, "k_dequant_scales": None, "v_dequant_scales": None, "max_seq_len": 20,
             "num_kv_heads": 2, "scale_s": 0.125, "scale_k": 1.0, "scale_v": 1.0, "block_size": 16, "quant_algo": 0,
             "out": out}
    cut = {**{name: listed[name] for name in ("Q", "K", "V", "kv_indptr", "context_lens", "max_qlen")},
           "kv_page_indices": problem.indices, "softmax_scale": 0.125, "out_": out, "work_indptr": i32([0, 1]),
           "work_info": torch.zeros(1, 8, dtype=I32), "splitData": torch.zeros(3, 1, 8, DIM),
           "splitLse": torch.zeros(3, 1, 8, 1)}
    flat = {"Q": problem.q, "K": k, "V": v, "kv_indices": problem.indices, "context_lens": problem.lengths,
            "softmax_scale": 0.125, "kv_indptr": problem.indptr, "gqa": 4, "mtp": 1, "out": out}
    for function, good, changes, kind, message in (
            (calls.pa_decode_gluon, decode, {"query_length": 0}, ValueError, "query_length must"),
            (calls.pa_decode_gluon, decode, {"query_length": 3}, ValueError, "sequences of max_seqlen_q = 3 rows"),
            (calls.pa_decode_gluon, decode, {"sliding_window": 0.5}, TypeError, "sliding_window must"),
            (calls.pa_decode_gluon, decode, {"context_lengths": problem.lengths[:1]}, ValueError, "seqlens_k must"),
            (calls.pa_decode_gluon, decode, {"value_cache": v[:, :1]}, ValueError, "value_cache must"),
            (calls.pa_decode_gluon, decode, {"sinks": torch.ones(3)}, ValueError, "sink must have shape"),
            (calls.pa_decode_gluon, decode, {"sinks": i32([1] * 8)}, TypeError, "sinks must"),
            (calls.pa_decode_gluon, decode, {"query_scale": torch.ones(4, 3, 1)}, ValueError, "q_scale must"),
            (calls.pa_decode_gluon, decode, {"block_tables": problem.table.float()}, TypeError, "block_tables must"),
            (calls.pa_persistent_fwd, listed, {"mask": 2}, ValueError, "mask must"),
            (calls.pa_persistent_fwd, listed, {"V": v[0]}, ValueError, "V must"),
            (calls.pa_persistent_fwd, listed, {"output": out[:3]}, ValueError, "out must have shape"),
            (calls.pa_persistent_fwd, listed, {"kv_indptr": problem.indptr[:2]}, ValueError, "kv_indptr must"),
            (calls.pa_persistent_fwd, listed, {"qo_indptr": problem.starts[:2]}, ValueError, "qo_indptr must"),
            (calls.pa_ps_fwd_asm, cut, {"V": v[0]}, ValueError, "V must"),
            (calls.pa_ps_fwd_asm, cut, {"work_info": cut["work_info"][:, :4]}, ValueError, "work_info must"),
            (calls.pa_ps_fwd_asm, cut, {"work_indptr": i32([0])}, ValueError, "work_indptr must"),
            (calls.pa_ps_fwd_asm, cut, {"splitData": torch.zeros(3, 8, DIM)}, ValueError, "splitData must"),
            (calls.pa_ps_fwd_asm, cut, {"splitLse": torch.zeros(3, 1, 8)}, ValueError, "splitLse must"),
            (calls.pa_fwd_naive, naive, {"block_size": 8}, ValueError, "block_size must"),
            (calls.pa_fwd_naive, naive, {"num_kv_heads": 1}, ValueError, "num_kv_heads must"),
            (calls.pa_fwd_naive, naive, {"context_lens": problem.lengths[:1]}, ValueError, "seqlens_k must"),
            (calls.pa_decode_bf16_asm, flat, {"gqa": 3}, ValueError, "Q must be contiguous, with 2 · 3 heads"),
            (calls.pa_decode_bf16_asm, flat, {"Q": problem.q[..., :0]}, ValueError, "Q must be contiguous"),
            (calls.pa_decode_bf16_asm, flat, {"mtp": -1}, ValueError, "mtp must"),
            (calls.pa_decode_bf16_asm, flat, {"out": out.half()}, TypeError, "out must have dtype")):
        with pytest.raises(kind, match=message):
            function(**{**good, **changes})
    assert (out == 9).all()
    with pytest.raises(ValueError, match="num_sequences must"):
        calls.get_recommended_splits(0, 1)
