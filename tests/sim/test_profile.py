# SPDX-License-Identifier: MIT
"""`aiter-like sim profile`: its targets, text, JSON, Chrome trace, mistakes; the figures of a whole launch."""

import json

import pytest

from aiter_like import cli
from aiter_like.sim import profiling
from aiter_like.sim.profiling import figures

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
    trace = tmp_path / "trace.json"
    status, out, (one,) = profile("--trace", str(trace), *_CALL)
    assert status == 0
    for phrase in ("modelled, not measured", "bound  ", "units busy  ", "waves wait  ",
                   "occupancy   8 of 8 waves per SIMD", "coalescing  ",
                   "share of the waves' time, modelled, by line:", "csrc/"):
        assert phrase in out
    assert max(map(len, out.splitlines())) <= 120 and len(out.splitlines()) < 30
    assert out.count("Body::run(args);") < 2  # the call of all of them tells no line from another
    assert one["schema"] == profiling.SCHEMA and one["modelled_clk"] > 1000 and one["bound"] in out
    assert sum(line["executed"] for line in one["instructions"]) == one["counts"]["executed"]
    assert sum(line["issued"] for line in one["instructions"]) == one["replayed_instructions"]
    for key, value in one["traffic"].items():
        assert value == sum(line.get("traffic", {}).get(key, 0) for line in one["instructions"])
    assert one["lines"][next(line["source"] for line in one["instructions"] if line["source"])]

    events = json.loads(trace.read_text())["traceEvents"]
    issues = [event for event in events if event["cat"] == "issue"]
    assert 0 < len(issues) == len(one["timeline"]["events"]) <= profiling.TIMELINE
    assert {event["name"] for event in issues} <= {line["text"] for line in one["instructions"]}


def test_the_same_call_has_the_same_profile(profile):
    first, second = (profile(*_CALL)[2] for _ in range(2))
    assert first == second


def test_figures_of_the_whole_launch(profile):
    """Each row is read and written once; the weight comes from caches. What the operator needs at least is known."""
    _, out, (one,) = profile(*_CALL)
    rows, once = 64, 2 * 1024
    assert one["call"] == {"operator": "rms_norm", "bytes": 2 * rows * once + once, "flops": 0, "launches": 1}
    levels = {level["name"]: level for level in one["figures"]["levels"]}
    assert levels["L1"]["bytes"] == rows * 3 * once  # input, weight, out
    assert 1 <= levels["HBM"]["bytes"] / one["call"]["bytes"] < 1.2 and "that rms_norm needs" in out
    assert one["figures"]["moved_bytes"] == levels["HBM"]["bytes"] <= levels["MALL"]["bytes"] <= levels["L2"]["bytes"]
    assert one["figures"]["flop"].keys() == {"vector"}
    # Square and sum, two products; and what each lane does for the sum and the root.
    assert 4 * rows * 1024 < one["figures"]["flop"]["vector"] < 12 * rows * 1024
    assert levels["scalar L1"]["share"] is None
    for level in (level for name, level in levels.items() if name != "scalar L1"):
        roof = next(roof["per_second"] for roof in one["roofs"] if roof["name"] == level["name"])
        assert level["share"] == pytest.approx(level["bytes_per_s"] / roof) and 0 <= level["share"] <= 1.01


def test_arguments_in_memory_are_scalar_lines(profile):
    """With a residual there are more than can be preloaded."""
    matrices = [f"{name}=bf16[64,1024]" for name in ("out", "input", "residual_in", "residual_out")]
    _, _, (one,) = profile("rmsnorm2d_fwd_with_add", *matrices, *_CALL[2:])
    assert next(level["lines"] for level in one["figures"]["levels"] if level["name"] == "scalar L1") > 0


@pytest.mark.parametrize("text, count", [
    ("v_add_f32_e32 v0, v1, v2", 1), ("v_fma_f32 v0, v1, v2, v3", 2), ("v_pk_fma_f32 v[0:1], v[2:3], v[4:5]", 4),
    ("v_fmac_f32_e32 v0, v1, v2", 2), ("v_exp_f32_e32 v0, v1", 1), ("v_pk_mul_f16 v0, v1, v2", 2),
    ("v_dot2_f32_f16 v0, v1, v2, v3", 4), ("v_add_u32_e32 v0, v1, v2", 0), ("v_max_f32_e32 v0, v1, v2", 0),
    ("v_mul_lo_u32 v0, v1, v2", 0), ("v_cvt_f32_f16_e32 v0, v1", 0), ("v_fma_mix_f32 v0, v1, v2, v3", 2)])
def test_arithmetic_of_a_lane(text, count):
    assert figures.lane_flop(text) == count


def test_waves_do_one_thing_at_a_time(profile):
    """In the timeline: a wave waits, issues, and then the next instruction is its; a slot has one wave at a time."""
    _, _, (one,) = profile(*_CALL)
    last: dict[int, int] = {}
    waves = {wave[0]: wave[1:] for wave in one["timeline"]["waves"]}
    for wave, place, why, since, at, until, unit_from, unit_until, done in one["timeline"]["events"]:
        assert since <= at <= until and at <= unit_from <= unit_until and 0 <= place < len(one["instructions"])
        assert bool(why) == (since < at) or abs(at - since) <= 1
        assert since >= last.get(wave, since) and (done is None or done > at)
        last[wave] = since
    slots: dict[tuple, int] = {}
    for simd, slot, _, begin, end in waves.values():
        assert 0 <= simd < 4 and 0 <= slot < 8 and slots.get((simd, slot), begin) <= begin <= end
        slots[simd, slot] = end
    assert last.keys() <= waves.keys()


def test_a_script(profile, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    status, out, found = profile("--whole", str(script), "512")
    assert status == 0 and len(found) == 1 and found[0]["recorded"] == found[0]["workgroups_of_xcd"], out
    assert "ended with the end" in out
