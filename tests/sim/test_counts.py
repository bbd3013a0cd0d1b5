# SPDX-License-Identifier: MIT
"""Exact counts per instruction: lanes, segments of memory, bank conflicts, matrix operations, occupancy and its
limit.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from asm import run
from hip_program import code_object
from hip_runtime import runtime

import aiter_like
from aiter_like import cli, sim
from aiter_like.sim import counting
from aiter_like.sim.validation.kernels import Kernel, arguments, name_of
from aiter_like.sim.validation.kernels import code_object as code_object_of

_LANES = np.arange(64, dtype=np.uint32)
_WAIT = "\ns_waitcnt vmcnt(0) lgkmcnt(0)\ns_nop 7"


def _launch(body: str, inputs: dict | None = None, **options) -> dict:
    with sim.enabled(checks=False, counters=True) as session:
        run(body, inputs or {}, {}, **options)
    (launch,) = session.launches
    return launch


def _of(body: str, inputs: dict, **options) -> dict:
    """The counts of the body's first instruction, which the harness around it does not have."""
    launch = _launch(body + _WAIT, inputs, **options)
    (found,) = [one for one in launch["instructions"] if one["text"] == body]
    return found


@pytest.mark.parametrize("stride, clk", [(0, 2), (1, 2), (2, 4), (3, 2), (4, 8), (8, 16), (16, 32), (32, 64), (33, 2)])
def test_banks_of_dwords(stride, clk):
    """Two phases of 32 lanes."""
    for text in ("ds_read_b32 v2, v1", "ds_write_b32 v1, v3", "ds_add_u32 v1, v3"):
        counts = _of(text, {"v1": _LANES * 4 * stride, "v3": _LANES}, lds_bytes=65536)
        assert (counts["lds_clk"], counts.get("lds_conflict_clk", 0)) == (clk, clk - 2), text
        assert counts["lds_bytes"] == 256


def test_banks_of_wider_accesses():
    for text, bytes_, clk in (("ds_read_b64 v[2:3], v1", 8, 4), ("ds_read_b128 v[2:5], v1", 16, 8),
                              ("ds_write_b128 v1, v[2:5]", 16, 8), ("ds_read_u16 v2, v1", 2, 2)):
        counts = _of(text, {"v1": _LANES * bytes_}, lds_bytes=4096)
        assert (counts["lds_clk"], counts.get("lds_conflict_clk", 0)) == (clk, 0), text
    two = _of("ds_read2_b32 v[2:3], v1 offset1:64", {"v1": _LANES * 4}, lds_bytes=4096)
    assert two["lds_clk"] == 4 and two["lds_bytes"] == 512


def test_which_banks_are_busy():
    """Stride of 8 dwords: banks 0, 8, 16, 24; each is busy for 16 dwords, and all but one per phase are lost."""
    counts = _of("ds_read_b32 v2, v1", {"v1": _LANES * 32}, lds_bytes=4096)
    assert counts["lds_bank_clk"] == [16 if bank % 8 == 0 else 0 for bank in range(32)]
    assert counts["lds_bank_extra_clk"] == [14 if bank % 8 == 0 else 0 for bank in range(32)]
    even = _of("ds_write_b32 v1, v3", {"v1": _LANES * 4, "v3": _LANES}, lds_bytes=4096)
    assert even["lds_bank_clk"] == [2] * 32 and "lds_bank_extra_clk" not in even
    (same,) = {*_of("ds_read_b32 v2, v1", {"v1": _LANES * 0}, lds_bytes=4096)["lds_bank_clk"][1:]}  # one dword for all
    assert same == 0


def test_reads_and_writes_of_16_bytes_have_different_phases():
    """Lanes 4-7 lie in the banks of lanes 0-3: conflicts in a write's first phase, in none of a read's."""
    place = _LANES * 16
    place[4:8], place[16:20] = place[0:4] + 128, place[16:20] + 192
    read = _of("ds_read_b128 v[4:7], v1", {"v1": place}, lds_bytes=4096)
    write = _of("ds_write_b128 v1, v[4:7]", {"v1": place}, lds_bytes=4096)
    assert "lds_conflict_clk" not in read and write["lds_conflict_clk"] == 2


@pytest.mark.parametrize("offsets, text, asked, segments", [
    (_LANES * 4, "global_load_dword v2, v1, s[8:9]", 256, (4, 2)),
    (_LANES * 4, "global_load_dword v2, v1, s[8:9] offset:60", 256, (5, 3)),
    (_LANES * 16, "global_load_dwordx4 v[2:5], v1, s[8:9]", 1024, (16, 8)),
    (_LANES * 64, "global_load_ubyte v2, v1, s[8:9]", 64, (64, 32)),
    (_LANES * 128, "global_store_dword v1, v3, s[8:9]", 256, (64, 64)),
    (_LANES * 0, "global_load_dwordx2 v[2:3], v1, s[8:9]", 512, (1, 1)),
    (_LANES[::-1] * 4, "global_load_dword v2, v1, s[8:9]", 256, (4, 2)),
    (_LANES * 0, "s_load_dwordx8 s[16:23], s[8:9], 0x30", 32, (2, 1)),
])
def test_segments_of_memory(offsets, text, asked, segments):
    counts = _of(text, {"v1": offsets.astype(np.uint32)}, buffers={"s[8:9]": np.zeros(4096, np.uint32)})
    assert counts["global_bytes"] == asked
    assert (counts["segments_64"], counts["segments_128"]) == segments  # the copy is aligned to 128 bytes


def test_lanes_atomics_and_matrix_operations():
    launch = _launch("s_mov_b64 exec, 0xff\nv_add_u32 v2, v1, v1\nglobal_atomic_add v4, v1, s[8:9]\n"
                     "s_mov_b64 exec, -1\nv_mfma_f32_32x32x8_f16 a[0:15], v[2:3], v[2:3], 0\n"
                     f"v_mfma_i32_4x4x4_16b_i8 a[0:3], v2, v3, 0{_WAIT}",
                     {"v1": _LANES, "v4": _LANES // 4 * 4}, buffers={"s[8:9]": _LANES.copy()})
    by_text = {one["text"].split(" ")[0]: one for one in launch["instructions"]}
    assert by_text["v_add_u32_e32"]["active_lanes"] == 8
    atomic = by_text["global_atomic_add"]
    assert (atomic["atomic_lanes"], atomic["atomic_collisions"], atomic["global_bytes"]) == (8, 6, 32)
    wide, narrow = by_text["v_mfma_f32_32x32x8_f16"], by_text["v_mfma_i32_4x4x4_16b_i8"]
    assert (wide["flops"], wide["passes"], wide["type"]) == (2 * 32 * 32 * 8, 8, "f16")
    assert (narrow["flops"], narrow["passes"], narrow["type"]) == (2 * 4 * 4 * 4 * 16, 2, "i8")
    assert launch["totals"]["mfma_flops"] == {"f16": 16384, "i8": 2048} and launch["totals"]["mfma_passes"] == 10


def test_waits_barriers_and_straddling_instructions():
    launch = _launch("s_waitcnt vmcnt(3)\ns_waitcnt lgkmcnt(0)\ns_waitcnt vmcnt(0) lgkmcnt(1)\ns_barrier\n.p2align 3\n"
                     "s_nop 0\nv_add_u32 v1, 0x12345, v2\ns_nop 0\nv_add_u32 v1, 0x54321, v2",
                     {"v2": np.tile(_LANES, 2)}, waves=2)
    texts = {one["text"]: one for one in launch["instructions"]}
    assert texts["v_add_u32_e32 v1, 0x12345, v2"]["straddles"] == 1
    assert "straddles" not in texts["v_add_u32_e32 v1, 0x54321, v2"]
    assert launch["totals"]["barriers"] == 2
    assert texts["s_waitcnt vmcnt(3)"]["waits_vmcnt"] == 1 and "waits_lgkmcnt" not in texts["s_waitcnt vmcnt(3)"]
    assert texts["s_waitcnt vmcnt(0) lgkmcnt(1)"]["waits_lgkmcnt"] == 1
    assert launch["totals"]["waits"] == {
        counter: sum(one["executed"] for one in launch["instructions"] if f"waits_{counter}" in one)
        for counter in ("vmcnt", "lgkmcnt")}


_PROGRAM = """
extern "C" __global__ void grow(float* out, int n) {
  float mine[40];
  for (int i = 0; i < 40; ++i) mine[i] = out[i * 64 + thread_index() % 64];
  out[thread_index()] = mine[n % 40];
}
extern "C" __global__ void plain(float* out) { out[workgroup_index().x * 64 + thread_index() % 64] = 1; }
"""


def _program(kernel: str, groups: int, block: int, lds: int, *arguments: int, **options) -> dict:
    hip, out = runtime(), np.zeros(64 * 64, np.float32)
    with hip.module(code_object(_PROGRAM)) as module, hip.memory() as memory, \
            sim.enabled(checks=False, counters=True, **options) as session:
        hip.launch(module.function(kernel), groups, block, lds, (memory.upload(out), *arguments))
        (launch,) = session.launches
    return launch


@pytest.mark.parametrize("block, lds, groups, waves, limiter", [
    (256, 0, 8, 8, "waves"), (64, 0, 32, 8, "waves"), (128, 20000, 3, 2, "LDS"), (1024, 0, 2, 8, "waves"),
    (64, 4096, 16, 4, "LDS")])
def test_occupancy_and_its_limit(block, lds, groups, waves, limiter):
    occupancy = _program("plain", 4, block, lds)["occupancy"]
    assert (occupancy["workgroups_per_cu"], occupancy["waves_per_simd"]) == (groups, waves)
    assert occupancy["limiter"] == limiter
    assert occupancy["limits"]["waves"] == 32 * 64 // block


def test_scratch_and_source_lines():
    launch = _program("grow", 1, 64, 0, 5)
    assert launch["totals"]["scratch_bytes"] >= 64 * 4 * 2 and launch["private_bytes"] >= 160
    assert sum(line["executed"] for line in launch["lines"].values()) == launch["totals"]["executed"]


def test_threads_do_not_change_counts_and_classes_agree():
    one, two = (_program("plain", 64, 64, 0, threads=threads) for threads in (1, 2))
    assert one["instructions"] == two["instructions"] and one["workgroups"] == two["workgroups"] == 64
    with sim.enabled(checks=False, counters=True) as session:
        run("v_mov_b32 v1, 0\ns_nop 0", {"v0": np.zeros((5, 64), np.uint32)})
    (counters,), (launch,) = session.counters.values(), session.launches
    assert {kind: count for kind, count in counters["by_class"].items() if count} == launch["totals"]["by_class"]
    assert counters["waves"] == launch["waves"] == 5


def test_checkers_and_nested_sessions_count_too():
    x, weight = torch.randn(4, 256).to(torch.bfloat16), torch.ones(256, dtype=torch.bfloat16)
    with sim.enabled(counters=True) as outer:
        aiter_like.rms_norm(x, weight, 1e-6)
        with sim.enabled(counters=True) as inner:
            aiter_like.rms_norm(x, weight, 1e-6)
        assert len(inner.launches) == 1
        with sim.enabled():
            aiter_like.rms_norm(x, weight, 1e-6)
    by_class = inner.launches[0]["totals"]["by_class"]  # segments depend on where the output happens to lie
    assert [launch["totals"]["by_class"] for launch in outer.launches] == [by_class] * 3
    assert inner.launches[0]["schema"] == counting.SCHEMA
    json.dumps(outer.launches)


def test_a_sample_of_the_workgroups():
    """Twice the same one, another one of the next launch; what is left out leaves no trace in memory."""
    code = code_object_of([(Kernel("global_store_dword v2, v3, s[6:7]", "s_lshl_b32 s11, s2, 2\nv_mov_b32 v2, s11\n"
                                   "v_mov_b32 v3, 1"), 1)])

    def ran(**options) -> tuple[list[dict], list[int]]:
        launches, found = [], []
        with sim.enabled(checks=False), counting.counted(launches, **options):
            for _ in range(2):
                buffer = torch.zeros(64, dtype=torch.int32)
                sim.launch(code, name_of(0), (64, 1, 1), (64, 1, 1), 0, arguments(0, buffer.data_ptr(), 1, 0))
                found.append(buffer.nonzero().flatten().tolist())
        return launches, found

    whole, everyone = ran()
    assert everyone == [list(range(64))] * 2 and [launch["workgroups"] for launch in whole] == [64, 64]
    sampled, places = ran(sample=8, leaves_out=True)
    assert [len(one) for one in places] == [8, 8] and places[0] != places[1]
    assert min(places[0]) < 8 and max(places[0]) >= 56, "spread over the grid"
    assert ran(sample=8, leaves_out=True)[1] == places and ran(sample=64, leaves_out=True)[1] == everyone
    watched, others = ran(sample=8)
    assert others == everyone and [one["totals"] for one in watched] == [one["totals"] for one in sampled]
    assert 8 * sampled[0]["totals"]["executed"] == whole[0]["totals"]["executed"]
    with sim.enabled(checks=False, counters=True), pytest.raises(ValueError, match="are counted already"):
        ran(sample=8)


def test_code_is_told_apart():
    one, same, other = (code_object_of([(Kernel(f"v_add_u32 v2, {number}, v1"), 4)]) for number in (1, 1, 2))

    def hashed(code: bytes) -> int:
        with sim.enabled(checks=False, counters=True) as session:
            sim.launch(code, name_of(0), (1, 1, 1), (64, 1, 1), 0, arguments(0, 0, 1, 0))
        return session.launches[0]["code"]

    assert hashed(one) == hashed(same) != hashed(other)


def test_a_session_that_does_not_count_says_so():
    with sim.enabled() as session, pytest.raises(ValueError, match=r"sim\.enabled\(counters=True\)"):
        _ = session.launches


def test_explain_counts(capsys):
    arguments = ["explain", "rms_norm", "input=bf16[4,256]", "weight=bf16[256]", "epsilon=1e-6", "--device", "cpu"]
    assert cli.main([*arguments, "--counts"]) == 0
    printed = capsys.readouterr().out
    assert "rms_norm" in printed and "occupancy: " in printed and "limited by " in printed


def test_the_fixture(sim_counts):
    x, weight = torch.randn(4, 256).to(torch.bfloat16), torch.ones(256, dtype=torch.bfloat16)
    assert not sim_counts()
    for calls in (1, 2):
        aiter_like.rms_norm(x, weight, 1e-6, backend="hip")
        assert len(sim_counts()) == calls
    assert sim_counts()[0]["totals"]["lds_conflict_clk"] == 0


def test_modelled_time_does_not_depend_on_the_hosts_memory():
    """Lines and channels are those of the device's pages, wherever torch has put a tensor, counted or not."""
    found, kept = [], []
    for shift in (64, 5_000_192, 832):
        kept.append(torch.empty(shift, dtype=torch.uint8))
        torch.manual_seed(0)
        x, weight = torch.randn(64, 4100).bfloat16(), torch.randn(4100).bfloat16()
        for counters in (False, True):
            with sim.enabled(checks=False, model="whole", counters=counters) as session:
                aiter_like.rms_norm(x, weight, 1e-6)
            found.append([one["modelled_clk"] for one in session.modelled])
    assert len(found) == 6 and all(one == found[0] for one in found)
