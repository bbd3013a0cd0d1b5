# SPDX-License-Identifier: MIT
"""AITER's attention to chosen blocks of keys, against the formula in float64."""

import pytest
import torch
from seeded import numbers

from aiter_like import check
from aiter_like.integrations.aiter.attention.block_sparse import vsa_sparse_attention

BLOCK = 128


def lists(batch, heads, blocks, kv_blocks, counts):
    """Ascending choices, as first numbers and distances; the last list has the last block."""
    generator = torch.Generator().manual_seed(7)
    lut = torch.zeros(batch, heads, blocks, kv_blocks, dtype=torch.int32)
    chosen = {}
    for index, place in enumerate(torch.cartesian_prod(*map(torch.arange, (batch, heads, blocks))).tolist()):
        count = counts[index % len(counts)]
        picked = torch.randperm(kv_blocks, generator=generator)[:count].sort().values
        if count == 1:
            picked[0] = kv_blocks - 1
        chosen[tuple(place)] = picked.tolist()
        lut[tuple(place)][:count] = torch.cat((picked[:1], picked.diff()))
    wanted = torch.tensor([len(each) for each in chosen.values()], dtype=torch.int32).view(batch, heads, blocks)
    return lut, wanted, chosen


def expect(q, k, v, chosen):
    out = torch.zeros(q.shape, dtype=torch.float64)
    share = q.shape[1] // k.shape[1]
    for (b, h, block), picked in chosen.items():
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        seen = torch.cat([torch.arange(each * BLOCK, min((each + 1) * BLOCK, k.shape[2])) for each in picked] or
                         [torch.arange(0)])
        if len(seen):
            scores = q[b, h, rows].double() @ k[b, h // share, seen].double().T * q.shape[3] ** -0.5
            out[b, h, rows] = scores.softmax(-1) @ v[b, h // share, seen].double()
    return out


@pytest.mark.parametrize(("rows", "keys", "kv_heads"), [(257, 481, 1), (100, 384, 2)])
def test_against_float64(simulated, rows, keys, kv_heads):
    q, k, v = numbers(2, 2, rows, 64), *(numbers(2, kv_heads, keys, 64, seed=seed) for seed in (1, 2))
    blocks, kv_blocks = -(-rows // BLOCK), -(-keys // BLOCK)
    lut, counts, chosen = lists(2, 2, blocks, kv_blocks, (1, 3, 2, 0))
    found = vsa_sparse_attention(q, k, v, lut, counts)
    torch.testing.assert_close(found.double(), expect(q, k, v, chosen), rtol=0.02, atol=0.02)


def test_bad_arguments():
    q, k = numbers(1, 2, 130, 64), numbers(1, 2, 256, 64)
    lut, counts = torch.zeros(1, 2, 2, 2, dtype=torch.int32), torch.ones(1, 2, 2, dtype=torch.int32)
    for message, call in (("block_lut must have shape", (q, k, k, lut[..., :1], counts)),
                          ("block_counts must have shape", (q, k, k, lut, counts[:, :1])),
                          ("v must have shape", (q, k, k[:, :1], lut, counts)),
                          ("q must have a multiple of the 2 heads", (q[:, :1], k, k, lut[:, :1], counts[:, :1])),
                          ("q must be contiguous", (q.mT.contiguous().mT, k, k, lut, counts))):
        with pytest.raises(ValueError, match=f"vsa_sparse_attention: {message}"):
            vsa_sparse_attention(*call)


def test_lists_that_name_no_blocks(simulated, monkeypatch):
    """3 blocks of keys. Where nobody looks, they are the nearest that there are."""
    q, k = numbers(1, 1, BLOCK, 64), numbers(1, 1, 3 * BLOCK, 64)

    def call(*numbers, count=3):
        counts = torch.tensor([[[count]]], dtype=torch.int32)
        return vsa_sparse_attention(q, k, k, torch.tensor([[[numbers]]], dtype=torch.int32), counts)

    for lut in ((0, 1, 2**31 - 1), (0, 1, -9)):
        assert torch.equal(call(*lut, count=2), call(0, 1, 1, count=2)), "what no list has is not looked at"
    for count in (-1, 4, -2**31, 2**31 - 1):
        with pytest.raises(ValueError, match="block_counts must hold numbers from 0 to 3"):
            call(0, 1, 1, count=count)
    for lut in ((-1, 1, 1), (1, 1, 1), (0, 2, 1), (0, 2**31 - 1, 1), (-2**31, 1, 1)):
        with pytest.raises(ValueError, match="block_lut must name blocks of keys from 0 to 2"):
            call(*lut)
    for lut in ((0, 0, 1), (2, -1, 1)):
        with pytest.raises(ValueError, match="block_lut must hold distances from 1 to 2"):
            call(*lut)
    first, every = call(0, 1, 1, count=0), call(0, 1, 1)
    monkeypatch.setattr(check, "is_on_host", lambda _: False)
    assert torch.equal(call(0, 1, 1, count=-2**31), first) and torch.equal(call(0, 1, 1, count=2**31 - 1), every)
    assert torch.equal(call(2**31 - 1, 1, 1, count=1), call(2, 0, 0, count=1))
