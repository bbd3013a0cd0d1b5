# SPDX-License-Identifier: MIT
"""`aiter-like sim profile`: text, page, JSON, trace, comparison."""

from __future__ import annotations

import json
import re

import pytest

from aiter_like import cli
from aiter_like.sim import profiling

_CALL = ["rms_norm", "input=bf16[64,1024]", "weight=bf16[1024]", "epsilon=1e-6"]
_SCRIPT = """
import sys, torch, aiter_like
x = torch.randn(8, int(sys.argv[1])).to(torch.bfloat16)
out = aiter_like.rms_norm(x, torch.ones(x.shape[1], dtype=torch.bfloat16), 1e-6)
assert (out.float().pow(2).mean(1) - 1).abs().max() < 0.05
sys.exit("the end")
"""


@pytest.fixture
def profile(tmp_path, capsys):
    """profile(*words): (exit status, stdout and stderr, profiles)."""

    def call(*words: str) -> tuple[int, str, list[dict]]:
        file = tmp_path / "profiles.json"
        status = cli.main(["sim", "profile", "--json", str(file), *words])
        return status, "".join(capsys.readouterr()), json.loads(file.read_text())

    return call


def test_a_function(profile, tmp_path):
    page, trace = tmp_path / "page.html", tmp_path / "trace.json"
    status, out, (one,) = profile("--page", str(page), "--trace", str(trace), *_CALL)
    assert status == 0
    for phrase in ("bound (modelled): ", "modelled share of the waves' time, by line:", "occupancy: 8 waves per SIMD",
                   "csrc/"):
        assert phrase in out
    assert one["schema"] == profiling.SCHEMA and one["modelled_clk"] > 1000 and one["bound"] in out
    assert sum(line["executed"] for line in one["instructions"]) == one["counts"]["executed"]
    assert sum(line["issued"] for line in one["instructions"]) == one["replayed_instructions"]

    text = page.read_text()
    assert not re.search(r'(src|href)="|@import|url\(|https?://', text)          # one file, nothing else is loaded
    data = json.loads(re.search(r'type="application/json">(.*?)</script>', text, re.DOTALL).group(1))
    assert data["profiles"] == [one]
    source = next(line["source"] for line in one["instructions"] if line["source"])
    assert data["sources"][source.rpartition(":")[0]]

    events = json.loads(trace.read_text())["traceEvents"]
    issues = [event for event in events if event["cat"] == "issue"]
    assert 0 < len(issues) == len(one["timeline"]) <= profiling.TIMELINE
    assert {event["name"] for event in issues} <= {line["text"] for line in one["instructions"]}


def test_waves_do_one_thing_at_a_time(profile):
    """In the timeline: a wave waits, issues, and then the next instruction is its."""
    _, _, (one,) = profile(*_CALL)
    last: dict[int, int] = {}
    for wave, simd, place, why, since, at, until in one["timeline"]:
        assert since <= at <= until and 0 <= simd < 4 and 0 <= place < len(one["instructions"])
        assert bool(why) == (since < at) or abs(at - since) <= 1
        assert since >= last.get(wave, since)
        last[wave] = since


def test_a_comparison(profile, tmp_path, capsys):
    before = tmp_path / "before.json"
    assert cli.main(["sim", "profile", "--json", str(before), *_CALL]) == 0
    capsys.readouterr()
    wide = [word.replace("1024", "4096") for word in _CALL]
    status, out, _ = profile("--compare", str(before), *wide)
    row = next(line for line in out.splitlines() if line.startswith("modelled clk"))
    assert status == 0 and "modelled, not measured" in out and re.search(r"\+\d+\.\d%$", row)
    before.write_text("[]")
    assert cli.main(["sim", "profile", "--compare", str(before), *_CALL]) == 1
    assert "holds no profiles" in capsys.readouterr().err


def test_a_script(profile, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    status, out, found = profile("--whole", str(script), "512")
    assert status == 0 and len(found) == 1 and found[0]["recorded"] == found[0]["workgroups_of_xcd"], out
    assert "ended with the end" in out


@pytest.mark.parametrize("words, message", [
    (["rms_nrm", "input=bf16[1,1]"], "did you mean rms_norm"), (["nowhere.py"], "no such file"),
    (["rms_norm", "input"], "an argument must be name=value")])
def test_mistakes(words, message, capsys):
    assert cli.main(["sim", "profile", *words]) == 1
    assert message in capsys.readouterr().err
