# SPDX-License-Identifier: MIT
"""Positions and offsets that ask for rows which the tables of cosines and sines do not have."""

import pytest
import torch

import aiter_like
from aiter_like.ops.rope import rope as family
from aiter_like.ops.rope.fused_qk_rope_cache import FusedQkRopeCacheCall, fused_qk_rope_cache

BACKENDS = ("hip", "triton", "torch")
BF16 = torch.bfloat16
OUTSIDE = (9, -1, 2**31, -2**31, 2**32 + 3, -2**63, 2**63 - 1)


def randn(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(device, BF16)


@pytest.mark.parametrize("with_offsets", (False, True))
@pytest.mark.parametrize("backend", BACKENDS)
def test_rope(device, backend, with_offsets):
    """Nothing beyond the tables is read, of whatever size an index is; the other heads and what is copied are right.

    The operator is called itself: the public functions refuse such positions where they can look at them.
    """
    for dtype, is_angle in ((torch.int64, False), (torch.int32, True)):
        outside = [row for row in OUTSIDE if torch.iinfo(dtype).min <= row <= torch.iinfo(dtype).max]
        rows = torch.tensor([[0, *outside, 8]], dtype=dtype).t()
        offsets = torch.tensor([[0, *[row % 3 for row in outside], 0]], dtype=dtype).t() if with_offsets else None
        lacking = slice(1, 1 + len(outside))
        x, y = (randn(device, len(rows), 1, heads, 32) for heads in (3, 1))
        turns = torch.linspace(0, 5, 9 * 8, device=device).view(9, 8)
        cos, sin = (turns, None) if is_angle else (turns.cos(), turns.sin())
        given = [None if each is None else (each - offsets if offsets is not None and each is rows else each).to(device)
                 for each in (rows, offsets)]
        call = family.RopeCall(torch.zeros_like(x), torch.zeros_like(y), x, y, cos=cos, sin=sin, positions=given[0],
                               offsets=given[1])
        family._rope(call, backend=backend)
        expected = call._replace(out=torch.empty_like(x), out_y=torch.empty_like(y))
        family.rope_ref(expected)
        for out, wanted, source in zip(call[:2], expected[:2], (x, y)):
            assert out[lacking, ..., :16].isnan().all() and wanted[lacking, ..., :16].isnan().all()
            assert torch.equal(out[..., 16:], source[..., 16:])
            torch.testing.assert_close(out, wanted, rtol=1e-2, atol=1e-2, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_fused_qk_rope_cache(device, backend):
    """Heads of q and k, and what the cache gets of k; v and the other tokens are right."""
    for dtype, outside in ((torch.int64, (9, -1, 2**31, 2**32 + 3, -2**63)), (torch.int32, (9, -1, -2**31))):
        rows = torch.tensor([0, *outside, 8], dtype=dtype, device=device)
        count, lacking = len(rows), slice(1, 1 + len(outside))
        q, k, v = (randn(device, count, heads, 64) for heads in (4, 2, 1))
        v = v.repeat(1, 2, 1)
        turns = torch.arange(9, device=device)[:, None] * torch.linspace(0.1, 1, 16, device=device)
        cache = torch.zeros(2, count, 16, 2, 64, dtype=BF16, device=device)
        slots = torch.arange(count, device=device) * 16 + 5
        call = FusedQkRopeCacheCall(
            torch.empty_like(q), torch.empty_like(k), None, cache[0], value_cache=cache[1], q=q, k=k, v=v,
            q_weight=None, k_weight=None, cos=turns.cos(), sin=turns.sin(), positions=rows, offsets=None,
            slot_mapping=slots)
        fused_qk_rope_cache(call, backend=backend)
        for out, source in ((call.q_out, q), (call.k_out, k), (cache[0][:, 5], k)):
            assert out[lacking, :, :32].isnan().all() and torch.equal(out[..., 32:], source[..., 32:])
            assert out[[0, -1]].isfinite().all() and torch.equal(out[0], source[0])  # row 0 turns by 0
        assert torch.equal(cache[1][:, 5], v)


def test_refused_on_the_host(device):
    if device.type != "cpu":
        pytest.skip("a GPU is not waited for")
    x = randn(device, 3, 1, 2, 16)
    cos = sin = torch.ones(9, 8, dtype=BF16)
    flags = (0, True, False)
    for wrong in (9, -1, 2**32):
        positions = torch.tensor([[0], [wrong], [1]])
        with pytest.raises(ValueError, match=f"_fwd: positions must be rows of the table, from 0 to 8, got {wrong}"):
            aiter_like.rope_cached_positions_fwd(x, cos, sin, positions, *flags)
        with pytest.raises(ValueError, match="positions plus offsets must be rows .* got 9"):
            aiter_like.rope_cached_positions_offsets_fwd(x, cos, sin, positions, 9 - positions, *flags)
        before = x.clone()
        with pytest.raises(ValueError, match=f"rotary_embedding_fwd: positions must be rows .* got {wrong}"):
            aiter_like.rotary_embedding_fwd(positions[:, 0], x.view(3, 32), None, 16, cos, sin, True, False)
        assert torch.equal(x, before)
    for starts, message in (((0, 2, 1, 3), "must start at 0 and never fall"), ((1, 3), "must start at 0"),
                            ((0, 10), "freqs must have at least 10 rows")):
        with pytest.raises(ValueError, match=message):
            aiter_like.rope_thd_fwd(x[:, 0], torch.tensor(starts), cos, *flags)
