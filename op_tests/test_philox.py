# SPDX-License-Identifier: MIT
"""Random bits of dropout: the published words, and the Triton kernels' mask of attention against the torch one."""

from __future__ import annotations

import pytest
import torch

from aiter_like.ops.common import philox

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from aiter_like.ops.common.triton.launch import launch  # noqa: E402
from aiter_like.ops.common.triton.philox import attention_kept  # noqa: E402

KNOWN = (  # Random123's kat_vectors: seed, counter, words
    (0, (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (-1, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (0x299F31D0A4093822, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
     (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)))


@triton.jit
def _kept_kernel(kept, rng_state, head, first_row, first_column, threshold, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
                 IS_TRANSPOSED: tl.constexpr):
    """The mask of one tile [ROWS, COLUMNS], stored in this order whichever way it is computed."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    mask = attention_kept(tl.load(rng_state), tl.load(rng_state + 1), head, first_row + rows, first_column, threshold,
                          COLUMNS, IS_TRANSPOSED)
    if IS_TRANSPOSED:
        tl.store(kept + rows[None, :] * COLUMNS + columns[:, None], mask.to(tl.int8))
    else:
        tl.store(kept + rows[:, None] * COLUMNS + columns[None, :], mask.to(tl.int8))


@pytest.mark.parametrize("seed, counter, expected", KNOWN)
def test_published_words(seed, counter, expected):
    assert philox.words(seed, *map(torch.tensor, counter)).tolist() == list(expected)


@pytest.mark.parametrize("is_transposed", (False, True), ids=("rows_first", "columns_first"))
@pytest.mark.parametrize("rows, columns, num_warps", ((16, 32, 1), (64, 64, 4), (128, 4, 4)))
def test_the_mask_of_a_tile(device, rows, columns, num_warps, is_transposed):
    head, first_row, first_column, p = 70_001, 2**30 + 5, 2**30 - 64, 0.3
    rng_state = torch.tensor([-0x123456789ABCDEF, 2**40 + 2**31 + 7], device=device)
    kept = torch.full((rows, columns), 7, dtype=torch.int8, device=device)
    launch(_kept_kernel, (1,), kept, rng_state, head, first_row, first_column, philox.threshold(p), ROWS=rows,
           COLUMNS=columns, IS_TRANSPOSED=is_transposed, options={"num_warps": num_warps}).start()
    quads = torch.arange(first_column // 4, (first_column + columns) // 4)
    counters = (quads, first_row + torch.arange(rows)[:, None], torch.tensor(head), torch.tensor(2**31 + 7))
    expected = philox.words(-0x123456789ABCDEF, *counters).flatten(1) >> 8 >= philox.threshold(p)
    assert torch.equal(kept.cpu(), expected.to(torch.int8))


def attention_mask(seed, offset, columns):
    heads, rows = torch.arange(3), torch.arange(40)
    return philox.attention_kept(torch.tensor([seed, offset]), 0.25, heads[:, None], rows, columns)


def different_masks():
    """Masks of two heads, of one row, of another offset and of another seed."""
    kept = attention_mask(5, 9, 1001)
    return [kept[0], kept[1], kept[:, 1:2].expand(3, 40, -1)[2], attention_mask(5, 10, 1001)[0],
            attention_mask(6, 9, 1001)[0]]


def test_the_mask_of_an_attention():
    """Every head, row and offset has bits of its own; positions count, not shapes."""
    kept = attention_mask(5, 9, 1001)
    assert kept.shape == (3, 40, 1001) and torch.equal(kept[..., :70], attention_mask(5, 9, 70))
    assert len({mask.numpy().tobytes() for mask in different_masks()}) == 5


@pytest.mark.exhaustive
def test_the_share_that_an_attention_keeps():
    kept, different = attention_mask(5, 9, 1001), different_masks()
    assert abs(kept.double().mean().item() - 0.75) < 5 * (0.1875 / kept.numel()) ** 0.5
    for index, one in enumerate(different):
        assert all(0.3 < (one != other).double().mean() < 0.45 for other in different[:index])  # 2 · 0.25 · 0.75
