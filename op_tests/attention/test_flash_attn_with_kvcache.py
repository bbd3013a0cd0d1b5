# SPDX-License-Identifier: MIT
"""flash_attn_with_kvcache: contiguous caches, pages, indices, padding on the left, packed queries; keys appended and
rotated; wrong calls.
"""

import functools
import itertools
import math

import attention_cases as cases
import pytest
import torch
from attention_cases import BF16, dense
from covering import covering

import aiter_like
from aiter_like.errors import UnsupportedError
from aiter_like.testing.attention import check_attention

pytestmark = pytest.mark.rotating

BACKENDS = ("triton", "torch")
WITH_CACHE = aiter_like.flash_attn_with_kvcache


@pytest.mark.parametrize("seqlen_q", (1, 5))
@pytest.mark.parametrize("backend", ("hip", *BACKENDS))
def test_cache_with_lengths(device, run, backend, seqlen_q):
    """Lengths on the device, with NaN stored behind them; one number for all; all of the cache."""
    q, k, v = dense(device, 3, seqlen_q, 150, 4, 2, 64, BF16)
    lengths = torch.tensor((150, 7, 64), dtype=torch.int32, device=device)
    for index, length in enumerate(lengths.tolist()):
        k[index, length:], v[index, length:] = math.nan, math.nan
    call = functools.partial(run, backend, WITH_CACHE, q, k, v, return_softmax_lse=True)
    for options in ({}, {"window_size": (20, 0), **({} if backend == "hip" else {"softcap": 3.0})}):
        out, lse = call(cache_seqlens=lengths, **options)
        check_attention(out, lse, q, k, v, seqlens_k=lengths, **{"causal": True, **options})
    out, lse = call(cache_seqlens=7)
    check_attention(out, lse, q, k[:, :7], v[:, :7], causal=True)
    k, v = k.nan_to_num(), v.nan_to_num()
    out, lse = run(backend, WITH_CACHE, q, k, v, return_softmax_lse=True)
    check_attention(out, lse, q, k, v, causal=True)


def indices(device, *values):
    return torch.tensor(values, dtype=torch.int32, device=device)


class Stored:
    """The same sequences of keys as `kind` stores them, everything else NaN.

    Attributes:
        caches: k_cache, v_cache.
        options: of the call.
        places: for each sequence the cache's rows that belong to it, in order, as far as there is room.
    """

    def __init__(self, device, kind, keys, values, lengths, room=48, page_size=16):
        batch, pads = len(lengths), [5, 0, 11] if "leftpad" in kind else [0] * len(lengths)
        if "pages" in kind:
            shape, per = (20, page_size), room // page_size
            table = torch.randperm(20, generator=torch.Generator().manual_seed(1))[:batch * per].view(batch, per)
        else:
            shape, order = (5, room), [3, 0, 4] if "indices" in kind else range(batch)
            table = torch.tensor(order)[:, None]
        size = shape[1]
        rows = (table[..., None] * size + torch.arange(size)).flatten(1)
        self.places = [rows[index, pad:].to(device) for index, pad in enumerate(pads)]
        self.caches = [torch.full((*shape, *tensor.shape[-2:]), math.nan, dtype=tensor.dtype, device=device)
                       for tensor in (keys, values)]
        if kind in ("leftpad", "packed queries"):
            self.caches = [cache[:batch] for cache in self.caches]
        self.put(keys, values, lengths)
        self.options = {"cache_seqlens": indices(device, *(length + pad for length, pad in zip(lengths, pads)))}
        if "leftpad" in kind:
            self.options["cache_leftpad"] = indices(device, *pads)
        if "pages" in kind:
            self.options["page_table"] = table.to(device, torch.int32)
        elif "indices" in kind:
            self.options["cache_batch_idx"] = indices(device, *order)

    def put(self, keys, values, lengths, behind=(0, 0, 0)):
        """The sequences' next keys, of packed tensors; those without room are left out."""
        ends = list(itertools.accumulate(lengths, initial=0))
        for index, (begin, end) in enumerate(itertools.pairwise(ends)):
            at = self.places[index][behind[index]:][:end - begin]
            for cache, new in zip(self.caches, (keys, values)):
                cache.flatten(0, 1)[at] = new[begin:begin + len(at)]

    def read(self, lengths):
        """Packed keys and values."""
        return [torch.cat([cache.flatten(0, 1)[at[:length]] for at, length in zip(self.places, lengths)])
                for cache in self.caches]


KINDS = ("pages", "indices", "leftpad", "indices, leftpad", "pages, leftpad", "packed queries")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_where_keys_are(device, run, backend, kind):
    lengths, queries = (37, 48, 20), (4, 1, 0) if "packed" in kind else (2, 2, 2)
    q, k, v, starts_q, starts_k, longest, _ = cases.packed(device, queries, lengths, 4, 2, 64, BF16)
    stored = Stored(device, kind, k, v, lengths)
    if "packed" in kind:
        given = {"cu_seqlens_q": starts_q, "max_seqlen_q": longest}
    else:
        q, given = q.unflatten(0, (3, 2)), {}
    for options in ({}, {"causal": False, "softcap": 3.0, "window_size": (9, 4)}):
        out, lse = run(backend, WITH_CACHE, q, *stored.caches, return_softmax_lse=True, **stored.options, **given,
                       **options)
        if not given:
            assert out.shape == q.shape and lse.shape == (3, 4, 2)
            out, lse = out.flatten(0, 1), lse.transpose(0, 1).flatten(1)
        check_attention(out, lse, q.view(-1, 4, 64), k, v, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k,
                        **{"causal": True, **options})


ROTATIONS = ("none", "pairs", "halves", "at the first")


@pytest.mark.parametrize("kind", ("contiguous", *KINDS))
@pytest.mark.parametrize("rotation", ROTATIONS)
def test_new_keys_go_behind_those_of_the_cache(device, kind, rotation):
    """… rotated at the positions where they go, as are the queries; a key for which there is no room is left out."""
    check_new_keys(device, kind, rotation, (4, 2), 64, BF16, (0, 17, 35))


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(4))
def test_grid_of_new_keys(device, seed, part):
    """A covering design, new in each run (--seed repeats one): each value with each of every other factor."""
    rows = covering({"kind": ("contiguous", *KINDS), "rotation": ROTATIONS, "heads": ((4, 2), (3, 3), (8, 1)),
                     "head_dim": (64, 80, 128, 256), "dtype": cases.DTYPES, "page_size": (16, 8, 24),
                     "lengths": ((0, 17, 35), (36, 1, 2), (30, 34, 33))}, seed)
    for row in rows[part::4]:
        check_new_keys(device, **row)


def check_new_keys(device, kind, rotation, heads, head_dim, dtype, lengths, page_size=16):
    added = (3, 1, 2) if "packed" in kind else (2, 2, 2)
    q, k, v, starts_new, _, longest, _ = cases.packed(device, added, lengths, *heads, head_dim, dtype)
    _, new_k, new_v, *_ = cases.packed(device, added, added, *heads, head_dim, dtype, seed=5)
    stored = Stored(device, kind, k, v, lengths, 48 if "pages" in kind or "leftpad" in kind else 36, page_size)
    if kind == "contiguous":
        stored.caches = [cache[:3].contiguous() for cache in stored.caches]
    options, turned = dict(stored.options), (q, new_k)
    if rotation != "none":
        options.update(rotary_interleaved=rotation == "pairs", causal=rotation != "at the first")
        cos, sin = exact_rotations(device)
        options.update(rotary_cos=cos, rotary_sin=sin)
        first = stored.options["cache_seqlens"].tolist()
        if kind == "pages":
            options["rotary_seqlens"], first = indices(device, 9, 1, 4), [9, 1, 4]
        places = [[begin + i for i in range(count)] for begin, count in zip(first, added)]
        at_first = [[begin] * count for begin, count in zip(first, added)]
        turned = [turn(x, sum(positions, []), cos, sin, options["rotary_interleaved"])
                  for x, positions in ((q, at_first if rotation == "at the first" else places), (new_k, places))]
    given_q, given_k, given_v = (x if "packed" in kind else x.unflatten(0, (3, 2)) for x in (q, new_k, new_v))
    if "packed" in kind:
        options.update(cu_seqlens_q=starts_new, cu_seqlens_k_new=starts_new, max_seqlen_q=longest)
    copies = [cache.clone() for cache in stored.caches]
    out, lse = WITH_CACHE(given_q, *copies, given_k, given_v, **options, return_softmax_lse=True, backend="triton")
    stored.put(turned[1], new_v, added, lengths)
    for got, want in zip(copies, stored.caches):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    if "packed" not in kind:
        out, lse = out.flatten(0, 1), lse.transpose(0, 1).flatten(1)
    grown = [min(length + count, len(at)) for length, count, at in zip(lengths, added, stored.places)]
    starts_k = indices(device, *itertools.accumulate(grown, initial=0))
    check_attention(out, lse, turned[0], *stored.read(grown), causal=options.get("causal", True),
                    cu_seqlens_q=starts_new, cu_seqlens_k=starts_k)


def exact_rotations(device):
    """Tables [64, 16] of turns by right angles and powers of two, without rounding; no two rows are alike."""
    generator = torch.Generator().manual_seed(0)
    size = 2.0 ** torch.randint(-1, 2, (64, 16), generator=generator)
    is_sine = torch.randint(0, 2, (64, 16), generator=generator).bool()
    return [torch.where(which, size, 0.0).to(device) for which in (~is_sine, is_sine)]


def turn(x, positions, cos, sin, is_interleaved):
    """The first 32 elements of each head of x [rows, heads, dim], rotated at `positions`."""
    cos, sin = cos[positions][:, None], sin[positions][:, None]
    part = x[..., :32].float()
    first, second = (part[..., 0::2], part[..., 1::2]) if is_interleaved else part.chunk(2, -1)
    pair = first * cos - second * sin, second * cos + first * sin
    found = torch.stack(pair, -1).flatten(-2) if is_interleaved else torch.cat(pair, -1)
    return torch.cat((found.to(x.dtype), x[..., 32:]), -1)


def test_one_number_of_keys_for_all(device):
    q, k_cache, v_cache = dense(device, 3, 2, 40, 4, 2, 64, BF16)
    _, k, v = dense(device, 3, 1, 2, 2, 2, 64, BF16, seed=5)
    lowest = WITH_CACHE(q, k_cache, v_cache, k, v, cache_seqlens=20, backend="triton")
    assert torch.equal(k_cache[:, 20:22], k) and torch.equal(v_cache[:, 20:22], v)
    check_attention(lowest, None, q, k_cache[:, :22], v_cache[:, :22], causal=True)
    order = indices(device, 2, 0)
    out = WITH_CACHE(q[:2], k_cache, v_cache, cache_seqlens=22, cache_batch_idx=order, backend="triton")
    check_attention(out, None, q[:2], k_cache[order, :22], v_cache[order, :22], causal=True)


def test_whatever_lengths_and_pages_hold(device, unseen):
    """Nothing outside the tensors is read or written: the checker of bounds would tell, and rows beside the caches."""
    q, k, v = dense(device, 2, 2, 2, 4, 2, 64, BF16)
    storage = torch.full((2, 7, 16, 2, 64), 3.0, dtype=BF16, device=device)
    caches, big = (storage[0, 1:-1], storage[1, 1:-1]), 2**31 - 1
    cos, sin = exact_rotations(device)
    for lengths, pages in (((0, 5), (big, -big)), ((-big, big), (4, -1)), ((big, 16), (5, 0)), ((3, 1), (-1, 10**6))):
        for table in ({"page_table": indices(device, *pages)[:, None].expand(2, 2).contiguous()},
                      {"cache_batch_idx": indices(device, *pages)}):
            WITH_CACHE(q, *caches, k, v, cache_seqlens=indices(device, *lengths), rotary_cos=cos, rotary_sin=sin,
                       backend="triton", **table)
            WITH_CACHE(q, *caches, cache_seqlens=indices(device, *lengths), cache_leftpad=indices(device, *pages),
                       backend="triton", **table)
    assert (storage[:, [0, -1]] == 3).all()


@pytest.mark.parametrize("kind", ("rows", "pages", "indices"))
def test_lengths_that_nobody_sees_are_clamped(device, unseen, kind):
    """… at the ends of int32 too, from which padding is subtracted and to which new keys are added."""
    q, k_cache, v_cache = dense(device, 2, 1, 32, 4, 2, 64, BF16)
    _, k, v = dense(device, 2, 1, 2, 2, 2, 64, BF16, seed=5)
    named = {"rows": {}, "indices": {"cache_batch_idx": indices(device, 1, 0)},
             "pages": {"page_table": indices(device, [3, 0], [2, 1])}}[kind]
    if kind == "pages":
        k_cache, v_cache = (cache.view(4, 16, *cache.shape[2:]) for cache in (k_cache, v_cache))
    starts = {"cu_seqlens_q": indices(device, 0, 1, 2), "max_seqlen_q": 1}

    def call(length, pad, new):
        caches, options = (k_cache.clone(), v_cache.clone()), dict(named, cache_seqlens=indices(device, 9, length))
        rows = q
        if pad is not None:
            options["cache_leftpad"] = indices(device, 0, pad)
        if new == "dense":
            options.update(k=k, v=v)
        elif new is not None:
            rows = q[:, 0]
            options.update(k=k.flatten(0, 1), v=v.flatten(0, 1), cu_seqlens_k_new=indices(device, 0, 2, new), **starts)
        return WITH_CACHE(rows, *caches, **options, backend="triton").flatten(), *(each.flatten() for each in caches)

    end, most = -2**31, 2**31 - 1
    for pad, new in ((None, None), (3, None), (None, "dense"), (3, "dense"), (3, 4)):
        for length, clamped in ((end, 0), (-1, 0), (most, 32), (33, 32)):
            assert all(map(torch.equal, call(length, pad, new), call(clamped, pad, new))), (pad, new, length)
    for pad, clamped in ((end, 0), (-1, 0), (most, 32)):
        assert all(map(torch.equal, call(20, pad, None), call(20, clamped, None)))
    for new, clamped in ((end, 2), (most, 4)):
        assert torch.equal(call(20, 3, new)[0][256:], call(20, 3, clamped)[0][256:])


def test_nothing_is_written_where_the_attention_is_refused(device):
    """Keys go into the cache, contiguous or paged, before the attention: by then everything has been checked."""
    q, k, v = dense(device, 2, 1, 40, 4, 2, 64, BF16)
    named = {"k": k[:, :1] + 1, "v": v[:, :1] + 1, "cache_seqlens": 3}
    pages = {"page_table": indices(device, 1, 0)[:, None]}
    for options, kind in (({"softcap": -1.0}, ValueError), ({"softcap": "no"}, TypeError),
                          ({"softmax_scale": 0.0}, ValueError), ({"softmax_scale": float("nan")}, ValueError),
                          ({"window_size": (-2, 0)}, ValueError), ({"window_size": "no"}, TypeError),
                          ({"num_splits": -1}, ValueError), ({"out": q[:1]}, ValueError),
                          ({"out": q.float()}, TypeError), ({"k_descale": k}, (TypeError, ValueError)),
                          ({"backend": "asm"}, (ValueError, UnsupportedError)), ({"causal": 1}, TypeError),
                          ({"softmax_scale": 1e30, "backend": "hip"}, UnsupportedError)):
        for table in ({}, pages):
            caches = k.clone(), v.clone()
            with pytest.raises(kind):
                WITH_CACHE(q, *caches, **named, **table, **options)
            assert torch.equal(caches[0], k) and torch.equal(caches[1], v)
    caches = k.clone(), v.clone()
    WITH_CACHE(q, *caches, **named)
    assert not torch.equal(caches[0], k) and not torch.equal(caches[1], v)


def test_wrong_calls(device):
    q, k, v = dense(device, 2, 1, 40, 4, 2, 64, BF16)
    two, three = indices(device, 0, 1), indices(device, 0, 1, 2)
    new = {"k": k[:, :1], "v": v[:, :1]}
    for options, kind, message in (
            ({"attention_chunk": 3}, UnsupportedError, "window"), ({"qv": q}, UnsupportedError, "latent"),
            ({"cache_seqlens": 41}, ValueError, "between 0 and 40"),
            ({"cache_seqlens": three}, ValueError, "must have shape"),
            ({"cache_seqlens": two.float()}, TypeError, "must have dtype torch.int32"),
            ({"k": k[:, :1]}, TypeError, "v must be a tensor"),
            ({"k": k[:, :1, :1], "v": v[:, :1]}, ValueError, "k must have shape"),
            ({"k": k[:, :5], "v": v[:, :5], "cache_seqlens": 36}, ValueError, "together must be between 0 and 40"),
            ({"return_softmax_lse": 1}, TypeError, "True or False"),
            ({"page_table": q}, TypeError, "page_table must have dtype"),
            ({"page_table": two}, ValueError, "page_table must have shape"),
            ({"page_table": two[:, None][:, :0]}, ValueError, "page_table must have a page"),
            ({"page_table": two[:, None], "cache_batch_idx": two}, ValueError, "cache_batch_idx must be None"),
            ({"cache_batch_idx": three}, ValueError, "cache_batch_idx must have shape"),
            ({"cache_leftpad": three}, ValueError, "cache_leftpad must have shape"),
            ({"cu_seqlens_q": three}, ValueError, "q must have 3 dimensions"),
            ({"cu_seqlens_k_new": three}, TypeError, "k must be a tensor"),
            ({"rotary_cos": torch.ones(64, 32, device=device)}, TypeError, "rotary_sin must be a tensor"),
            ({"rotary_seqlens": two}, TypeError, "rotary_cos must be a tensor"),
            ({"rotary_cos": torch.ones(64, 32, device=device), "rotary_sin": torch.ones(64, 32, device=device)},
             ValueError, "k must be given"),
            ({"rotary_cos": torch.ones(64, 33, device=device), "rotary_sin": torch.ones(64, 33, device=device),
              "cache_seqlens": 3, **new}, ValueError, "at most 64, got 66")):
        with pytest.raises(kind, match=message):
            WITH_CACHE(q, k, v, **options)
    apart = torch.empty(2, 2, 40, 64, dtype=BF16, device=device).transpose(1, 2)
    with pytest.raises(UnsupportedError, match="cache_leftpad with caches"):
        WITH_CACHE(q, apart, apart, cache_leftpad=two)
    with pytest.raises(ValueError, match="out must have its sequences one behind the other"):
        WITH_CACHE(q, k, v, cache_batch_idx=two, out=torch.empty(2, 2, 4, 64, dtype=BF16, device=device)[:, :1])
    with pytest.raises(ValueError, match="cu_seqlens_q must start at 0" if device.type == "cpu" else "max_seqlen_q"):
        WITH_CACHE(q[0], k, v, cu_seqlens_q=indices(device, 0, 2, 1), max_seqlen_q=1 if device.type == "cpu" else -1)


@pytest.mark.parametrize("backend", ("hip", "ck", *BACKENDS))
def test_rows_of_no_sequence(device, run, backend):
    """They stay as they were, and those of a sequence without keys are 0; an empty batch writes nothing."""
    q, k, v = dense(device, 5, 1, 16, 4, 2, 64, BF16)
    q, out = q[:, 0], torch.full((5, 4, 64), 7.0, dtype=BF16, device=device)
    call = functools.partial(run, backend, WITH_CACHE, q, k, v, max_seqlen_q=2, out=out, return_softmax_lse=True)
    table = indices(device, 3, 0, -1)[:, None]
    _, lse = call(cu_seqlens_q=indices(device, 0, 2, 2, 3), cache_seqlens=indices(device, 9, 16, 0), page_table=table)
    check_attention(out[None, :2], lse[None, :, :2], q[None, :2], k[3:4, :9], v[3:4, :9], causal=True)
    assert (out[2] == 0).all() and (lse[:, 2] == -math.inf).all() and (out[3:] == 7).all()
    out.fill_(7.0)
    call(cu_seqlens_q=indices(device, 0, 0), cache_seqlens=indices(device, 9), page_table=table[:1])
    assert (out == 7).all()


def test_positions_outside_of_the_tables(device, unseen):
    """Rows whose positions nobody sees become NaN; one number is looked at everywhere, a row of no sequence not."""
    q, k, v = dense(device, 3, 1, 40, 4, 2, 64, BF16)
    cos, sin = exact_rotations(device)
    rotary = {"rotary_cos": cos[:10], "rotary_sin": sin[:10], "backend": "triton"}
    for number, is_wrong in ((-1, True), (0, False), (9, False), (10, True)):
        out = WITH_CACHE(q, k.clone(), v.clone(), k[:, :1], v[:, :1], cache_seqlens=7, **rotary,
                         rotary_seqlens=indices(device, 0, number, 9))
        assert out.isnan().flatten(1).any(1).tolist() == [False, is_wrong, False]
    with pytest.raises(ValueError, match="cache_seqlens of the last row must be between 0 and 9, got 10"):
        WITH_CACHE(q, k, v, k[:, :1], v[:, :1], cache_seqlens=10, **rotary)
    packed = {"cu_seqlens_q": indices(device, 0, 1, 2), "cu_seqlens_k_new": indices(device, 0, 1, 2), "max_seqlen_q": 1}
    out = WITH_CACHE(q[:, 0], k.clone(), v.clone(), k[:, 0], v[:, 0], cache_seqlens=indices(device, 9, 0), **packed,
                     cache_batch_idx=indices(device, 2, 1), **rotary)
    assert out[:2].isfinite().all()
