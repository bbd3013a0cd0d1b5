# SPDX-License-Identifier: MIT
"""torch's operators of attention on a GPU, called by their names within sim.as_gpu()."""

from __future__ import annotations

import math

import pytest
import torch
from torch.backends.cuda import SDPAParams
from torch.nn.functional import scaled_dot_product_attention

from aiter_like import sim
from aiter_like.errors import UnsupportedError

aten = torch.ops.aten
LOOSE = {"atol": 2e-2, "rtol": 2e-2}


@pytest.fixture(autouse=True)
def gpu():
    torch.manual_seed(0)
    with sim.as_gpu():
        yield


def _given(shape, dtype, kv_heads=None):
    q = torch.randn(shape, dtype=dtype, device="cuda")
    k, v = (torch.randn(shape[0], kv_heads or shape[1], *shape[2:], dtype=dtype, device="cuda") for _ in range(2))
    return [one.requires_grad_() for one in (q, k, v)]


def _expected(given, gradient, **options):
    """Results, sums' logarithms and gradients in float64."""
    wide = [one.detach().cpu().double().requires_grad_() for one in given]
    out = scaled_dot_product_attention(*wide, enable_gqa=wide[0].shape[1] != wide[1].shape[1], **options)
    return out, torch.autograd.grad(out, wide, gradient.cpu().double())


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype, kv_heads", [(torch.float16, 4), (torch.bfloat16, 2)])
def test_flash_attention_and_its_gradients(dtype, kv_heads, is_causal):
    given = _given((2, 4, 19, 32), dtype, kv_heads)
    out, sums, *_, max_q, max_k, _, _, _ = aten._scaled_dot_product_flash_attention(*given, 0.0, is_causal, scale=0.3)
    gradient = torch.randn_like(out)
    expected, gradients = _expected(given, gradient, is_causal=is_causal, scale=0.3)
    out.backward(gradient)
    assert out.is_cuda and sums.is_cuda and given[0].grad.is_cuda and sums.shape == (2, 4, 19) and max_q == max_k == 19
    torch.testing.assert_close(out.cpu().double(), expected, **LOOSE)
    for one, wanted in zip(given, gradients, strict=True):
        torch.testing.assert_close(one.grad.cpu().double(), wanted, **LOOSE)


def test_efficient_attention_with_bias():
    given = _given((2, 3, 17, 24), torch.float32)
    bias = torch.randn(2, 3, 17, 17, device="cuda", requires_grad=True)
    out, sums, _, _ = aten._scaled_dot_product_efficient_attention(*given, bias, True)
    gradient = torch.randn_like(out)
    wide_bias = bias.detach().cpu().double().requires_grad_()
    wide = [one.detach().cpu().double() for one in given]
    expected = scaled_dot_product_attention(*wide, attn_mask=wide_bias)
    scores = wide[0] @ wide[1].mT / math.sqrt(24) + wide_bias
    out.backward(gradient)
    torch.testing.assert_close(out.cpu().double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sums.cpu().double(), scores.logsumexp(-1), atol=1e-5, rtol=1e-5)
    (wanted,) = torch.autograd.grad(expected, wide_bias, gradient.cpu().double())
    torch.testing.assert_close(bias.grad.cpu().double(), wanted, atol=1e-5, rtol=1e-5)
    assert aten._scaled_dot_product_efficient_attention(*given, None, False)[1].shape == (2, 3, 0)


def test_packed_sequences():
    starts = torch.tensor([0, 5, 5, 16], dtype=torch.int32, device="cuda")  # one is empty
    q, k, v = (torch.randn(16, 2, 32, dtype=torch.float16, device="cuda", requires_grad=True) for _ in range(3))
    out, sums, *_ = aten._flash_attention_forward(q, k, v, starts, starts, 11, 11, 0.0, True, False)
    wide = torch.ones(16, 2, 32, dtype=torch.float16, device="cuda")
    out.backward(wide)
    assert out.is_cuda and q.grad.is_cuda and sums.shape == (2, 16)
    packed = [one.detach()[None].float().requires_grad_() for one in (q, k, v)]
    other, its_sums, *_ = aten._efficient_attention_forward(*packed, None, starts, starts, 11, 11, 0.0, 1, True)
    other.backward(wide[None].float())
    torch.testing.assert_close(other[0], out.float(), **LOOSE)
    assert its_sums.shape == (3, 2, 11)
    torch.testing.assert_close(its_sums[2], sums[:, 5:], **LOOSE)
    for first, last in ((0, 5), (5, 16)):
        given = [one.detach()[first:last].transpose(0, 1)[None] for one in (q, k, v)]
        expected, gradients = _expected(given, torch.ones(1, 2, last - first, 32), is_causal=True)
        torch.testing.assert_close(out[first:last].transpose(0, 1)[None].cpu().double(), expected, **LOOSE)
        for one, packed_one, wanted in zip((q, k, v), packed, gradients, strict=True):
            for grad in (one.grad, packed_one.grad[0]):
                torch.testing.assert_close(grad[first:last].transpose(0, 1)[None].cpu().double(), wanted, **LOOSE)


def test_windows_and_keys_in_use():
    q, k, v = (torch.randn(2, 9, 2, 32, dtype=torch.float16, device="cuda") for _ in range(3))
    out = aten._flash_attention_forward(q, k, v, None, None, 9, 9, 0.0, False, False, window_size_left=2,
                                        window_size_right=1)[0]
    far = torch.arange(9)[None] - torch.arange(9)[:, None]
    heads = [one.transpose(1, 2).cpu().double() for one in (q, k, v)]
    expected = scaled_dot_product_attention(*heads, attn_mask=(far <= 1) & (far >= -2))
    torch.testing.assert_close(out.transpose(1, 2).cpu().double(), expected, **LOOSE)
    used = torch.tensor([4, 9], dtype=torch.int32, device="cuda")
    out = aten._efficient_attention_forward(*(one.float() for one in (q, k, v)), None, None, None, None, None, 0.0, 0,
                                            True, seqlen_k=used)[0]
    mask = torch.arange(9)[None] < used.cpu()[:, None]
    expected = scaled_dot_product_attention(*heads, attn_mask=mask[:, None, None])
    torch.testing.assert_close(out.transpose(1, 2).cpu().double(), expected, atol=1e-5, rtol=1e-5)


def test_corners_of_the_causal_mask():
    q, k = torch.randn(1, 3, 1, 16, device="cuda"), torch.randn(1, 5, 1, 16, device="cuda")
    heads = [one.transpose(1, 2).cpu().double() for one in (q, k, k)]
    for kind, shift in ((1, 0), (2, 2)):
        out = aten._efficient_attention_forward(q, k, k, None, None, None, None, None, 0.0, kind, True)[0]
        mask = torch.ones(3, 5, dtype=torch.bool).tril(shift)
        torch.testing.assert_close(out.transpose(1, 2).cpu().double(),
                                   scaled_dot_product_attention(*heads, attn_mask=mask), atol=1e-5, rtol=1e-5)
    halves = q.half(), k.half(), k.half()
    with pytest.raises(UnsupportedError, match="is_causal of 3 queries and 5 keys"):
        aten._flash_attention_forward(*halves, None, None, 3, 5, 0.0, True, False)


def test_what_is_dropped_is_the_same_backwards():
    q, k, v = _given((1, 2, 8, 16), torch.float32)
    out = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, dropout_p=0.5)[0]
    (gradient,) = torch.autograd.grad(out.sum(), v)
    torch.testing.assert_close((gradient * v).sum(), out.sum())  # the result is linear in the values
    torch.manual_seed(0)
    first = aten._scaled_dot_product_efficient_attention(q, k, v, None, True, dropout_p=0.5)[0]
    torch.manual_seed(0)
    assert torch.equal(first, aten._scaled_dot_product_efficient_attention(q, k, v, None, True, dropout_p=0.5)[0])


def test_refused_calls():
    q = torch.randn(1, 2, 4, 16, device="cuda")
    with pytest.raises(RuntimeError, match=r"must be of one type of torch.float16, torch.bfloat16, got torch.float32"):
        aten._scaled_dot_product_flash_attention(q, q, q)
    with pytest.raises(RuntimeError, match="number of heads in key/value must divide"):
        aten._scaled_dot_product_efficient_attention(q, *(torch.randn(1, 3, 4, 16, device="cuda") for _ in "kv"), None,
                                                     True)
    with pytest.raises(RuntimeError, match="custom_mask_type must be 0"):
        aten._efficient_attention_forward(q, q, q, None, None, None, None, None, 0.0, 3)
    with pytest.raises(UnsupportedError, match="alibi_slopes is not there"):
        aten._flash_attention_forward(*(q.half(),) * 3, None, None, 2, 2, 0.0, False, False,
                                      alibi_slopes=torch.ones(4, device="cuda"))


def test_kernels_that_there_are():
    half = torch.randn(1, 2, 4, 16, dtype=torch.float16, device="cuda")
    for one, is_flash in ((half, True), (half.float(), False)):
        params = SDPAParams(one, one, one, None, 0.0, False, False)
        assert torch.backends.cuda.can_use_flash_attention(params) == is_flash
        assert torch.backends.cuda.can_use_efficient_attention(params)
    params = SDPAParams(*(half.cpu(),) * 3, None, 0.0, False, False)
    assert not torch.backends.cuda.can_use_flash_attention(params)
