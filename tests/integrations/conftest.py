# SPDX-License-Identifier: MIT
"""Fixtures that the tests of several adapters share."""

from __future__ import annotations

import logging

import pytest

from aiter_like.integrations import takeover


@pytest.fixture
def fresh_takeover(monkeypatch, caplog):
    """No counters, denials or messages of other tests, before and after; messages from INFO on are kept."""
    monkeypatch.delenv("AITER_LIKE_DISABLE", raising=False)
    caplog.set_level(logging.INFO, "aiter_like")
    takeover.forget()
    yield
    takeover.forget()
