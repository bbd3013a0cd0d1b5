# SPDX-License-Identifier: MIT
"""AITER's product of a router with the choice of one expert, against torch."""

from __future__ import annotations

import pytest
import torch

import aiter_like as aiter
from aiter_like import sim
from aiter_like.integrations.aiter_moe import routing_sigmoid_top1


def router(tokens=11, hidden=128, experts=48):
    """Small integers: products are exact, and several experts have a score of 1."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randint(-2, 3, shape, generator=generator).bfloat16() for shape in ((tokens, hidden),
                                                                                      (hidden, experts)))
    return x, w, torch.sigmoid(x.float() @ w.float())


@pytest.mark.parametrize("backend", ("torch", "hip", "triton"))
@pytest.mark.parametrize("is_shared", (False, True))
def test_routing(backend, is_shared):
    x, w, scores = router()
    assert ((scores == 1).sum(1) > 1).any()
    if backend == "hip":  # whose product wants the weights of an expert side by side
        w = w.t().contiguous().t()
    with sim.enabled(), aiter.use_backend(backend):
        for explanation in aiter.explain(routing_sigmoid_top1, x, w, 1, is_shared):
            assert explanation.backend == backend, str(explanation)
        ids, weights = routing_sigmoid_top1(x[None], w, 1, is_shared)
    assert ids.dtype == torch.int32 and weights.dtype == torch.float32 and ids.shape == (11, 1 + is_shared)
    assert torch.equal(ids[:, 0].long(), scores.argmax(1))
    torch.testing.assert_close(weights[:, 0], scores.amax(1), rtol=1e-5, atol=1e-6)
    assert not is_shared or (ids[:, 1] == 48).all() and (weights[:, 1] == 1).all()


def test_edges():
    x, w, _ = router()
    ids, weights = routing_sigmoid_top1(x[:0], w, 1)
    assert ids.shape == weights.shape == (0, 1)
    for message, kind, arguments in (
            ("topk must be 1", ValueError, (x, w, 2)), ("w must have shape", ValueError, (x, w.t(), 1)),
            ("w must have dtype", TypeError, (x, w.float(), 1)), ("x must have dtype", TypeError, (x.float(), w, 1))):
        with pytest.raises(kind, match=f"^routing_sigmoid_top1: {message}"):
            routing_sigmoid_top1(*arguments)
