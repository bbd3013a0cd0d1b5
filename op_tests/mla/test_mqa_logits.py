# SPDX-License-Identifier: MIT
"""mqa_logits and paged_mqa_logits: each backend against float64, ragged and empty ranges, pages of every size, tables
that name none, NaN where nothing is to be read; bad input.
"""

import math

import benching
import pytest
import torch
from kv_cache_cases import indexer_key_at

import aiter_like
from aiter_like import dtypes
from aiter_like.device import target_of
from aiter_like.errors import UnsupportedError
from aiter_like.testing import assert_within

pytestmark = pytest.mark.rotating

BACKENDS = ("ck", "triton", "torch")
F32, I32 = torch.float32, torch.int32
LEFT = 7.0  # what columns hold that stay as they are
HEADS = ((16, 64), (32, 128), (64, 64), (64, 128))


def random_fp8(device, *shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, fp8_of(device))


def fp8_of(device) -> torch.dtype:
    return dtypes.fp8_of(target_of(device).arch)


def random(device, *shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def expected_of(q, k, scale, weights):
    """The logits of every row and key in float64, and the sums of magnitudes that bound their rounding."""
    q, k, scale, weights = (tensor.cpu().double() for tensor in (q, k, scale, weights))
    products = torch.einsum("rhd,kd->rhk", q, k)
    bounds = torch.einsum("rhd,kd->rhk", q.abs(), k.abs())
    return ((products.relu() * weights[..., None]).sum(1) * scale, (bounds * weights.abs()[..., None]).sum(1) * scale)


def assert_logits(logits, expected, bounds, is_seen, outside) -> None:
    """outside: what columns hold that a row does not see."""
    rough = 2.0**-20 if target_of(logits.device).platform == "hip" else 2.0**-11  # Hopper's sums of fp8 have 14 bits
    logits = logits.cpu().double()
    assert_within("logits", torch.where(is_seen, logits, 0.0), torch.where(is_seen, expected, 0.0),
                  torch.where(is_seen, rough * bounds + 1e-30, 0.0))
    assert torch.equal(torch.where(is_seen, 0.0, logits), torch.where(is_seen, 0.0, outside)), "outside of what is seen"


def check_prompt(run, backend, device, starts, ends, keys, heads=16, dim=64, clean=True, **changed) -> torch.Tensor:
    """Rows that see keys starts[i] … ends[i] − 1; keys that none sees are NaN, and so are their scales."""
    rows = len(starts)
    q, k = random_fp8(device, rows, heads, dim, seed=1), random_fp8(device, keys, dim, seed=2)
    scale, weights = random(device, keys, seed=3).abs() + 0.1, random(device, rows, heads, seed=4)
    column = torch.arange(keys)
    is_seen = (column >= torch.tensor(starts)[:, None]) & (column < torch.tensor(ends)[:, None])
    expected, bounds = expected_of(q, k, scale, weights)
    unused = ~is_seen.any(0)
    k.view(torch.uint8)[unused.to(device)] = 0x80 if fp8_of(device) == torch.float8_e4m3fnuz else 0x7F
    scale[unused.to(device)] = math.nan
    call = {"q": q, "k": k, "k_scale": scale, "weights": weights,
            "starts": torch.tensor(starts, dtype=I32, device=device),
            "ends": torch.tensor(ends, dtype=I32, device=device), "clean_logits": clean,
            "logits": None if clean else torch.full((rows, keys), LEFT, device=device)}
    call |= {name: change(call[name]) for name, change in changed.items()}
    logits = run(backend, aiter_like.mqa_logits, **call)
    assert call["logits"] is None or logits is call["logits"]
    assert_logits(logits, expected, bounds, is_seen,
                  torch.full((rows, keys), -math.inf if clean else LEFT, dtype=torch.float64))
    return logits


@pytest.mark.parametrize("clean", (True, False), ids=("clean", "as it was"))
@pytest.mark.parametrize("heads, dim", HEADS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_prompts(device, run, backend, heads, dim, clean):
    """Causal, of odd lengths; ranges that begin late, are empty, end before they begin or lie outside."""
    check_prompt(run, backend, device, [0] * 11, range(140, 151), 151, heads, dim, clean)
    check_prompt(run, backend, device, [5, 70, 0, 33, -9, 99, 64, 130, -(2**31), 2**31 - 1],
                 [6, 131, 0, 20, 3, 2**31 - 1, 128, 131, 2**31 - 1, 2**31 - 1], 131, heads, dim, clean)


@pytest.mark.parametrize("backend", BACKENDS)
def test_odd_sizes(device, run, backend):
    """Fewest rows and keys; all ranges empty; many keys of one row, whose parts are several workgroups'."""
    for rows, keys in ((1, 1), (1, 16), (2, 113), (3, 65), (17, 64)):
        check_prompt(run, backend, device, [0] * rows, [max(keys - rows + i + 1, 0) for i in range(rows)], keys)
    for clean in (True, False):
        check_prompt(run, backend, device, [3, 0, 9], [3, 0, 2], 70, clean=clean)
        check_prompt(run, backend, device, [100], [2900], 3000, clean=clean)


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides(device, run, backend):
    """Rows apart in every argument."""

    def wider(tensor):
        wide = torch.full((tensor.shape[0], *(size + 3 for size in tensor.shape[1:])), 3.0, device=device)
        wide = wide.to(tensor.dtype)
        view = wide[:, 1:-2] if tensor.ndim == 2 else wide[:, 2:-1, 1:-2]
        view.view(torch.uint8).copy_(tensor.view(torch.uint8)) if tensor.itemsize == 1 else view.copy_(tensor)
        return view

    check_prompt(run, backend, device, [0, 7, 0], [70, 60, 3], 75, q=wider, k=wider, weights=wider)
    check_prompt(run, backend, device, [0, 7, 0], [70, 60, 3], 75, clean=False, logits=wider,
                 k_scale=lambda scale: torch.stack((scale, scale), 1)[:, 0])


@pytest.mark.parametrize("heads, dim, backends", ((128, 128, BACKENDS), (5, 48, ("triton", "torch")),
                                                  (24, 96, ("triton", "torch"))), ids=str)
def test_further_heads(device, run, heads, dim, backends):
    for backend in backends:
        check_prompt(run, backend, device, [0, 3, 50], [40, 70, 66], 70, heads, dim)


def cache_of(device, k, scale, table, lengths, page_size, pages, is_shuffled, width) -> torch.Tensor:
    """Keys and scales of sequences in their pages, byte by byte; NaN everywhere else."""
    kind, dim = fp8_of(device), k.shape[2]
    cache = torch.full((pages, page_size * width), 0x80 if kind == torch.float8_e4m3fnuz else 0x7F, dtype=torch.uint8)
    scales = torch.full((pages, page_size), math.nan)
    places = torch.tensor([[indexer_key_at(offset, d, dim, is_shuffled) for d in range(dim)]
                           for offset in range(page_size)])
    for b, length in enumerate(lengths):
        for key in range(min(length, table.shape[1] * page_size)):
            page, offset = int(table[b, key // page_size]), key % page_size
            if 0 <= page < pages:
                cache[page, places[offset]] = k[b, key].cpu().view(torch.uint8)
                scales[page, offset] = scale[b, key]
    begin = page_size * dim
    cache[:, begin:begin + 4 * page_size] = scales.view(torch.uint8)
    return cache.view(pages, page_size, width).to(device)


def check_paged(run, backend, device, lengths, next_n=1, page_size=16, heads=16, dim=64, is_shuffled=False, clean=True,
                columns=None, bad=(), max_pages=None, as_given=None) -> None:
    """bad: (sequence, column of the table, entry) that names no page. as_given: of (kv_cache), how the call has it."""
    batch, longest = len(lengths), max(*lengths, next_n, 1)
    needed = -(-longest // page_size) if max_pages is None else max_pages
    pages = batch * needed + 3
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(5))[:batch * needed].view(batch, needed).int()
    for b, column, entry in bad:
        table[b, column] = entry
    room = needed * page_size
    q = random_fp8(device, batch, next_n, heads, dim, seed=1)
    k, weights = random_fp8(device, batch, room, dim, seed=2), random(device, batch * next_n, heads, seed=4)
    scale = (random(device, batch, room, seed=3).abs() + 0.1).cpu()
    cache = cache_of(device, k, scale, table, lengths, page_size, pages, is_shuffled, dim + 4)
    columns = longest + 5 if columns is None else columns
    logits = torch.full((batch * next_n, columns + 1), LEFT, device=device)
    run(backend, aiter_like.paged_mqa_logits, q, as_given(cache) if as_given else cache, weights, logits[:, :columns],
        torch.tensor(lengths, dtype=I32, device=device), table.to(device), is_shuffled, clean)
    assert (logits[:, columns] == LEFT).all()
    column = torch.arange(columns)
    entry = table[:, (column // page_size).clamp(max=needed - 1)]
    has_page = (entry >= 0) & (entry < pages) & (column < room)
    for b, length in enumerate(lengths):
        own = slice(b * next_n, (b + 1) * next_n)
        expected, bounds = expected_of(q[b], k[b], scale[b], weights[own])
        spare = max(columns - room, 0)
        expected, bounds = (torch.nn.functional.pad(x, (0, spare))[:, :columns] for x in (expected, bounds))
        is_seen = column < torch.arange(length - next_n + 1, length + 1)[:, None]
        outside = torch.full((next_n, columns), -math.inf, dtype=torch.float64)
        if not clean:
            outside = torch.where(is_seen | (column < length), outside, LEFT)
        assert_logits(logits[own, :columns], expected, bounds, is_seen & has_page[b], outside)


@pytest.mark.parametrize("page_size, is_shuffled", ((1, False), (16, False), (64, False), (16, True), (64, True)),
                         ids=str)
@pytest.mark.parametrize("next_n", (1, 2, 3, 4))
@pytest.mark.parametrize("backend", BACKENDS)
def test_decoding(device, run, backend, next_n, page_size, is_shuffled):
    """Lengths that fill a page or do not, none, and fewer keys than there are tokens."""
    for clean in (True, False):
        check_paged(run, backend, device, [131, 0, 64, 2, 77], next_n, page_size, is_shuffled=is_shuffled, clean=clean)


@pytest.mark.parametrize("heads, dim", HEADS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_heads(device, run, backend, heads, dim):
    check_paged(run, backend, device, [90, 33], 2, 16, heads, dim)
    check_paged(run, backend, device, [90, 33], 1, 64, heads, dim, is_shuffled=True, clean=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes(device, run, backend):
    """More tokens than a tile has; a page of an odd size; a long sequence beside a short one; fewer columns than keys,
    and many more.
    """
    check_paged(run, backend, device, [150, 9, 70], 11, 16)
    check_paged(run, backend, device, [50, 21], 2, 12)
    check_paged(run, backend, device, [2500, 3], 1, 64)
    for clean in (True, False):
        check_paged(run, backend, device, [130, 40], 2, 16, columns=99, clean=clean)
        check_paged(run, backend, device, [130, 40], 2, 16, columns=900, clean=clean)


@pytest.mark.parametrize("backend", BACKENDS)
def test_tables_that_name_no_page(device, run, backend, unseen):
    """Such keys get −inf, and memory outside of the cache is not touched: the bounds checker would tell."""
    bad = ((0, 0, -1), (0, 3, big := 2**31 - 1), (1, 1, -big), (1, 2, 10**6))
    for clean in (True, False):
        check_paged(run, backend, device, [131, 60], 2, 16, bad=bad, clean=clean)
        check_paged(run, backend, device, [131, 60], 1, 16, bad=bad, clean=clean, is_shuffled=True)
        check_paged(run, backend, device, [131, big, -5, -big - 1], 2, 16, max_pages=3, columns=140, clean=clean)


@pytest.mark.parametrize("page_size", (1, 16))
@pytest.mark.parametrize("backend", BACKENDS)
def test_tables_in_a_row(device, run, backend, page_size, unseen):
    """The pages of one sequence behind those of another, some of which are none; starts that are none."""
    counts, next_n, dim, heads = (7, 0, 1, 90 // page_size), 2, 64, 16
    pages, entries = sum(counts) + 2, sum(counts)
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(5))[:entries].int()
    table[[2, entries - 1]] = torch.tensor([-1, 2**31 - 1]).int()
    starts = torch.tensor([0, *counts]).cumsum(0).int()
    k, scale = random_fp8(device, pages, page_size, dim, seed=2), random(device, pages, page_size, seed=3).abs()
    cache = torch.cat((k.view(torch.uint8).flatten(1), scale.view(torch.uint8)), 1).view(pages, page_size, dim + 4)
    q = random_fp8(device, len(counts), next_n, heads, dim, seed=1)
    weights, column = random(device, len(counts) * next_n, heads, seed=4), torch.arange(120)
    for clean in (True, False):
        logits = torch.full((len(counts) * next_n, 120), LEFT, device=device)
        run(backend, aiter_like.paged_mqa_logits, q, cache, weights, logits, None, table.to(device),
            clean_logits=clean, page_starts=starts.to(device))
        for b, count in enumerate(counts):
            own, length = slice(b * next_n, (b + 1) * next_n), count * page_size
            listed = table[starts[b]:starts[b + 1]].long()
            has_page = ((listed >= 0) & (listed < pages)).repeat_interleave(page_size)
            found = listed.clamp(0, pages - 1)
            values = expected_of(q[b], k[found].flatten(0, 1), scale[found].flatten(), weights[own])
            expected, bounds = (torch.nn.functional.pad(value, (0, 120 - length)) for value in values)
            is_seen = column < torch.arange(length - next_n + 1, length + 1)[:, None]
            outside = torch.full((next_n, 120), -math.inf, dtype=torch.float64)
            outside = outside if clean else torch.where(column < length, outside, LEFT)
            is_there = is_seen & torch.nn.functional.pad(has_page, (0, 120 - length))
            assert_logits(logits[own], expected, bounds, is_there, outside)
    for value in (-1, -(2**31), 2**31 - 1, 10**6):  # the bounds checker would tell
        wrong = starts.clone()
        wrong[1::2] = value
        run(backend, aiter_like.paged_mqa_logits, q, cache, weights, logits, None, table.to(device),
            page_starts=wrong.to(device))


@pytest.mark.parametrize("backend", BACKENDS)
def test_caches(device, run, backend):
    """AITER's dimension of 1; fp8 or bytes; pages apart; rows wider than a key and its scale; from an odd byte on."""
    def apart(cache):
        wide = torch.zeros(len(cache), 2, *cache.shape[1:], dtype=torch.uint8, device=device)
        wide[:, 0] = cache
        return wide[:, 0]

    def wider(cache):
        wide = torch.zeros(*cache.shape[:2], cache.shape[2] + 12, dtype=torch.uint8, device=device)
        wide.view(len(cache), -1)[:, :cache[0].numel()] = cache.reshape(len(cache), -1)
        return wide

    for as_given in (lambda cache: cache.unsqueeze(2), lambda cache: cache.view(fp8_of(device)), apart, wider,
                     lambda cache: torch.cat((cache.new_zeros(3), cache.flatten()))[3:].view(cache.shape)):
        check_paged(run, backend, device, [70, 33], 2, 16, as_given=as_given)


@pytest.mark.parametrize("backend", BACKENDS)
def test_products_that_are_nan(device, run, backend):
    """They count as 0; a scale that is NaN makes its key's logits NaN, and a weight its row's."""
    nan = 0x80 if fp8_of(device) == torch.float8_e4m3fnuz else 0x7F
    q, k = random_fp8(device, 3, 16, 64, seed=1), random_fp8(device, 40, 64, seed=2)
    scale, weights = random(device, 40, seed=3).abs(), random(device, 3, 16, seed=4)
    ends = torch.full((3,), 40, dtype=I32, device=device)
    plain = run(backend, aiter_like.mqa_logits, q, k, scale, weights, ends * 0, ends)
    k.view(torch.uint8)[5, 3] = nan
    scale[7] = weights[2, 4] = math.nan
    logits = run(backend, aiter_like.mqa_logits, q, k, scale, weights, ends * 0, ends)
    assert (logits[:2, 5] == 0).all() and logits[:, 7].isnan().all() and logits[2].isnan().all()
    others = [j for j in range(40) if j not in (5, 7)]
    assert torch.equal(logits[:2, others], plain[:2, others])


@pytest.mark.parametrize("backend", BACKENDS)
def test_from_the_operator_that_writes_the_cache(device, run, backend):
    """Keys that indexer_k_quant_and_cache has quantised, in both orders."""
    k = random(device, 70, 128, seed=1).to(torch.bfloat16)
    q, weights = random_fp8(device, 1, 2, 32, 128, seed=2), random(device, 2, 32, seed=3)
    table = torch.tensor([[3, 0, 4, 1, 2]], dtype=I32, device=device)
    slots = table[0].long().repeat_interleave(16)[:70] * 16 + torch.arange(70, device=device) % 16
    lengths, results = torch.tensor([70], dtype=I32, device=device), []
    for preshuffle in (False, True):
        cache = torch.zeros(5, 16, 132, dtype=fp8_of(device), device=device)
        aiter_like.indexer_k_quant_and_cache(k, cache, slots, 128, "ue8m0", preshuffle)
        results.append(torch.zeros(2, 70, device=device))
        run(backend, aiter_like.paged_mqa_logits, q, cache, weights, results[-1], lengths, table, preshuffle)
    assert torch.equal(*results)
    exact = (torch.einsum("rhd,kd->rhk", q[0].double().cpu(), k.double().cpu()).relu()
             * weights.double().cpu()[..., None]).sum(1)
    seen = results[0][1].cpu().double()
    assert (seen - exact[1]).norm() < 0.05 * exact[1].norm() and results[0][0, 69] == -math.inf


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty(device, run, backend):
    q, k = random_fp8(device, 3, 16, 64, seed=1), random_fp8(device, 40, 64, seed=2)
    scale, weights = torch.ones(40, device=device), torch.ones(3, 16, device=device)
    ends = torch.full((3,), 9, dtype=I32, device=device)
    assert run(backend, aiter_like.mqa_logits, q, k, scale, weights, ends * 0, ends).shape == (3, 40)
    for rows, keys in ((0, 40), (3, 0), (0, 0)):
        call = q[:rows], k[:keys], scale[:keys], weights[:rows], ends[:rows] * 0, ends[:rows]
        assert aiter_like.mqa_logits(*call, backend=backend).shape == (rows, keys)
    cache, table = torch.zeros(4, 16, 68, dtype=torch.uint8, device=device), torch.zeros(3, 2, dtype=I32, device=device)
    for pages, columns in ((cache[:0], table), (cache, table[:, :0])):
        logits = torch.full((3, 20), LEFT, device=device)
        aiter_like.paged_mqa_logits(q[:, None], pages, weights, logits, ends, columns, backend=backend)
        assert (logits == -math.inf).all()
        logits.fill_(LEFT)
        aiter_like.paged_mqa_logits(q[:, None], pages, weights, logits, ends, columns, False, False, backend=backend)
        assert (logits[:, :9] == -math.inf).all() and (logits[:, 9:] == LEFT).all()
    aiter_like.paged_mqa_logits(q[:0, None], cache, weights[:0], logits[:0], ends[:0], table[:0], backend=backend)


def test_bad_input_is_named(device):
    q, k = random_fp8(device, 3, 16, 64, seed=1), random_fp8(device, 40, 64, seed=2)
    scale, weights = torch.ones(40, device=device), torch.ones(3, 16, device=device)
    ends = torch.full((3,), 9, dtype=I32, device=device)
    for message, kind, place, value in (
            ("q must have 3 dimensions", ValueError, 0, q[0]), ("q must have dtype", TypeError, 0, q.float()),
            ("k must have dtype", TypeError, 1, k.view(torch.uint8)), ("k must have 2 dimensions", ValueError, 1, q),
            (r"k must have shape \(\*, 64\)", ValueError, 1, k[:, :48]),
            (r"k_scale must have shape \(40,\)", ValueError, 2, scale[:39])):
        args = [q, k, scale, weights, ends, ends, True]
        args[place] = value
        with pytest.raises(kind, match=f"mqa_logits: {message}"):
            aiter_like.mqa_logits(*args)
    with pytest.raises(ValueError, match=r"mqa_logits: logits must have shape \(3, 40\)"):
        aiter_like.mqa_logits(q, k, scale, weights, ends, ends, logits=torch.zeros(3, 41, device=device))
    with pytest.raises(UnsupportedError, match="heads in multiples of 16|an MFMA kernel for gfx942"):
        aiter_like.mqa_logits(q[:, :12], k, scale, weights[:, :12], ends, ends, backend="ck")


def test_bad_pages_are_named(device):
    q, cache = random_fp8(device, 2, 2, 16, 64, seed=1), torch.zeros(4, 16, 68, dtype=torch.uint8, device=device)
    weights, logits = torch.ones(4, 16, device=device), torch.full((4, 30), LEFT, device=device)
    table, lengths = torch.zeros(2, 2, dtype=I32, device=device), torch.ones(2, dtype=I32, device=device)
    for message, kind, place, value in (
            ("paged_mqa_logits: q must have 4 dimensions", ValueError, 0, q[0]),
            ("paged_mqa_logits: kv_cache must have at least 68 bytes", ValueError, 1, cache[:, :, :64]),
            ("paged_mqa_logits: kv_cache must have 3 dimensions", ValueError, 1, cache[None]),
            ("paged_mqa_logits: kv_cache must be contiguous within a block", ValueError, 1, cache[:, ::2]),
            ("mqa_logits: context_lens must have shape", ValueError, 4, lengths[:1]),
            (r"paged_mqa_logits: block_table must have shape \(2, \*\)", ValueError, 5, table[:1]),
            ("paged_mqa_logits: preshuffle must be True or False", TypeError, 6, 1),
            ("mqa_logits: clean_logits must be True or False", TypeError, 7, None)):
        args = [q, cache, weights, logits, lengths, table, False, True]
        args[place] = value
        with pytest.raises(kind, match=message):
            aiter_like.paged_mqa_logits(*args)
    with pytest.raises(ValueError, match="preshuffle needs a page size"):
        aiter_like.paged_mqa_logits(q, torch.zeros(4, 12, 68, dtype=torch.uint8, device=device), weights, logits,
                                    lengths, table, True)
    with pytest.raises(ValueError, match=r"block_table with context_lens or page_starts, got \['block_table'\]"):
        aiter_like.paged_mqa_logits(q, cache, weights, logits, None, table)
    with pytest.raises(ValueError, match=r"paged_mqa_logits: page_starts must have shape \(3,\)"):
        aiter_like.paged_mqa_logits(q, cache, weights, logits, None, table[0], page_starts=lengths)
    assert (logits == LEFT).all()


def bench() -> None:
    """Prompts and decoding with the heads of DeepSeek-V3.2."""
    benching.of("mqa_logits", "rows seqlen_q columns page_size", (
        (4096, 4096, 4096, 0), (1024, 1024, 16384, 0), (64, 1, 4096, 64), (128, 2, 4096, 64), (16, 1, 65536, 64)),
        beside=benching.alone, num_heads=64, head_dim=128, layout="rows", dtype="fp8")
