# SPDX-License-Identifier: MIT
"""Fixtures that the tests of several adapters share."""

from __future__ import annotations

import logging
import sys
from types import ModuleType

import pytest
import torch

import aiter_like
from aiter_like import device
from aiter_like.integrations import takeover


@pytest.fixture
def fresh_takeover(monkeypatch, caplog):
    """No counters, denials or messages of other tests, before and after; messages from INFO on are kept."""
    monkeypatch.delenv("AITER_LIKE_DISABLE", raising=False)
    caplog.set_level(logging.INFO, "aiter_like")
    takeover.forget()
    yield
    takeover.forget()


@pytest.fixture
def in_torch():
    """What is put together is looked at; the kernels have tests of their own."""
    with aiter_like.use_backend("torch"):
        yield


@pytest.fixture
def fresh_dynamo():
    """Nothing that other tests compiled, before and after."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def asked(monkeypatch, request):
    """AITER_LIKE_BACKENDS asks for our kernels of products on the simulated MI300X, too."""
    monkeypatch.setenv("AITER_LIKE_BACKENDS", "hip,ck,triton")
    request.getfixturevalue("simulated")


@pytest.fixture
def module(monkeypatch):
    """Makes a module that an adapter reads: `module(path, **attributes)`."""

    def make(path: str, **attributes: object) -> ModuleType:
        made = ModuleType(path)
        vars(made).update(attributes)
        monkeypatch.setitem(sys.modules, path, made)
        return made

    return make


@pytest.fixture
def graphs():
    """A backend of torch.compile that runs graphs as they are, and has the nodes of each."""

    def keep(graph, _inputs):
        keep.nodes.append(list(graph.graph.nodes))
        return graph.forward

    keep.nodes = []
    keep.targets = lambda part: [[str(node.target) for node in nodes if part in str(node.target)]
                                 for nodes in keep.nodes]
    return keep


@pytest.fixture
def simulated_models():
    """Models on the CPU are served by the simulated MI300X; afterwards they and their files are transformers' again."""
    from aiter_like.integrations import transformers

    device.use_simulator(True)
    takeover.reset_counters()
    yield
    transformers.uninstall()
    device.reset()


@pytest.fixture
def calls(monkeypatch):
    """Keyword arguments of each call of flash_attn_func by a transformers model."""
    from aiter_like.integrations.transformers import attention as transformers_attention

    seen = []

    def spy(*args, **options):
        seen.append(options)
        return function(*args, **options)

    function = transformers_attention.flash_attn_func
    monkeypatch.setattr(transformers_attention, "flash_attn_func", spy)
    return seen
