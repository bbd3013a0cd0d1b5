# SPDX-License-Identifier: MIT
"""Static gates of flash_attn_fwd on gfx942, for two compilers, and the arithmetic of its plan. A compiler that is not
installed is a failure: .ci/setup.sh brings both.
"""

from __future__ import annotations

import ctypes
import functools
import heapq
import itertools
import re
from typing import NamedTuple

import attention_gates as gates
import hip_program
import numpy as np
import pytest

from aiter_like import paths

pytestmark = pytest.mark.rotating

PLAN = """
#include "{plan}"
extern "C" void plan(int query_blocks, int key_blocks, int num_cus, int num_splits, int* result) {{
  const KeySplit split = KeySplit::plan(query_blocks, key_blocks, num_cus, num_splits);
  result[0] = split.whole;
  result[1] = split.parts;
}}
extern "C" void plan_causal(const CausalLaunch* launch, int num_cus, int num_splits, int* result) {{
  const KeySplit split = KeySplit::plan(*launch, num_cus, num_splits);
  result[0] = split.whole;
  result[1] = split.parts;
}}
extern "C" int seen(const CausalLaunch* launch, int slot) {{ return launch->seen_blocks(slot); }}
extern "C" int band(int slots, int columns, int group, int num_cus) {{
  return band_columns(slots, columns, group, num_cus);
}}
__global__ void place_kernel(LongestFirst order, int group, int* result) {{
  const int id = static_cast<int>(workgroup_index().x);
  const LongestFirst::Place place = order.at(id, group);
  const int first = place.tail < 0 ? id : order.first_part(place.tail);
  const int values[] = {{place.column, place.slot, place.tail, place.part, first}};
  for (int i = 0; i < 5; ++i) result[5 * id + i] = values[i];
}}
extern "C" void places(int slots, int whole, int columns, int parts, int group, int count, int* result) {{
  place_kernel<<<count, 1, 0, Stream{{}}>>>(LongestFirst(slots, whole, columns, parts), group, result);
  check_launch("place_kernel");
}}
extern "C" int pack(int group, int length, int total, int block) {{ return packed_heads(group, length, total, block); }}
extern "C" int order(int id, int count, int chunk) {{ return xcd_order(id, count, chunk); }}
"""


@functools.cache
def plan() -> ctypes.CDLL:
    return hip_program.library(PLAN.format(plan=paths.csrc() / "attention/flash_attn_plan.h"))


class KeySplit(NamedTuple):
    """What a plan of `query_blocks` gives: `whole` of them are not split, the `tail` is, into `parts` each."""

    whole: int
    tail: int
    parts: int

    @classmethod
    def of(cls, query_blocks: int, found: ctypes.Array) -> KeySplit:
        return cls(found[0], query_blocks - found[0], found[1])


class CausalLaunch(NamedTuple):
    """The header's struct of this name, member by member."""

    slots: int
    columns: int
    queries: int
    keys: int
    pack: int
    rows: int
    window_right: int

    def seen_blocks(self, slot: int) -> int:
        return plan().seen((ctypes.c_int * 7)(*self), slot)


def split_keys(query_blocks: int, key_blocks: int, num_cus: int, num_splits: int = 0) -> KeySplit:
    found = (ctypes.c_int * 2)()
    plan().plan(query_blocks, key_blocks, num_cus, num_splits, found)
    return KeySplit.of(query_blocks, found)


def split_causal_keys(launch: CausalLaunch, num_cus: int, num_splits: int = 0) -> KeySplit:
    found = (ctypes.c_int * 2)()
    plan().plan_causal((ctypes.c_int * 7)(*launch), num_cus, num_splits, found)
    return KeySplit.of(launch.slots * launch.columns, found)


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
    assert not gates.examine(instance, compiler).failures


def test_every_recorded_instance_has_a_row():
    assert {*gates.recorded()} == {(name, compiler) for name in names(False) for compiler in gates.COMPILERS}


@functools.cache
def sample() -> tuple[gates.Instance, str]:
    instance = gates.variant(gates.VARIANTS[0][0], 64, 0, "none")
    return instance, gates.assembly(instance, gates.COMPILERS[1])


@pytest.mark.parametrize(("pattern", "replacement", "failure"), [
    (r"flash_attn_fwd_kernel(\w*:)", r"flash_attn_fwd_other\1", "no flash_attn_fwd_kernel"),
    (r"\tv_mfma_f32.*\n", "", "0 loops, expected 1"),
    (r"(\ts_setprio 1\n)", r"\1\tv_mov_b32_e32 v0, v1\n", "1 of v_mov in the loop, expected 0"),
    (r"(\ts_setprio 1\n)", r"\1\tscratch_load_dword v0, off, s0\n", "1 of scratch_ in the loop, expected 0"),
    (r"(\ts_setprio 1\n)", r"\1\tbuffer_load_dword v0, v1, s[0:3], 0 offen\n", "5 of buffer_load_dword in the loop"),
    (r"(\ts_setprio 1\n)", r"\1" + "\tv_mfma_f32_32x32x8_bf16 v[0:15], v[0:1], v[0:1], v[0:15]\n" * 20, "84 of v_mfma"),
    (r"(\ts_setprio 1\n)", r"\1" + "\tv_add_f32_e32 v0, v0, v0\n" * 80, "matrix_cycles 5"),
    (r"(\ts_setprio 1\n)", r"\1" + "\tv_add_f32_e32 v0, v0, v0\n" * 80, "vector_port 7"),
    (r"(\ts_setprio 0\n)", r"\1" + "\tv_exp_f32_e32 v0, v0\n" * 9, "73 of v_exp_f32"),
    (r"(\.vgpr_count: +)\d+", r"\g<1>226", "226 VGPRs, at most 224"),
    (r"(\.vgpr_spill_count: +)\d+", r"\g<1>2", "vgpr_spill_count 2"),
    (r"(\.group_segment_fixed_size: +)\d+", r"\g<1>50180", "50180 bytes of LDS"),
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


@pytest.mark.parametrize(("mask", "kernels"), [("none", 2), ("right", 2), ("both", 1)])
def test_only_what_is_split_merges(mask, kernels):
    text = gates.assembly(gates.variant(gates.VARIANTS[1][0], 64, 1, mask), gates.COMPILERS[1])
    assert text.count(".amdhsa_kernel ") == kernels


def test_exponentials_take_four_slots_of_the_port():
    words = ["v_exp_f32_e32 v0, v0", "v_mul_lo_u32 v0, v0, v1", "v_mfma_f32_32x32x8_bf16 v[0:15]", "s_nop 3",
             "ds_read_b128 v[0:3], v4"]
    assert gates.port(words) == 9
    assert gates.issue(words) == 14


def test_a_slower_phase_is_a_regression():
    row = {"matrix_cycles": "500", "softmax_slots": "300", "vector_port": "400"}
    assert not gates.regressions({"matrix_cycles": 510, "softmax_slots": 306, "vector_port": 408}, row)
    worse = {"matrix_cycles": 511, "softmax_slots": 300, "vector_port": 409}
    assert gates.regressions(worse, row) == ["matrix_cycles 511, recorded 500", "vector_port 409, recorded 400"]
    assert "no row" in gates.regressions({}, None)[0]


def rounds_time(split: KeySplit, key_blocks: int, num_cus: int) -> int:
    """Of the tail, in key blocks: rounds over the CUs, each as long as a part."""
    return -(-split.tail * split.parts // num_cus) * -(-key_blocks // split.parts)


def test_split_of_keys():
    """The least time among all numbers of parts, the smaller number among equals."""
    is_split = 0
    for num_cus, query_blocks, key_blocks, num_splits in itertools.product(
            (304, 228, 38), (*range(1, 40), 144, 288, 289, 303, 304, 305, 448, 592, 1056, 2064, 5000),
            (0, 1, 15, 16, 17, 48, 100, 128, 256, 1344), (0, 2, 5)):
        split, tail = split_keys(query_blocks, key_blocks, num_cus, num_splits), query_blocks % num_cus
        if tail == 0 or tail > 0.95 * num_cus or key_blocks < 16:
            assert split == (query_blocks, 0, 1)
            continue
        counts = range(1, min(2 * num_cus // tail, num_splits or 2 * num_cus, key_blocks // 4) + 1)
        time, parts = min((rounds_time(KeySplit(0, tail, count), key_blocks, num_cus), count) for count in counts)
        assert split == ((query_blocks - tail, tail, parts) if parts > 1 else (query_blocks, 0, 1))
        is_split += parts > 1
    assert is_split > 500


def causal(batch: int, heads: int, queries: int, keys: int | None = None, *, rows: int = 384, pack: int = 1,
           right: int = 0) -> CausalLaunch:
    return CausalLaunch(-(-queries * pack // rows), batch * heads // pack, queries, keys or queries, pack, rows, right)


def test_causal_split_of_keys():
    """Whole slots, within two parts per CU, each part of four key blocks at least; where it ends sooner than none."""
    is_split = 0
    lengths = ((1, 9000), (64, 3072), (700, 3008), (700, 3009), (4096, 4096), (8192, 8192), (5000, 3100), (3000, 16384))
    for (queries, keys), columns, pack, right in itertools.product(lengths, (1, 3, 8, 32, 200, 305), (1, 5), (0, 100)):
        launch = causal(1, columns * pack, queries, keys, rows=384 if columns % 2 else 512, pack=pack, right=right)
        for num_cus, num_splits in ((304, 0), (304, 2), (304, 7), (38, 0)):
            split = split_causal_keys(launch, num_cus, num_splits)
            assert split.whole + split.tail == launch.slots * columns and split.tail % columns == 0
            assert (split.parts > 1) == (split.tail > 0), (launch, num_cus, num_splits)
            assert split.tail * split.parts <= 2 * num_cus and split.parts <= (num_splits or split.parts)
            assert split.parts == 1 or launch.seen_blocks(launch.slots - 1) // split.parts >= 4
            assert split.parts == 1 or launch.seen_blocks(launch.slots - 1) >= 16
            is_split += split.parts > 1
    assert is_split > 200


def test_seen_blocks_of_causal_query_blocks():
    for queries, keys, pack, right in itertools.product((1, 70, 400, 1000), (0, 1, 64, 300, 1000), (1, 3), (0, 40)):
        launch = causal(1, pack, queries, keys or 1, rows=384, pack=pack, right=right)._replace(keys=keys)
        row, key = np.arange(queries * pack)[:, None], np.arange(keys)
        seen = key <= row // pack + keys - queries + right
        for slot in range(launch.slots):
            last = np.flatnonzero(seen[slot * 384:(slot + 1) * 384].any(0)).max(initial=-1)
            assert launch.seen_blocks(slot) == (last + 64) // 64


def longest_first(launch: CausalLaunch, split: KeySplit, group: int = 1) -> np.ndarray:
    """Per workgroup: column, slot, index among split query blocks or -1, part, id of the first part."""
    columns = launch.columns if split.parts > 1 else plan().band(launch.slots, launch.columns, group, 304)
    assert launch.columns % columns == 0
    places = np.full((split.whole + split.tail * split.parts, 5), -9, np.int32)
    plan().places(launch.slots, split.whole // launch.columns, columns, split.parts, group, len(places),
                  places.ctypes.data_as(ctypes.POINTER(ctypes.c_int)))
    return places


@pytest.mark.parametrize(("batch", "heads", "group", "queries", "keys", "bands"), [
    (1, 16, 1, 8192, 8192, 1), (1, 12, 3, 4096, 4096, 1), (1, 8, 8, 5000, 4000, 1), (3, 1, 1, 2000, 5000, 1),
    (8, 32, 4, 4096, 4096, 2)])
def test_longest_come_first(batch, heads, group, queries, keys, bands):
    """Each query block, or each of its parts, once; those of a KV head's group on one XCD. The last shape is not split,
    and one band of heads follows the other.
    """
    launch = causal(batch, heads, queries, keys)
    split = split_causal_keys(launch, 304)
    assert (split.parts > 1) == (bands == 1)
    places = longest_first(launch, split, group)
    column, slot, tail, part, first = places.T
    whole = split.whole // launch.columns
    assert sorted(zip(column, slot, part)) == [
        (c, s, p) for c in range(launch.columns) for s in range(launch.slots)
        for p in range(1 if s < whole else split.parts)]
    assert ((tail >= 0) == (slot >= whole)).all()
    assert sorted(tail[(tail >= 0) & (part == 0)]) == [*range(split.tail)]
    assert (places[first][:, :3] == places[:, :3]).all() and (part[first] == 0).all()
    for band in np.split(places, bands):
        _, slot_of_band, tail_of_band, *_ = band.T
        for chosen in (slot_of_band[tail_of_band < 0], slot_of_band[tail_of_band >= 0]):
            assert (np.diff(chosen) <= 0).all()
    if launch.columns % (8 * group) == 0:
        xcds = np.arange(len(places)) % 8
        assert all(len({*xcds[column // group == chunk]}) == 1 for chunk in range(launch.columns // group))


def modelled_use(launch: CausalLaunch, split: KeySplit) -> float:
    """The share of 304 CUs' time that goes to key blocks: workgroups go round-robin to 8 XCDs, and there to the CU that
    is free first. A workgroup's prologue and epilogue, and a part's share of the merge, take as long as 3 blocks each.
    """
    free, blocks = [[0] * 38 for _ in range(8)], 0
    for index, (_, slot, tail, part, _) in enumerate(longest_first(launch, split)):
        seen = launch.seen_blocks(int(slot))
        count = max(-(-(seen - int(part)) // split.parts), 0) if tail >= 0 else seen
        heapq.heapreplace(free[index % 8], free[index % 8][0] + count + 3)
        blocks += count
    return blocks / (304 * (max(map(max, free)) - (-3 * split.tail * split.parts // 304)))


@pytest.mark.parametrize(("shape", "before", "after"), [
    ((1, 16, 8192), 0.61, 0.80), ((1, 8, 8192), 0.30, 0.75), ((1, 8, 4096), 0.15, 0.52), ((1, 32, 8192), 0.89, 0.89)],
    ids=str)
def test_modelled_use_of_cus(shape, before, after):
    """(batch, heads, length), causal, head dimension 128. Modelled, not measured."""
    launch = causal(*shape)
    whole = KeySplit(launch.slots * launch.columns, 0, 1)
    assert modelled_use(launch, whole) == pytest.approx(before, abs=0.006)
    assert modelled_use(launch, split_causal_keys(launch, 304)) == pytest.approx(after, abs=0.006)


def test_packing():
    """The fewest workgroups for a KV head, by the most heads that share one; and rows of many sequences stay countable.
    """
    for block, group, length in itertools.product((384, 512), (1, 3, 6, 8, 64, 513), (
            0, 1, 6, 47, 48, 64, 65, 128, 129, 384, 385, 512, 513, 4096)):
        counts = {pack: -(-length * pack // block) * (group // pack) for pack in range(1, group + 1)
                  if group % pack == 0}
        pack = plan().pack(group, length, length, block)
        assert counts[pack] == min(counts.values()) and pack == max(n for n in counts if counts[n] == counts[pack])
    assert [plan().pack(8, 1, total, 512) for total in (2**27 - 1, 2**27)] == [8, 4]


@pytest.mark.parametrize(("batch", "heads", "length", "tail", "parts"), [
    (2, 24, 8192, 144, 2), (4, 16, 16384, 16, 19), (2, 24, 16384, 240, 1)])
def test_plans_by_hand(batch, heads, length, tail, parts):
    """Tails on 304 CUs; the last one would need more than two parts per CU."""
    blocks = -(-length // 384) * batch * heads
    assert blocks % 304 == tail
    assert split_keys(blocks, length // 64, 304) == ((blocks - tail, tail, parts) if parts > 1 else (blocks, 0, 1))


def test_order_is_a_bijection_that_keeps_chunks_on_an_xcd():
    order = plan().order
    for chunk in (1, 2, 7, 22, 100):
        for count in (1, 7, 8, 9, 63, 64, 8 * chunk, 8 * chunk + 5, 24 * chunk + 17):
            places = [order(index, count, chunk) for index in range(count)]
            assert sorted(places) == list(range(count))
            for index in range(count // (8 * chunk) * 8 * chunk):
                assert places[index] // chunk % 8 == index % 8  # the hardware deals ids round-robin to 8 XCDs
