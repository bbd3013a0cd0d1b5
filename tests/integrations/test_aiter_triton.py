# SPDX-License-Identifier: MIT
"""The forms of AITER's Triton functions: the same results as the formulas in float64, AITER's defaults and answers."""

import pytest
import torch
from seeded import numbers

import aiter_like
from aiter_like import device
from aiter_like.errors import UnsupportedError
from aiter_like.integrations.aiter.others import adapters, triton
from aiter_like.ops.layout.shuffle_weight import shuffle_weight


def test_what_the_device_has(simulated):
    assert triton.is_fp8_avail() and triton.get_num_sms() == device.default_target().cu_num == 304
    assert not triton.is_2d_gluon_available(torch.bfloat16, torch.bfloat16, 0, False, False)
    assert not any(ask() for ask in (triton.is_fp4_avail, triton.is_gluon_avail, triton.is_tdm_avail))
    for setter, value in (("use_fused_bwd_kernel", True), ("use_int64_strides", False), ("impl", "default")):
        assert getattr(triton, f"mha_set_{setter}")(value) is None


def test_types(simulated):
    names = triton.str_to_torch_dtype
    assert "bf16" in names and "fp3" not in names and {"float32", "int8"} <= set(names)
    assert len(names) == len(set(names))
    assert names["bf16"] is names["bfloat16"] is torch.bfloat16 and names["int64"] is torch.int64
    assert names["fp8e4m3"] is names["float8_e4m3fn"] is torch.float8_e4m3fnuz
    assert names["e5m2fnuz"] is torch.float8_e5m2fnuz and names["mxfp4_e2m1"] is torch.uint8
    with pytest.raises(KeyError, match="fp3"):
        names["fp3"]


def test_scales_of_experts_stay_as_they_are(simulated):
    data = torch.arange(256, dtype=torch.uint8).view(8, 32)
    assert triton.shuffle_scale_moe(data) is data
    found = triton.shuffle_scale_moe(data, "gfx90a", return_layout=True)
    assert found[0] is data and found[1] is None
    with pytest.raises(UnsupportedError, match="shuffle_scale_moe: no kernel here reads the scales of gfx950"):
        triton.shuffle_scale_moe(data, "gfx950")


def test_weights_are_shuffled_as_elsewhere(simulated):
    w = torch.arange(32 * 64).view(32, 64).to(torch.int8)
    assert torch.equal(triton.shuffle_weight(w, arch="gfx950"), shuffle_weight(w))


def dropped(q, k, v, signs):
    """Attention of one sequence in float64, without what is negative in `signs` [heads, queries, keys]; a half is."""
    p = torch.einsum("qhd,khd->hqk", q.double(), k.double()).mul(q.shape[-1] ** -0.5).softmax(-1)
    return torch.einsum("hqk,khd->qhd", p * (signs >= 0) / 0.5, v.double())


def test_dropped_scores_of_packed_sequences_are_negative():
    """[batch, heads, longest, longest], with 0 behind the queries of a sequence."""
    q, k, v = (numbers(9, 2, 32, seed=seed) for seed in range(3))
    starts = torch.tensor([0, 2, 2, 9], dtype=torch.int32)
    with aiter_like.use_backend("torch"):
        call = {"dropout_p": 0.5, "return_lse": True, "return_attn_probs": True}
        out, _, signs = adapters.flash_attn_varlen_func(q, k, v, starts, starts, 7, 7, **call)
        empty = adapters.flash_attn_varlen_func(q[:0], k, v, starts[:1].expand(4).contiguous(), starts, 0, 7,
                                                      **call)
    assert signs.shape == (3, 2, 7, 7) and empty[2].shape == (3, 2, 0, 7)
    assert not signs[0, :, 2:].any() and not signs[1].any() and (signs[0, :, :2] != 0).all() and (signs[2] != 0).all()
    for index, rows in ((0, slice(0, 2)), (2, slice(2, 9))):
        length = rows.stop - rows.start
        expected = dropped(q[rows], k[rows], v[rows], signs[index, :, :length, :length])
        torch.testing.assert_close(out[rows].double(), expected, rtol=2e-2, atol=2e-2)
