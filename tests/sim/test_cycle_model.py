# SPDX-License-Identifier: MIT
"""The cycle model: known loops, more work never costs less, the same launch the same cycles, samples of large grids."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path

import pytest
import torch

import aiter_like
from aiter_like import cli, sim
from aiter_like.sim import modelling
from aiter_like.sim.validation import mca, page, parameters, run
from aiter_like.sim.validation.case import Chase, Slope
from aiter_like.sim.validation.cases import cases
from aiter_like.sim.validation.kernels import Kernel, arguments, code_object, name_of
from aiter_like.sim.validation.unpublished import all_cases

_VALU, _MFMA = "v_add_u32 v20, v21, v1", "v_mfma_f32_16x16x16_f16 a[0:3], v[2:3], v[4:5], a[0:3]"


def _clk(kernels: list[Kernel], loops: int = 16, groups: int = 1) -> list[float]:
    """Modelled cycles of each kernel, unrolled as it says."""
    code, buffer = code_object([(kernel, kernel.unroll) for kernel in kernels]), torch.zeros(1 << 21, dtype=torch.int32)
    place = buffer.data_ptr() + -buffer.data_ptr() % 4096
    found = []
    for index, kernel in enumerate(kernels):
        with sim.enabled(checks=False, model="whole") as session:
            sim.launch(code, name_of(index), (groups, 1, 1), (64 * kernel.waves, 1, 1), 0,
                       arguments(place, place, loops, 0))
        found.append(session.modelled[0]["modelled_clk"])
    return found


def test_public_latencies_issue_rates_and_lds_are_met():
    """… but for those of which the page says why not."""
    quick = [case for case in cases() if (isinstance(case, Slope) or (isinstance(case, Chase) and
                                                                      case.footprint <= 1 << 21))
             and not any(case.name.startswith(name) for name in page.known()["microbenchmarks"])]
    assert len(quick) > 25
    for outcome in run.outcomes(quick):
        assert abs(outcome.error) <= 0.05, f"{outcome.case.name}: {outcome.modelled} of {outcome.case.published}"


def test_small_workgroups_spread_over_the_simds_of_a_unit():
    """One of each is as fast as one alone, a second one of each shares its SIMD; so with three waves to a workgroup."""
    work = [Kernel("\n".join([_VALU] * 16))]
    alone = _clk(work, groups=304)[0]
    assert _clk(work, groups=4 * 304)[0] == pytest.approx(alone, rel=0.1)
    assert _clk(work, groups=8 * 304)[0] == pytest.approx(2 * alone, rel=0.15)
    three = [dataclasses.replace(work[0], waves=3)]
    assert _clk(three, groups=4 * 304)[0] == pytest.approx(3 * alone, rel=0.15)


@pytest.mark.exhaustive
def test_every_figure_is_as_the_page_says():
    """Also those that the model is known to miss. Where buffers lie moves some in the third digit."""
    _, kept = page.figures(page.kept())
    for outcome in run.outcomes(all_cases()):
        assert kept[outcome.case.name] == pytest.approx(outcome.modelled, rel=0.01, abs=0.0051), outcome.case.name


def test_every_miss_has_a_reason_and_every_reason_a_case():
    names = [case.name for case in cases()]
    for name in page.known()["microbenchmarks"]:
        assert any(one.startswith(name) for one in names), name
    assert "no explanation" not in page.kept()


def test_the_parameters_that_cases_name_are_the_model_s():
    known = parameters.values()
    for case in all_cases():
        assert set(case.parameters) <= set(known), case.name
    assert known["l1_latency_clk"] == 116 and known["channel_again_clk"] == 1.2 and known["fetch_ahead"] == 3


@pytest.mark.skipif(mca.tool() is None, reason="llvm-mca is not installed")
def test_straight_lines_agree_with_llvm_mca():
    """… except where it is known to be wrong; there the two must differ, or the reason is out of date."""
    for outcome, why in zip(run.outcomes(mca.slopes()), mca.BODIES.values(), strict=True):
        assert (abs(outcome.error) <= 0.05) == (not why), f"{outcome.case.name}: {outcome.modelled} clk, {why}"


def test_the_sums_of_the_first_page_are_those_of_the_others():
    first, kernels = ((page.folder() / name).read_text() for name in ("VALIDATION.md", page.FILES["kernels"]))
    sums = re.search(r"^\d+ of \d+ within .*$", page.kept(), re.MULTILINE).group()
    verdict = re.search(r"^\*\*(mean absolute error .*)\*\*$", kernels, re.MULTILINE).group(1)
    assert f"| {sums} |" in first and f"| {verdict} |" in first


def test_the_pages_are_of_this_model():
    text = page.kept()
    version, kept = page.figures(text)
    assert version == modelling.version()
    assert list(kept) == [case.name for case in all_cases()]
    errors = json.loads(Path(modelling.__file__).with_name("validation").joinpath(modelling.ERRORS).read_text())
    assert errors["model"] == version and set(errors["errors"]) == set(modelling.CLASSES)
    kernels = (page.folder() / page.FILES["kernels"]).read_text()
    told = ", ".join(f"{kind} {error:.1%}" for kind, error in errors["errors"].items())
    assert f"within which modelled times are a tie: {told}." in " ".join(kernels.split())
    for case in cases():
        assert f"| {case.name} | {case.source} | {case.published:g} {case.unit} |" in text
    for row in page.known()["elsewhere"]:
        assert f"| {row['what']} |" in text and f"| {row['published']} |" in text


MORE = {
    "instructions": [Kernel(_VALU, unroll=unroll) for unroll in (8, 16, 24, 32)],
    "dependent loads": [Kernel("global_load_dword v2, v2, s[4:5]\ns_waitcnt vmcnt(0)", "v_mov_b32 v2, 0", unroll=unroll)
                        for unroll in (1, 2, 4)],
    "earlier waits": [Kernel("global_load_dword v20, v2, s[4:5]\nglobal_load_dword v21, v2, s[4:5] offset:256\n"
                             f"s_waitcnt vmcnt({left})", "v_lshlrev_b32 v2, 2, v0") for left in (2, 1, 0)],
    "bank conflicts": [Kernel("ds_read_b32 v20, v5", f"v_mul_u32_u24 v5, {4 * stride}, v0\nv_and_b32 v5, 0x3fff, v5",
                              lds_bytes=16384, waves=8) for stride in (1, 2, 8, 32)],
    "bytes": [Kernel(f"global_load_dword{width} v[20:{20 + last}], v2, s[4:5]\nv_add_u32 v2, 0x10000, v2\n"
                     "v_and_b32 v2, 0x3fffff, v2", f"v_lshlrev_b32 v2, {shift}, v1", waves=8)
              for width, last, shift in (("", 0, 2), ("x2", 1, 3), ("x4", 3, 4))],
    "lines of memory": [Kernel("global_load_dword v20, v2, s[4:5]\nv_add_u32 v2, 0x10000, v2\n"
                               "v_and_b32 v2, 0x3fffff, v2", f"v_lshlrev_b32 v2, {shift}, v0") for shift in (2, 5, 7)],
    "dependent matrix operations": [Kernel(f"{_MFMA}\n{next_one}") for next_one in (
        _MFMA.replace("a[0:3]", "a[4:7]"), "v_mfma_f32_16x16x16_f16 a[4:7], a[0:1], v[4:5], a[4:7]")],
    "barriers": [Kernel(f"{_VALU}\n" + "s_barrier\n" * count, waves=4) for count in (0, 1, 2)],
    "wait states": [Kernel(f"{_VALU}\ns_nop {count}") for count in (0, 3, 7)],
    "atomics of one address": [Kernel("global_atomic_add v2, v1, s[4:5]\ns_waitcnt vmcnt(0)",
                                      f"v_and_b32 v2, {mask:#x}, v0\nv_lshlrev_b32 v2, 2, v2") for mask in (63, 7, 0)],
}


@pytest.mark.parametrize("kernels", MORE.values(), ids=MORE)
def test_more_never_costs_less(kernels):
    found = _clk(kernels)
    assert found == sorted(found) and found[-1] > found[0], found


def test_more_loops_and_workgroups_never_cost_less():
    kernel = Kernel(f"global_load_dwordx4 v[20:23], v2, s[4:5]\n{_MFMA}\ns_waitcnt vmcnt(0)", "v_lshlrev_b32 v2, 4, v1",
                    waves=4)
    by_loops = [_clk([kernel], loops)[0] for loops in (4, 8, 16)]
    assert by_loops == sorted(by_loops)
    by_groups = [_clk([kernel], 4, groups)[0] for groups in (1, 304, 4 * 304, 16 * 304)]
    assert by_groups == sorted(by_groups) and by_groups[-1] > 2 * by_groups[0]


def _rms_norm(**options) -> dict:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 1024, generator=generator).to(torch.bfloat16)
    with sim.enabled(checks=False, **options) as session:
        out = aiter_like.rms_norm(x, torch.ones(1024, dtype=torch.bfloat16), 1e-6, backend="hip")
    assert len(session.modelled) == 1
    return {**session.modelled[0], "out": out}


def test_the_same_launch_has_the_same_cycles_and_results():
    first, spare = _rms_norm(model="whole", threads=1), torch.empty(999_999)
    second = _rms_norm(model="whole", threads=2)
    x = torch.randn(512, 1024, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    plain = aiter_like.rms_norm(x, torch.ones(1024, dtype=torch.bfloat16), 1e-6, backend="hip")
    assert torch.equal(first["out"], plain) and torch.equal(second["out"], plain) and len(spare)
    assert first["recorded"] == second["recorded"] == first["workgroups_of_xcd"] == 64
    assert first["modelled_clk"] == second["modelled_clk"] and first["instructions"] == second["instructions"]


def test_a_sample_stands_for_the_whole_and_leaves_the_rest_undone():
    kernel = Kernel(f"{_MFMA}\n{_VALU}", waves=4)
    code, groups = code_object([(kernel, 16)]), 304 * 40
    with sim.enabled(checks=False, model="sample") as session:
        sim.launch(code, name_of(0), (groups, 1, 1), (256, 1, 1), 0, arguments(0, 0, 40, 0))
    (sample,), (counts,) = session.modelled, session.counters.values()
    assert counts["workgroups"] == sample["recorded"] < sample["workgroups_of_xcd"] == groups / 8
    # Matrix operations alone: 16 * 40 of 16 cycles, of 40 / 8 rounds of a SIMD's eight waves.
    alone = 40 * 16 * 40 * 16
    assert alone <= sample["modelled_clk"] < 1.15 * alone
    assert sample["busy"]["matrix"] > 0.85
    assert 0 < sample["sample_error"] < 0.05, "equal workgroups"


# Each workgroup has 256 KB of its own.
_ALONE = "s_lshl_b32 s11, s2, 18\ns_add_u32 s4, s4, s11\ns_addc_u32 s5, s5, 0\nv_lshlrev_b32 v2, 4, v1\n" \
         "v_mov_b32 v3, v2"
_LOAD = "global_load_dwordx4 v[20:23], v2, s[4:5]\nv_add_u32 v2, 0x1000, v2"
SAMPLED = {
    "one matrix workgroup on a CU": (Kernel(_MFMA, waves=4, lds_bytes=65536), 60),
    "two matrix workgroups on a CU": (Kernel(_MFMA, waves=4, lds_bytes=32768), 60),
    "memory": (Kernel(f"{_LOAD}\ns_waitcnt vmcnt(1)", _ALONE, waves=4, lds_bytes=32768), 8),
    # 48 KB, more than the L1 holds and less than a CU's share of the L2.
    "L2": (Kernel(f"{_LOAD}\nv_cmp_gt_u32 vcc, 0xc000, v2\nv_cndmask_b32 v2, v3, v2, vcc", _ALONE, waves=4,
                  lds_bytes=65536), 60),
}


@pytest.mark.parametrize("kernel, loops", SAMPLED.values(), ids=SAMPLED)
def test_a_sample_takes_as_long_as_all_whether_or_not_the_last_round_is_full(kernel, loops):
    code, buffer = code_object([(kernel, 8)]), torch.empty(600 << 20, dtype=torch.uint8)
    place = buffer.data_ptr() + -buffer.data_ptr() % 4096
    sampled = []
    for groups in (57, 76, 80, 115, 140, 190, 285):  # of an XCD, which has 38 CUs
        both: list[dict] = []
        for budget in (1000 * loops, 0):
            with sim.enabled(checks=False), modelling.modelled(both, sample=True, budget=budget):
                sim.launch(code, name_of(0), (8 * groups, 1, 1), (256, 1, 1), 0, arguments(place, place, loops, 0))
        sample, all_of_them = both
        assert sample["recorded"] < groups == all_of_them["recorded"]
        assert sample["modelled_clk"] == pytest.approx(all_of_them["modelled_clk"], rel=0.05), groups
        sampled.append(sample["modelled_clk"])
    for fewer, more in itertools.pairwise(sampled):
        assert more > 0.999 * fewer, sampled


def test_the_clock_turns_cycles_into_time():
    slow, fast = (_rms_norm(model="whole", clock_mhz=clock) for clock in (1050.0, 2100.0))
    assert fast["modelled_us"] == fast["modelled_clk"] / 2100
    # Memory is as fast in seconds, so it costs fewer cycles at a slow clock.
    assert slow["modelled_clk"] < fast["modelled_clk"] and slow["modelled_us"] > fast["modelled_us"]


@pytest.mark.parametrize("options, message", [
    ({"model": "all"}, "model must be 'whole', 'sample' or None"), ({"model": "whole", "clock_mhz": 2.1}, "clock_mhz")])
def test_mistakes(options, message):
    with pytest.raises(ValueError, match=message), sim.enabled(**options):
        pass


def test_one_model_at_a_time_and_none_without():
    with sim.enabled(checks=False, model="whole"):
        with pytest.raises(ValueError, match="cycle model is on already"), sim.enabled(model="sample"):
            pass
    with sim.enabled() as session, pytest.raises(ValueError, match=r'sim\.enabled\(model="whole"\)'):
        _ = session.modelled


def test_validate_prints_and_writes(tmp_path, capsys):
    page = tmp_path / "page.md"
    assert cli.main(["sim", "validate", "--only", "plain VALU", "--only", "latency of L1", "--page", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "2 of 2 within 5%" in printed and "no validation on whole kernels" in printed
    assert "| plain VALU | pyhip | 4.01 clk |" in page.read_text() and "not published" in page.read_text()
    assert cli.main(["sim", "validate", "--only", "plain VALU", "--page", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["MICROBENCHMARKS.md", "ONE_SIDE.md", "page.md"]
    assert cli.main(["sim", "validate", "--only", "nothing"]) == 1


def test_stalls_say_why():
    loads = Kernel("global_load_dword v2, v2, s[4:5]\ns_waitcnt vmcnt(0)", "v_mov_b32 v2, 0")
    code, buffer = code_object([(loads, 16), (Kernel(_MFMA), 16)]), torch.zeros(64, dtype=torch.int32)
    with sim.enabled(checks=False, model="whole") as session:
        for index in range(2):
            sim.launch(code, name_of(index), (1, 1, 1), (64, 1, 1), 0, arguments(buffer.data_ptr(), 0, 50, 0))
    memory, matrix = session.modelled

    def stalls(launch: dict, text: str) -> dict:
        return max((one["stall_clk"] for one in launch["instructions"] if one["text"].startswith(text)),
                   key=lambda clk: sum(clk.values()))

    assert set(stalls(memory, "s_waitcnt vmcnt(0)")) <= {"vmcnt", "fetch"} and "vmcnt" in stalls(memory, "s_waitcnt")
    assert "matrix pipe" in stalls(matrix, "v_mfma")
    assert "modelled" in modelling.summary(matrix)[0] and "vmcnt" in "\n".join(modelling.summary(memory))


def test_operators_take_as_long_wherever_their_tensors_lie_and_whoever_models_them(simulated):
    weight, memory = torch.ones(1024, dtype=torch.bfloat16), torch.ones(1 << 18, dtype=torch.bfloat16)
    first, times = -memory.data_ptr() % 4096 // 2, set()
    for place in (first, first + 32, first + 32 * 33):
        x = memory[place:place + 64 * 1024].view(64, 1024)
        with sim.enabled(checks=False, model="whole") as session:
            aiter_like.rms_norm(x, weight, 1e-6, backend="hip")
        inside: list[dict] = []
        with sim.enabled(checks=False), modelling.modelled(inside):
            aiter_like.rms_norm(x, weight, 1e-6, backend="hip")
        alone: list[dict] = []
        with modelling.modelled(alone):
            aiter_like.rms_norm(x, weight, 1e-6, backend="hip")
        times |= {launch["modelled_us"] for launch in (*session.modelled, *inside, *alone)}
    assert len(times) == 1, times
