# SPDX-License-Identifier: MIT
"""Static gates of flash_attn_fwd on gfx942, for two compilers, and the arithmetic of its plan. A compiler that is not
installed is a failure: .ci/setup.sh brings both.
"""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from pathlib import Path

import pytest

from aiter_like import paths
from aiter_like.ops.attention_plan import packed_heads, split_keys

sys.path.append(str(Path(__file__).parent / "sim"))
import attention_gates as gates
import hip_program

PLAN = """
#include "{plan}"
extern "C" void plan(int query_blocks, int key_blocks, int num_cus, int num_splits, int* result) {{
  const KeySplit split = KeySplit::plan(query_blocks, key_blocks, num_cus, num_splits);
  result[0] = split.whole;
  result[1] = split.parts;
}}
extern "C" int pack(int group, int length, int total, int block) {{ return packed_heads(group, length, total, block); }}
extern "C" int order(int id, int count, int chunk) {{ return xcd_order(id, count, chunk); }}
"""


@functools.cache
def plan() -> ctypes.CDLL:
    return hip_program.library(PLAN.format(plan=paths.csrc() / "attention/flash_attn_plan.h"))


def names(every: bool) -> set[str]:
    return {instance.name for instance in gates.instances(every)}


@pytest.mark.parametrize("compiler", gates.COMPILERS)
@pytest.mark.parametrize("instance", gates.instances(False), ids=lambda instance: instance.name)
def test_bounds_hold(instance, compiler):
    report = gates.examine(instance, compiler)
    assert not report.failures
    assert not gates.regressions(report.values, gates.recorded().get((instance.name, compiler)))


@pytest.mark.parametrize("instance", gates.instances(False), ids=lambda instance: instance.name)
def test_bounds_hold_for_the_compiler_of_rocm(instance):
    if reason := gates.missing(gates.ROCM):
        pytest.skip(f"ROCm's compiler: {reason}")
    assert not gates.examine(instance, gates.ROCM).failures


@pytest.mark.parametrize("name", (*gates.COMPILERS, gates.ROCM))
def test_a_missing_compiler_is_known(monkeypatch, tmp_path, name):
    """A failure for the two that CI brings, a reason to skip for ROCm's; one that is there is used."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "opt"))
    assert gates.missing(name)
    with pytest.raises(FileNotFoundError, match=re.escape(f"{name} is needed")):
        gates.assembly(gates.instances(False)[0], name)
    program = tmp_path / name
    version = "clang version 22.1" if "clang" in name else "HIP version: 7.1\nInstalledDir: /opt/llvm"
    program.write_text(f"#!/bin/sh\necho '{version}'\n")
    program.chmod(0o755)
    assert gates.missing(name) is None


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiler", gates.COMPILERS)
@pytest.mark.parametrize("instance", [instance for instance in gates.instances(True)
                                      if instance.name not in names(False)], ids=lambda instance: instance.name)
def test_bounds_hold_for_the_rest(instance, compiler):
    test_bounds_hold(instance, compiler)


def test_every_instance_has_a_row():
    assert {*gates.recorded()} == {(name, compiler) for name in names(True) for compiler in gates.COMPILERS}


@functools.cache
def sample() -> tuple[gates.Instance, str]:
    instance = gates.variant(gates.VARIANTS[0][0], 64, 0, "none")
    return instance, gates.assembly(instance, gates.COMPILERS[1])


@pytest.mark.parametrize(("pattern", "replacement", "failure"), [
    (r"flash_attn_fwd_kernel(\w*:)", r"flash_attn_fwd_other\1", "no flash_attn_fwd_kernel"),
    (r"\tv_mfma_f32.*\n", "", "0 loops, expected 1"),
    (r"(\ts_setprio 1\n)", r"\1\tv_mov_b32_e32 v0, v1\n", "1 of v_mov in the loop, expected 0"),
    (r"(\ts_setprio 1\n)", r"\1\tscratch_load_dword v0, off, s0\n", "1 of scratch_ in the loop, expected 0"),
    (r"(\ts_setprio 1\n)", r"\1\ts_waitcnt vmcnt(3)\n", "2 of s_waitcnt.*vmcnt in the loop, expected 1"),
    (r"(\ts_setprio 1\n)", r"\1" + "\tv_mfma_f32_16x16x16_bf16 v[0:3], v[0:1], v[0:1], v[0:3]\n" * 20, "148 of v_mfma"),
    (r"(\ts_setprio 1\n)", r"\1" + "\tv_add_f32_e32 v0, v0, v0\n" * 80, "cycles, at most 595"),
    (r"(\.vgpr_count: +)\d+", r"\g<1>226", "226 VGPRs, at most 224"),
    (r"(\.vgpr_spill_count: +)\d+", r"\g<1>2", "vgpr_spill_count 2"),
    (r"(\.group_segment_fixed_size: +)\d+", r"\g<1>32772", "32772 bytes of LDS"),
])
def test_a_worse_kernel_fails(monkeypatch, pattern, replacement, failure):
    instance, text = sample()
    worse = re.sub(pattern, replacement, text)
    assert worse != text
    monkeypatch.setattr(gates, "assembly", lambda *_: worse)
    try:
        found = gates.examine(instance, gates.COMPILERS[1]).failures
    except ValueError as error:
        found = [str(error)]
    assert any(failure in text for text in found), found


@pytest.mark.parametrize(("mask", "kernels"), [("none", 2), ("right", 1), ("both", 1)])
def test_only_calls_without_a_mask_merge(mask, kernels):
    text = gates.assembly(gates.variant(gates.VARIANTS[1][0], 64, 1, mask), gates.COMPILERS[1])
    assert text.count(".amdhsa_kernel ") == kernels


def test_a_slower_phase_is_a_regression():
    row = {"matrix_cycles": "500", "softmax_cycles": "300"}
    assert not gates.regressions({"matrix_cycles": 510, "softmax_cycles": 306}, row)
    assert gates.regressions({"matrix_cycles": 511, "softmax_cycles": 300}, row) == ["matrix_cycles 511, recorded 500"]
    assert "no row" in gates.regressions({}, None)[0]


def test_plan_is_that_of_python():
    """The workspace is sized in Python, split in C++."""
    found = (ctypes.c_int * 2)()
    for num_cus in (304, 228, 38):
        for query_blocks in (*range(1, 40), 144, 288, 289, 303, 304, 305, 448, 592, 1056, 2064, 5000):
            for key_blocks in (0, 1, 47, 48, 49, 100, 128, 256, 1344):
                for num_splits in (0, 2, 5):
                    plan().plan(query_blocks, key_blocks, num_cus, num_splits, found)
                    whole, _, parts = split_keys(query_blocks, key_blocks, num_cus, num_splits)
                    assert (found[0], found[1]) == (whole, parts), (query_blocks, key_blocks, num_cus, num_splits)


def test_packing_is_that_of_python():
    """All heads of a group, or none; and rows of many sequences stay countable."""
    for block in (384, 512):
        for group in (1, 3, 8, 64, 513):
            for length in (0, 1, 6, 47, 48, 64, 65, 128, 129, 384, 385, 512, 513):
                packed = plan().pack(group, length, length, block)
                assert packed == packed_heads(group, length, block) == (group if group * length <= block else 1)
    assert [plan().pack(8, 1, total, 512) for total in (2**27 - 1, 2**27)] == [8, 1]


@pytest.mark.parametrize(("batch", "heads", "length", "parts"), [
    (2, 24, 8192, 2), (4, 16, 16384, 19), (2, 24, 16384, 1)])
def test_plans_by_hand(batch, heads, length, parts):
    """Tails of 144, 16 and 240 query blocks on 304 CUs; the last one would need more than two parts per CU."""
    assert split_keys(-(-length // 384) * batch * heads, length // 64, 304).parts == parts


def test_order_is_a_bijection_that_keeps_chunks_on_an_xcd():
    order = plan().order
    for chunk in (1, 2, 7, 22, 100):
        for count in (1, 7, 8, 9, 63, 64, 8 * chunk, 8 * chunk + 5, 24 * chunk + 17):
            places = [order(index, count, chunk) for index in range(count)]
            assert sorted(places) == list(range(count))
            for index in range(count // (8 * chunk) * 8 * chunk):
                assert places[index] // chunk % 8 == index % 8  # the hardware deals ids round-robin to 8 XCDs
