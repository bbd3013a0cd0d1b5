# SPDX-License-Identifier: MIT
"""topk: values and columns against a stable sort, on every backend; the forms with a start and an end of each row."""

import functools
import math

import pytest
import torch
from sampling_cases import BACKENDS, DTYPES, logits_like

import aiter_like
from aiter_like.errors import UnsupportedError

I32 = torch.int32


def sorted_columns(row, k, largest=True):
    """The columns of the k largest elements of a list of numbers, the lowest first of equal ones; NaNs come last, and
    -0 is less than 0.
    """
    sign = -1 if largest else 1

    def order(c):
        is_nan = row[c] != row[c]
        return is_nan, 0 if is_nan else sign * row[c], 0 if is_nan else sign * math.copysign(row[c] == 0, row[c]), c

    return sorted(range(len(row)), key=order)[:k]


@pytest.mark.parametrize("columns, k, largest", ((1, 1, True), (7, 7, False), (1000, 3, True), (5001, 300, True),
                                                 (20001, 5, False), (20001, 600, True), (6000, 4096, True)))
@pytest.mark.parametrize("backend", BACKENDS)
def test_against_a_sort(device, run, backend, columns, k, largest):
    x = logits_like(device, 2, columns, stride=columns + 1)
    values, indices = run(backend, aiter_like.topk, x, k, largest=largest)
    for row, value, index in zip(x.tolist(), values, indices):
        wanted = sorted_columns(row, k, largest)
        assert index.tolist() == wanted and torch.equal(value.cpu(), torch.tensor(row)[wanted])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", (4999, 20001))
@pytest.mark.parametrize("backend", BACKENDS)
def test_ties(device, run, backend, dtype, columns):
    """A few distinct values, so that the columns decide; a row of equal ones; NaN, infinities and both zeros."""
    x = logits_like(device, 4, columns, torch.float32, seed=1).round().to(dtype)
    x[1] = -1.5
    x[2, 0::2], x[2, 1::2] = -0.0, 0.0
    x[3, 5:] = math.nan
    x[3, 2], x[3, 1] = math.inf, -math.inf
    for largest, k in ((True, 30), (False, 501)):
        indices = run(backend, aiter_like.topk, x, k, largest=largest)[1].tolist()
        assert indices == [sorted_columns(row, k, largest) for row in x.tolist()]


@pytest.mark.parametrize("stable", (False, True))
@pytest.mark.parametrize("columns", (4100, 20001))
@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_with_bounds(device, run, backend, columns, stable):
    """Starts and ends inside of the row, at its ends, outside, and none at all; NaN in columns that do not count."""
    starts = torch.tensor([0, 5, 100, -3, columns - 3, 40], dtype=I32)
    ends = torch.tensor([columns, 6, 4000, 90, columns + 100, 20], dtype=I32)
    x = logits_like("cpu", 6, columns, seed=2)
    for row, start, end in zip(x, starts.clamp(min=0), ends):
        row[:start] = row[end.clamp(min=0):] = math.nan
    k = 64
    indices = torch.full((7, k), -9, dtype=I32, device=device)
    values = torch.full((6, k), 9.0, device=device)
    run(backend, aiter_like.top_k_per_row_prefill, x.to(device), starts.to(device), ends.to(device), indices, values, 6,
        *x.stride(), k=k, stable=stable)
    assert (indices[6] == -9).all(), "a row that is not taken"
    for r, (row, start, end) in enumerate(zip(x.tolist(), starts.tolist(), ends.tolist())):
        start = max(start, 0)
        wanted = [start + c for c in sorted_columns(row[start:max(end, start)], k)]
        wanted = sorted(wanted) if stable else wanted
        got = indices[r].tolist()
        assert got == wanted + [-1] * (k - len(wanted))
        assert values[r].tolist() == [row[c] for c in wanted] + [0.0] * (k - len(wanted))


@pytest.mark.parametrize("backend", BACKENDS)
def test_decode(device, run, backend):
    """Rows of two sequences with three query tokens each; a sequence shorter than k, and an empty one."""
    lengths = torch.tensor([700, 2], dtype=I32, device=device)
    x = logits_like(device, 6, 900, seed=3)
    indices = torch.empty(6, 20, dtype=I32, device=device)
    run(backend, aiter_like.top_k_per_row_decode, x, 3, lengths, indices, 6, *x.stride(), k=20)
    for r, (row, got) in enumerate(zip(x.tolist(), indices.tolist())):
        wanted = sorted_columns(row[:max(int(lengths[r // 3]) - 3 + r % 3 + 1, 0)], 20)
        assert got == wanted + [-1] * (20 - len(wanted))


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_bounds(device, run, backend):
    """Lengths, starts and ends as small and as large as int32 are as the nearest ones that a row has."""
    low, high = -2**31, 2**31 - 1
    x = logits_like(device, 8, 300, seed=9)
    lengths, clamped = torch.tensor([low, low + 1, high, -1], dtype=I32), torch.tensor([0, 0, 301, 0], dtype=I32)
    found = []
    for given in (lengths, clamped):
        indices = torch.full((8, 20), -9, dtype=I32, device=device)
        run(backend, aiter_like.top_k_per_row_decode, x, 2, given.to(device), indices, 8, *x.stride(), k=20)
        found.append(indices)
    assert torch.equal(*found) and (found[0][:4] == -1).all() and (found[0][4:6] >= 0).all()
    starts = torch.tensor([low, high, low, high, 0, high - 1, low, 7], dtype=I32, device=device)
    ends = torch.tensor([high, high, low, low, low, high, 5, high], dtype=I32, device=device)
    prefill = functools.partial(run, backend, aiter_like.top_k_per_row_prefill, x)
    found = []
    for bounds in ((starts, ends), (starts.clamp(0, 300), ends.clamp(0, 300))):
        indices = torch.full((8, 20), -9, dtype=I32, device=device)
        prefill(*bounds, indices, None, 8, *x.stride(), k=20)
        found.append(indices)
    assert torch.equal(*found) and (found[0][1:6] == -1).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_plain(device, run, backend):
    x = logits_like(device, 3, 1003, torch.bfloat16, seed=4)
    ids, out = torch.empty(3, 9, dtype=I32, device=device), torch.empty(3, 9, dtype=torch.bfloat16, device=device)
    none = torch.empty(0, dtype=I32, device=device)
    run(backend, aiter_like.topk_plain, x, ids, out, 9, False, none, none, -1, 1)
    assert ids.tolist() == [sorted_columns(row, 9, largest=False) for row in x.tolist()]
    assert torch.equal(out, x.gather(1, ids.long()))
    bounds = torch.tensor([500, 0, 1000], dtype=I32, device=device), torch.tensor([503, 9, 990], dtype=I32,
                                                                                  device=device)
    run(backend, aiter_like.topk_plain, x.t().contiguous().t(), ids, out, 9, True, *bounds)
    assert ids[0, 3:].eq(-1).all() and ids[2].eq(-1).all() and out[2].eq(0).all()
    assert sorted(ids[1].tolist()) == [*range(9)]


def test_other_dimensions(device):
    x = logits_like(device, 6, 50, seed=5).view(2, 3, 50)
    for dim in (-1, 0, 1):
        values, indices = aiter_like.topk(x, 2, dim=dim)
        wanted = torch.topk(x, 2, dim=dim)
        assert torch.equal(values, wanted.values) and torch.equal(indices, wanted.indices)


def test_results_do_not_depend_on_the_grid(device, run):
    x = logits_like(device, 1, 20001, seed=6)
    few, many = (run("hip", aiter_like.topk, x.expand(rows, -1), 40)[1] for rows in (1, 153 if device.type == "cpu"
                                                                                     else 300))
    assert torch.equal(many, few.expand(many.shape[0], -1))


def test_empty_and_bad_input(device):
    x = logits_like(device, 2, 64)
    ids = torch.empty(2, 5, dtype=I32, device=device)
    assert aiter_like.topk(x[:0], 3)[1].shape == (0, 3) and aiter_like.topk(x, 0)[0].shape == (2, 0)
    for message, kind, call in (
            ("k must be between 0 and 64", ValueError, lambda: aiter_like.topk(x, 65)),
            ("x must have dtype", TypeError, lambda: aiter_like.topk(x.double(), 3)),
            ("must have dtype", TypeError, lambda: aiter_like.topk_plain(x, ids, ids, 5)),
            ("must have shape", ValueError, lambda: aiter_like.topk_plain(x, ids, x[:, :5], 4)),
            ("must stay inside", ValueError,
             lambda: aiter_like.top_k_per_row_decode(x, 1, ids[:, 0].contiguous(), ids, 2, 65, 1, k=5)),
            ("indices must have shape", ValueError,
             lambda: aiter_like.top_k_per_row_decode(x, 1, ids[:, 0].contiguous(), ids, 2, 64, 1, k=6)),
            ("next_n must divide", ValueError,
             lambda: aiter_like.top_k_per_row_decode(x, 3, ids[:, 0].contiguous(), ids, 2, 64, 1, k=5))):
        with pytest.raises(kind, match=message):
            call()
    wide = torch.zeros(1, 5000, device=device)
    with pytest.raises(UnsupportedError, match="k of at most 4096"):
        aiter_like.topk(wide, 4097, backend="hip")


def bench() -> None:
    """Beside torch; V = 128256."""
    import benching

    benching.of("topk", "rows k", ((rows, k) for k in (1, 50, 2048) for rows in (1, 16, 64, 128, 512)), columns=128256,
                dtype="fp32")
