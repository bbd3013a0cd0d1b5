# SPDX-License-Identifier: MIT
"""AITER's hyper-connections against their formulas in float64, token by token."""

import math

import pytest
import torch
from seeded import wide_numbers as numbers

from aiter_like.integrations.aiter.others import mhc as aiter_mhc

TOKENS, STREAMS, HIDDEN, EPS = 3, 4, 64, 1e-6


def call(rows=STREAMS * (2 + STREAMS)):
    return {"residual": numbers(TOKENS, STREAMS, HIDDEN, dtype=torch.bfloat16),
            "fn": numbers(rows, STREAMS * HIDDEN, seed=1), "hc_scale": numbers(3, seed=2) * 0.1,
            "hc_base": numbers(rows, seed=3) * 0.1}


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def expect(residual, fn, hc_scale, hc_base, repeat, factor):
    """post, comb and what the layer reads."""
    post, comb, read = [], [], []
    for streams in residual.double():
        flat = streams.flatten()
        mixes = fn.double() @ flat / (flat.square().mean() + EPS).sqrt()
        values = [mix * hc_scale.double()[0 if i < STREAMS else 1 if i < 2 * STREAMS else 2] + hc_base.double()[i]
                  for i, mix in enumerate(mixes)]
        read.append(sum((sigmoid(values[i]) + EPS) * streams[i] for i in range(STREAMS)))
        if len(values) > STREAMS:
            post.append(torch.tensor([factor * sigmoid(each) for each in values[STREAMS:2 * STREAMS]]))
            square = torch.stack(values[2 * STREAMS:]).view(STREAMS, STREAMS).exp()
            square = square / square.sum(1, keepdim=True) + EPS
            for step in range(2 * repeat - 1):
                square = square / (square.sum(step % 2, keepdim=True) + EPS)
            comb.append(square)
    return post, comb, torch.stack(read)


def close(got, expected, tolerance=1e-4):
    torch.testing.assert_close(got.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("has_norm", (False, True))
def test_before_a_layer(simulated, has_norm):
    weight = numbers(HIDDEN, seed=4, dtype=torch.bfloat16) if has_norm else None
    post, comb, read = aiter_mhc.mhc_pre(**call(), hc_post_mult_value=2.0, sinkhorn_repeat=3, norm_weight=weight)
    expected = expect(**call(), repeat=3, factor=2.0)
    assert (post.shape, comb.shape, read.dtype) == ((TOKENS, STREAMS, 1), (TOKENS, STREAMS, STREAMS), torch.bfloat16)
    close(post[..., 0], torch.stack(expected[0]))
    close(comb, torch.stack(expected[1]))
    wanted = expected[2]
    if has_norm:
        wanted = wanted * (wanted.square().mean(-1, keepdim=True) + EPS).rsqrt() * weight.double()
    close(read, wanted, 0.01)


def test_head():
    post, comb, read = aiter_mhc.mhc_pre(**call(STREAMS), sinkhorn_repeat=0)
    close(read, expect(**call(STREAMS), repeat=0, factor=1.0)[2], 0.01)
    assert not post.any() and not comb.any()


@pytest.mark.parametrize("is_flat", (False, True))
def test_behind_a_layer(is_flat):
    arguments = call()
    residual, x = arguments["residual"], numbers(TOKENS, HIDDEN, seed=5, dtype=torch.bfloat16)
    post, comb = numbers(TOKENS, STREAMS, 1, seed=6), numbers(TOKENS, STREAMS, STREAMS, seed=7)
    out = torch.empty_like(residual)
    aiter_mhc.mhc_post(out, x, residual, post[..., 0] if is_flat else post, comb)
    expected = torch.einsum("tji,tjh->tih", comb.double(), residual.double()) + post.double() * x.double()[:, None]
    close(out, expected, 0.01)
    del arguments["residual"]
    for function in (aiter_mhc.mhc_fused_post_pre, aiter_mhc.mhc_fused_post_pre_large_m):
        *found, streams = function(x, residual, post, comb, **arguments)
        assert torch.equal(streams, out)
        assert all(map(torch.equal, found, aiter_mhc.mhc_pre(out, **arguments)))


@pytest.mark.parametrize(("name", "value", "message"), [
    ("residual", numbers(TOKENS, STREAMS, HIDDEN), "residual must have dtype"),
    ("fn", numbers(5, 256), "fn must have 24"),
    ("hc_scale", numbers(2), "hc_scale must have shape"), ("hc_base", numbers(4), "hc_base must have shape"),
    ("norm_weight", numbers(3), "norm_weight must have shape"), ("sinkhorn_repeat", -1, "sinkhorn_repeat must be")])
def test_bad_arguments(name, value, message):
    with pytest.raises((TypeError, ValueError), match=f"mhc_pre: {message}"):
        aiter_mhc.mhc_pre(**call() | {name: value})
    residual = numbers(TOKENS, STREAMS, HIDDEN, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="mhc_post: x must have shape"):
        aiter_mhc.mhc_post(residual, residual[:, 0, 1:], residual, numbers(TOKENS, STREAMS),
                           numbers(TOKENS, STREAMS, STREAMS))


def phi_call(dtype=torch.bfloat16):
    """The arguments of `call` in the form of AITER's Triton kernels: phi, alphas, bias."""
    arguments = call()
    return arguments["fn"].t().to(dtype), arguments["hc_scale"], arguments["hc_base"]


def balanced(logits, repeat):
    """Rows and columns of the exponentials divided by their sums in turn."""
    square = logits.exp()
    for step in range(2 * repeat):
        square = square / square.sum(2 - step % 2, keepdim=True)
    return square


def logits_of(residual, phi, alphas, bias):
    flat = residual.double().flatten(1)
    mixes = flat @ phi.double() / (flat.square().mean(1, keepdim=True) + EPS).sqrt()
    return (mixes[:, 2 * STREAMS:] * alphas[2] + bias.double()[2 * STREAMS:]).view(-1, STREAMS, STREAMS)


@pytest.mark.parametrize(("is_asymmetric", "repeat"), [(False, 0), (False, 1), (False, 20), (True, 3)])
def test_form_of_triton(is_asymmetric, repeat):
    """Against mhc_pre where the two agree, and the balancing without epsilons against its formula."""
    residual, (phi, alphas, bias) = call()["residual"], phi_call()
    x = numbers(TOKENS, HIDDEN, seed=5, dtype=torch.bfloat16)
    post, comb = numbers(TOKENS, STREAMS, seed=6), numbers(TOKENS, STREAMS, STREAMS, seed=7)
    streams = torch.empty_like(residual)
    aiter_mhc.mhc_post(streams, x, residual, post, comb)
    outs = {"h_post": torch.empty(TOKENS, STREAMS), "h_res": torch.empty(TOKENS, STREAMS, STREAMS),
            "residual_out": torch.empty_like(residual), "layer_input_out": torch.empty_like(x)}
    found = aiter_mhc.mhc_post_pre(x, residual, post, comb, phi, alphas, bias, STREAMS, sinkhorn_iters=repeat,
                                   asymmetric_exp_domain=is_asymmetric, **outs)
    assert all(map(torch.Tensor.is_set_to, found, (outs["h_post"], outs["h_res"], outs["layer_input_out"],
                                                   outs["residual_out"])))
    other = aiter_mhc.mhc_pre(streams, phi.float().t().contiguous(), alphas, bias, hc_post_mult_value=2.0,
                              sinkhorn_repeat=3)
    close(found[0], other[0][..., 0])
    logits = logits_of(streams, phi, alphas, bias)
    close(found[1], other[1] if is_asymmetric else balanced(logits, repeat) if repeat else logits)
    close(found[2], other[2])
    assert torch.equal(found[3], streams)
    fresh = aiter_mhc.mhc_post_pre(x, residual, post, comb, phi, alphas, bias, STREAMS, sinkhorn_iters=repeat,
                                   asymmetric_exp_domain=is_asymmetric)
    assert [each.dtype for each in fresh] == [torch.bfloat16] * 4 and fresh[0].shape == (TOKENS, STREAMS, 1)
    assert all(torch.equal(one.view(two.shape).bfloat16(), two) for one, two in zip(found, fresh))


def test_bad_arguments_of_the_form_of_triton():
    residual, (phi, alphas, bias) = call()["residual"], phi_call()
    x, post, comb = residual[:, 0], numbers(TOKENS, STREAMS), numbers(TOKENS, STREAMS, STREAMS)
    with pytest.raises(ValueError, match="mhc_post_pre: phi must have shape"):
        aiter_mhc.mhc_post_pre(x, residual, post, comb, phi.t(), alphas, bias, STREAMS)
    with pytest.raises(ValueError, match="mhc_post_pre: post_mix must have shape"):
        aiter_mhc.mhc_post_pre(x, residual, post[:, 1:], comb, phi, alphas, bias, STREAMS)
    with pytest.raises(ValueError, match="mhc_post_pre: residual_in must have n = 3 streams"):
        aiter_mhc.mhc_post_pre(x, residual, post, comb, phi, alphas, bias, 3)
    with pytest.raises(ValueError, match="mhc_post_pre: h_post must have shape"):
        aiter_mhc.mhc_post_pre(x, residual, post, comb, phi, alphas, bias, STREAMS, h_post=post[1:])
