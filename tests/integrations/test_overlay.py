# SPDX-License-Identifier: MIT
"""The overlay of an installed `aiter`: ours first in every module that holds a name, the recorded originals behind."""

import importlib
import inspect
import logging
import sys

import fake_aiter
import pytest
import torch

import aiter_like
from aiter_like import integrations
from aiter_like.errors import UnsupportedError
from aiter_like.integrations import takeover
from aiter_like.integrations.aiter import overlay, shim
from aiter_like.integrations.takeover import Counts

BF16 = torch.bfloat16


def forget_aiter():
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiter"]:
        del sys.modules[name]


@pytest.fixture
def aiter(monkeypatch, tmp_path, caplog):
    """The fake package, importable; the overlay is undone and the package forgotten after the test."""
    monkeypatch.delenv("AITER_LIKE_DISABLE", raising=False)
    monkeypatch.syspath_prepend(str(fake_aiter.write(tmp_path)))
    caplog.set_level(logging.INFO, "aiter_like")
    forget_aiter()
    yield importlib.import_module("aiter")
    overlay.uninstall()
    takeover.forget()
    forget_aiter()


def norm_case(dtype=BF16):
    torch.manual_seed(0)
    return torch.randn(3, 64, dtype=dtype), torch.rand(64, dtype=dtype)


def test_every_module_has_ours_and_uninstall_gives_all_back(aiter):
    unified = importlib.import_module("aiter.ops.triton.attention.unified_attention")
    holders = [(aiter, "rms_norm"), (aiter.ops.rmsnorm, "rms_norm"), (aiter, "silu_and_mul"),
               (aiter.ops.activation, "silu_and_mul"), (unified, "unified_attention")]
    originals = [getattr(holder, name) for holder, name in holders]
    overlay.install()
    for (holder, name), original in zip(holders, originals):
        assert getattr(holder, name) is not original, name
        assert inspect.signature(getattr(holder, name)) == inspect.signature(original)
    assert aiter.rms_norm is aiter.ops.rmsnorm.rms_norm
    assert importlib.import_module("aiter.ops.triton.unified_attention").unified_attention is unified.unified_attention
    overlay.uninstall()
    assert [getattr(holder, name) for holder, name in holders] == originals


def test_an_import_inside_a_function_gets_ours(aiter):
    """As vLLM does it: the name is looked up at each call."""

    def engine(x, weight):
        from aiter import rms_norm

        return rms_norm(x, weight, 1e-6)

    x, weight = norm_case()
    overlay.install()
    out = engine(x, weight)
    assert aiter.calls == [] and takeover.counters()["aiter.rms_norm"] == Counts(1, 0)
    torch.testing.assert_close(out, aiter_like.rms_norm(x, weight, 1e-6), rtol=0, atol=0)


def test_a_refused_call_is_the_originals_told_once_and_right(aiter, caplog):
    x, weight = norm_case(torch.float64)
    expected = aiter.rms_norm(x, weight, 1e-6)
    aiter.calls.clear()
    overlay.install()
    caplog.clear()
    for _ in range(3):
        torch.testing.assert_close(aiter.rms_norm(x, weight, 1e-6), expected, rtol=0, atol=0)
    assert aiter.calls == ["rms_norm"] * 3 and takeover.counters()["aiter.rms_norm"] == Counts(0, 3)
    assert len(caplog.messages) == 1 and "aiter.rms_norm falls back" in caplog.text and "float64" in caplog.text


def test_a_newer_keyword_goes_to_the_original(aiter):
    x = torch.randn(2, 32).to(BF16)
    ours, theirs = torch.empty(2, 16, dtype=BF16), torch.empty(2, 16, dtype=BF16)
    overlay.install()
    aiter.silu_and_mul(ours, x, 0.0)
    assert aiter.calls == []
    aiter.silu_and_mul(theirs, x, newer=1)
    assert aiter.calls == ["silu_and_mul"]
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-2)


def test_names_with_another_signature_and_missing_ones_stay(aiter):
    stay = [(aiter, "gelu_and_mul"), (aiter, "rmsnorm"), (aiter, "gemm_a8w8")]
    originals = [getattr(holder, name) for holder, name in stay]
    overlay.install()
    assert [getattr(holder, name) for holder, name in stay] == originals
    assert aiter.gemm_a8w8(1, 2, 3, 4) == "original"
    assert "aiter.gelu_and_mul" not in takeover.counters()


def test_denied_names_stay(aiter, monkeypatch):
    original = aiter.rms_norm
    monkeypatch.setenv("AITER_LIKE_DISABLE", "rms_norm")
    overlay.install()
    assert aiter.rms_norm is original and aiter.silu_and_mul.__wrapped__ is not None
    assert takeover.denied() == ("aiter.rms_norm",)


def test_one_line_names_all_that_is_taken(aiter, caplog):
    overlay.install()
    assert caplog.messages == ["aiter: 3 names taken: rms_norm, silu_and_mul, unified_attention"]


def test_install_with_the_switch(aiter, monkeypatch):
    monkeypatch.setenv("AITER_LIKE", "1")
    monkeypatch.setattr(integrations, "_ADAPTERS", {"aiter": "aiter.overlay"})
    original = aiter.rms_norm
    assert integrations.install() and aiter.rms_norm is not original
    assert integrations.status().engines == {"aiter": "on"} and "aiter.rms_norm" in integrations.status().taken
    integrations.uninstall()
    assert aiter.rms_norm is original


def test_torch_operators_are_taken_where_the_table_names_them(aiter, monkeypatch):
    library = torch.library.Library("aiter", "FRAGMENT")
    library.define("taken_by_a_test(Tensor x, float scale=1.) -> Tensor")
    library.impl("taken_by_a_test", lambda x, scale=1.0: x * 0, "CompositeExplicitAutograd")
    original = torch.ops.aiter.taken_by_a_test
    row = overlay.aiter_names.Name("taken_by_a_test", ("torch.ops.aiter",), "rms_norm", "V", False, "norm")
    row.__dict__["value"] = lambda x, scale=1.0: x * 2 * scale
    monkeypatch.setattr(overlay.aiter_names, "table", lambda: (row,))
    overlay.install()
    assert torch.equal(torch.ops.aiter.taken_by_a_test(torch.ones(2)), 2 * torch.ones(2))
    overlay.uninstall()
    assert torch.ops.aiter.taken_by_a_test is original


def test_another_package_of_that_name_is_told(monkeypatch, tmp_path):
    (tmp_path / "aiter").mkdir()
    (tmp_path / "aiter" / "__init__.py").write_text("def islice(iterable): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    forget_aiter()
    try:
        with pytest.raises(UnsupportedError, match="none of AITER's names"):
            overlay.install()
    finally:
        forget_aiter()


def test_the_shim_is_left_alone(monkeypatch):
    monkeypatch.setenv("AITER_LIKE", "1")
    monkeypatch.syspath_prepend(str(shim.PATH))
    forget_aiter()
    try:
        module = importlib.import_module("aiter")
        before = dict(vars(module))
        overlay.install()
        assert vars(module) == before
    finally:
        forget_aiter()
        takeover.forget()
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, shim._Finder)]
