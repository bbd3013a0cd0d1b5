# SPDX-License-Identifier: MIT
"""SGLang's sampler without SGLang: the hook around the function of its "pytorch" backend, in recorded calls."""

import functools

import pytest
import torch

from aiter_like import device, dispatch
from aiter_like.integrations import takeover
from aiter_like.integrations.sglang import sampler

pytestmark = pytest.mark.usefixtures("fresh_takeover")
ALL = 1 << 30  # SGLang's top_k of a request that has none


def own(probs, top_ks, top_ps, min_ps, need_min_p_sampling, sampling_seed, positions):
    """SGLang's: it draws nothing, so that results tell whose they are."""
    return torch.full(probs.shape[:1], -5, dtype=torch.int32)


@pytest.fixture
def call():
    """SGLang's call of the function with our hook around it, on the simulator."""
    device.use_simulator(True)
    dispatch.reset()
    (hook,) = sampler.hook(lambda: True).values()
    yield functools.partial(hook, own)  # as SGLang calls a hook around a function
    dispatch.reset()
    device.reset()


def batch():
    """Four requests: all tokens, the best one, the two best by top-k, those by min-p."""
    probs = torch.softmax(torch.tensor([[1.0, 2.0, 3.0, 0.0, 2.5]] * 4), -1)
    return probs, torch.tensor([ALL, 1, 2, ALL], dtype=torch.int32), torch.tensor([1.0, 0.5, 0.99, 1.0]), torch.tensor(
        [0.0, 0.0, 0.0, 0.5])


def test_tokens(call):
    seen = [set() for _ in range(4)]
    for _ in range(60):
        tokens = call(*batch(), True, None, torch.arange(4))
        assert tokens.dtype == torch.int32 and tokens.shape == (4,)
        for found, token in zip(seen, tokens.tolist()):
            found.add(token)
    assert len(seen[0]) >= 4 and seen[1] == {2} and seen[2] == {2, 4} and seen[3] == {2, 4}
    assert takeover.counters()["sglang.sampler"] == takeover.Counts(60, 0, 0)


def test_min_p_that_sglang_does_not_need(call):
    probs, top_ks, top_ps, _ = batch()
    tokens = {int(call(probs, top_ks, top_ps, torch.ones(4), False, None, None)[3]) for _ in range(40)}
    assert len(tokens) > 1


def test_generator(call):
    torch.manual_seed(3)
    first = call(*batch(), True, None, None).tolist()
    torch.manual_seed(3)
    assert call(*batch(), True, None, None).tolist() == first


def test_what_falls_back(call):
    seeds = torch.arange(4)
    assert call(*batch(), True, seeds, torch.arange(4)).eq(-5).all()
    assert takeover.counters()["sglang.sampler"] == takeover.Counts(0, 1, 0)
    (off,) = sampler.hook(lambda: False).values()
    assert off(own, *batch(), True, None, None).eq(-5).all()
    assert takeover.counters()["sglang.sampler"] == takeover.Counts(0, 1, 1)


@pytest.mark.parametrize("denied", ["sampler", "sampling_from_probs"])
def test_denied(monkeypatch, denied):
    monkeypatch.setenv("AITER_LIKE_DISABLE", denied)
    assert sampler.hook(lambda: True) == {}
