# SPDX-License-Identifier: MIT
"""Into how many parts the host lets paged_attention cut sequences, and that its bounds hold for whatever lengths."""

import math

import pytest
import torch

from aiter_like.device import Target
from aiter_like.ops.attention import paged_attention_call
from aiter_like.ops.attention.paged_attention_call import PagedAttentionCall, Parts, best_parts, parts_of

pytestmark = pytest.mark.rotating

HOPPER = Target("cuda", "sm_90", 132, 32, False, 0)
MI300X = Target("hip", "gfx942", 304, 64, True, 0)


def call_of(batch: int, longest: int, heads: int, num_splits: int = 0) -> PagedAttentionCall:
    q, table = torch.empty(batch, 2 * heads, 128), torch.empty(batch, 0)
    pages = torch.empty(0, 16, heads, 128)
    return PagedAttentionCall(q, None, q, pages, pages, table, None, max_seqlen_k=longest, num_splits=num_splits)


@pytest.mark.parametrize("sequences, keys, parts", (
    (8, 512, 8), (32, 512, 1), (64, 512, 1), (8, 4096, 16), (4, 4096, 16), (64, 32768, 4), (512, 4096, 1),
    (2048, 1024, 1), (32, 4096, 4), (4, 131072, 32), (32, 32768, 8), (32, 131072, 8), (128, 8192, 1), (256, 4096, 1)))
def test_parts_of_equal_sequences(sequences, keys, parts):
    """What was fastest on an H100: two workgroups on an SM over many keys, one over few; parts of one tile where most
    SMs would have none; whole where the sum of parts costs more."""
    assert best_parts(sequences, keys, 132, 352) == parts


@pytest.mark.parametrize("target", (HOPPER, MI300X), ids=("sm_90", "gfx942"))
def test_bounds_hold_for_whatever_lengths(monkeypatch, target):
    """As paged_attention_plan.py cuts them: a chunk of all keys' share, at least `least`, `most` parts at most."""
    monkeypatch.setattr(paged_attention_call, "target_of", lambda _: target)
    generator, seen = torch.Generator().manual_seed(0), set()
    for batch in (1, 2, 7, 64, 300, 2000):
        for longest in (1, 256, 257, 900, 1024, 1025, 5000, 131072):
            for heads in (1, 8, 32):
                bounds = parts_of(call_of(batch, longest, heads))
                ragged = torch.rand(batch, generator=generator).pow(9) * longest
                for lengths in (torch.full((batch,), longest), ragged.long(), (ragged < longest / 2).long() * longest):
                    chunk = max(math.ceil(int(lengths.sum()) / bounds.share), bounds.least)
                    parts = (lengths.clamp(1).float() / chunk).ceil().clamp(max=bounds.most).long()
                    split = parts[parts > 1]
                    assert int(parts.sum()) <= bounds.grid
                    assert int(split.sum()) <= bounds.slots and len(split) <= bounds.split
                seen.add(bounds.slots > 0)
                assert bounds.slots <= max(32 * target.cu_num // heads, 2 * batch)  # what the documentation says
    assert seen == {False, True}


def test_parts_that_were_asked_for(monkeypatch):
    monkeypatch.setattr(paged_attention_call, "target_of", lambda _: HOPPER)
    assert parts_of(call_of(3, 5000, 8, 4)) == Parts(0, 4, 12, 12, 3, 256)
    assert parts_of(call_of(3, 5000, 8, 1)) == Parts(0, 1, 3, 0, 0, 256)
