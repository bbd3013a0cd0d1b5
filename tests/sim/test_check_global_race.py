# SPDX-License-Identifier: MIT
"""The checker of global races: workgroups and waves that conflict, and what orders them."""

import itertools
import re

import numpy as np
import pytest
import torch
from checking import among, hip_reports, only, reports

import aiter_like
from aiter_like import sim
from aiter_like.dispatch import OPS

LANE = np.arange(64, dtype=np.uint32)
BOTH = np.stack([LANE, LANE])
STORE, LOAD = "global_store_dword v0, v5, s[10:11]\ns_waitcnt vmcnt(0)", "global_load_dword v1, v0, s[10:11]"


def _reports(body: str, inputs: dict | None = None, waves: int = 1, **options) -> list[dict]:
    """Two workgroups; v5 is different in each lane of each."""
    inputs = {"v0": BOTH * 4, "v5": BOTH + 100 * np.arange(2, dtype=np.uint32)[:, None], **(inputs or {})}
    return reports(f"{body}\ns_waitcnt vmcnt(0) lgkmcnt(0)", inputs, ("global_race",), waves=waves,
                   buffers={"s[10:11]": np.zeros(1024, np.uint8)}, **options)


def _in_group(group: int, body: str) -> str:
    return f"s_cmp_lg_u32 s2, {group}\ns_cbranch_scc1 {10 + group}f\n{body}\n{10 + group}:\n"


@pytest.mark.parametrize("first, second, offender, verb", [
    (STORE, STORE, "global_store_dword .*", "writes .*which workgroup .0,0,0. wave 0 writes"),
    (STORE, LOAD, "global_load_dword .*", "reads .*which workgroup .0,0,0. wave 0 writes"),
    (LOAD, STORE, "global_store_dword .*", "writes .*which workgroup .0,0,0. wave 0 reads"),
    (STORE, "s_load_dwordx2 s[20:21], s[10:11], 0x0", "s_load_dwordx2 .*", "reads .*wave 0 writes"),
    (STORE, "global_atomic_add v0, v5, s[10:11]", "global_atomic_add .*", "updates .*wave 0 writes")])
def test_workgroups_that_conflict(first, second, offender, verb):
    report = only(_reports(_in_group(0, first) + _in_group(1, second)), "global_race", offender, "in lane 0",
                  "nothing orders the two", "fix: an atomic")
    assert re.search(verb, report["message"]) and report["workgroup"] == [1, 0, 0] and report["lanes"] == 1
    assert first.split("\n")[0] in report["message"] and report["other"]["text"] == first.split("\n")[0]


@pytest.mark.parametrize("body, inputs", [
    (STORE, {"v0": np.stack([LANE * 4, LANE * 4 + 256])}),                       # each its own part
    (STORE, {"v5": BOTH}),                                                       # the same value
    (STORE + "\n" + LOAD, {"v5": BOTH}),
    (LOAD, {}),
    ("global_atomic_add v0, v5, s[10:11]", {}),
    ("global_store_short v0, v5, s[10:11]", {"v0": np.stack([LANE * 4, LANE * 4 + 2])})])   # halves of the same dwords
def test_no_conflict(body, inputs):
    assert not _reports(body, inputs)


def test_a_read_that_one_byte_overlaps():
    body = _in_group(0, "global_store_short v0, v5, s[10:11]") + _in_group(1, "global_load_ubyte v1, v6, s[10:11]")
    assert not _reports(body, {"v6": BOTH * 4 + 2})
    only(_reports(body, {"v6": BOTH * 4 + 1}), "global_race", "global_load_ubyte .*", "global_store_short")


RELEASE = """{wbl2}
  s_waitcnt vmcnt(0)
  s_mov_b64 exec, 1
  global_atomic_add {flag}, v5, s[10:11]
  s_mov_b64 exec, -1"""
ACQUIRE = """s_mov_b64 exec, 1
  global_atomic_add v8, v7, v5, s[10:11] sc0
  s_waitcnt vmcnt(0)
  {inv}
  s_mov_b64 exec, -1"""


def _handed_over(wbl2: str = "buffer_wbl2 sc1", inv: str = "buffer_inv sc1", flag: str = "v7", use: str = LOAD) -> list:
    body = _in_group(0, f"{STORE}\n{RELEASE.format(wbl2=wbl2, flag=flag)}")
    body += _in_group(1, f"{ACQUIRE.format(inv=inv)}\n{use}")
    return _reports(body, {"v7": BOTH * 0 + 512, "v6": BOTH * 0 + 516})


def test_data_handed_over_by_an_atomic():
    assert not _handed_over()
    assert not _handed_over(use=STORE)
    only(_handed_over(flag="v6"), "global_race", "global_load_dword .*", "nothing orders the two")


def test_missing_cache_operations():
    for wrong in ("", "buffer_wbl2 sc0"):
        only(_handed_over(wbl2=wrong), "global_race", "global_load_dword .*", "without a write-back of its L2",
             "fix: buffer_wbl2 sc1")
    for wrong in ("", "buffer_inv sc0"):
        only(_handed_over(inv=wrong), "global_race", "global_load_dword .*", "may still hold the old value",
             "fix: buffer_inv sc1")
    assert not _handed_over(inv="", use=STORE)                     # nothing is read


def test_a_store_after_the_release_is_not_covered():
    release = RELEASE.format(wbl2="buffer_wbl2 sc1", flag="v7")
    body = _in_group(0, f"{release}\n{STORE}") + _in_group(1, f"{ACQUIRE.format(inv='buffer_inv sc1')}\n{LOAD}")
    only(_reports(body, {"v7": BOTH * 0 + 512}), "global_race", "global_load_dword .*", "nothing orders the two")


def test_flags_of_agent_scope_order_too():
    wait = "global_load_dword v8, v7, s[10:11] sc1\ns_waitcnt vmcnt(0)\nbuffer_inv sc1"
    first = f"{STORE}\nbuffer_wbl2 sc1\ns_waitcnt vmcnt(0)\nglobal_store_dword v7, v6, s[10:11]"
    inputs = {"v7": BOTH * 0 + 512, "v6": BOTH * 0 + 1}
    assert not _reports(_in_group(0, first + " sc1") + _in_group(1, f"{wait}\n{LOAD}"), inputs)
    found = _reports(_in_group(0, first) + _in_group(1, f"{wait}\n{LOAD}"), inputs)
    assert {report["check"] for report in found} == {"global_race"} and len(found) == 2


def test_waves_of_one_workgroup():
    lanes = np.arange(128, dtype=np.uint32)
    inputs = {"v0": lanes * 4, "v5": lanes, "v6": lanes[::-1] * 4}
    body = "global_store_dword v0, v5, s[10:11]\ns_waitcnt vmcnt(0)\n{0}\nglobal_load_dword v1, v6, s[10:11]"
    found = _reports(body.format(""), inputs, waves=2)
    among(found, "global_race", "global_load_dword .*", "which wave 0 writes", "no s_barrier between")
    among(found, "global_race", "global_store_dword .*", "which wave 0 reads", "no s_barrier between")
    assert not _reports(body.format("s_barrier"), inputs, waves=2)


def test_lanes_that_store_different_values_to_one_place():
    place = LANE * 4
    place[40] = place[3]
    only(_reports(_in_group(0, STORE), {"v0": np.stack([place, place])}), "global_race", "global_store_dword .*",
         "lanes 3 and 40", "different values")
    assert not _reports(_in_group(0, STORE), {"v0": np.stack([place, place]), "v5": BOTH * 0})


SPLIT = """
__global__ void split(const float* in, float* part, unsigned* count, float* out) {     // the last workgroup sums
  __shared__ unsigned arrived;
  part[workgroup_index().x * 64 + thread_index()] = in[workgroup_index().x * 64 + thread_index()];
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "%s");
  workgroup_barrier();
  if (thread_index() == 0) arrived = __hip_atomic_fetch_add(count, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  workgroup_barrier();
  if (arrived != 3) return;
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "%s");
  float sum = 0;
  for (int k = 0; k < 4; ++k) sum += part[k * 64 + thread_index()];
  out[thread_index()] = sum;
}
extern "C" void launch(int groups, int block, float* in, float* part, unsigned* count, float* out) {
  split<<<groups, block, 0, nullptr>>>(in, part, count, out);
}
"""


@pytest.mark.parametrize("release, acquire, phrase", [
    ("agent", "agent", None), ("workgroup", "agent", "fix: buffer_wbl2 sc1"),
    ("agent", "workgroup", "fix: buffer_inv sc1")])
def test_split_sums_in_a_compiled_kernel(release, acquire, phrase):
    arrays = [np.ones(256, np.float32), np.zeros(256, np.float32), np.zeros(1, np.uint32), np.zeros(64, np.float32)]
    found = hip_reports(SPLIT % (release, acquire), arrays, 64, groups=4, read_only=[0], checks=tuple(sim.CHECKS))
    np.testing.assert_array_equal(arrays[3], 4)
    if phrase is None:
        assert not found
    else:
        among(found, "global_race", "global_load_dword.*", phrase, "`array1`")
        assert len(found) == 3                        # one for each other workgroup's part


def test_it_is_on_only_when_named():
    assert "global_race" not in sim.DEFAULT_CHECKS
    assert not reports(STORE, {"v0": BOTH * 4, "v5": BOTH + np.array([[0], [7]], np.uint32)},
                       buffers={"s[10:11]": np.zeros(1024, np.uint8)})


@pytest.mark.parametrize("columns", (5, 8192, 20001))
def test_softmax_in_place(simulated, columns):
    """Few rows are cut into slices, of which a workgroup's waves read nothing that another one writes."""
    x = torch.randn(2, columns)
    expected = x.double().softmax(-1)
    with sim.enabled("global_race"):
        aiter_like.softmax(x, out=x, backend="hip")
    torch.testing.assert_close(x.double(), expected)


@pytest.mark.parametrize("name", [name if name in ("dropout_layer_norm", "hadamard") else
                                  pytest.param(name, marks=pytest.mark.exhaustive)
                                  for name, op in sorted(OPS.items()) if op.in_place])
def test_outputs_that_are_inputs(simulated, name):
    """Of every case, by every kernel: no wave reads what another one writes, rows that are not there included."""
    op, count = OPS[name], 0
    for title, case in op.cases(torch.device("cpu")).items():
        for (out, one), backend in itertools.product(sorted(op.in_place), op.backends):
            given = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in case]
            if not is_alike(given[out], given[one]) or backend.name in ("torch", "vendor"):
                continue
            given[out] = given[one]
            if backend.name in {found.backend.name for found in op.select(tuple(given), backend.name).candidates}:
                with sim.enabled([*sim.DEFAULT_CHECKS, "global_race"]) as session:
                    op(given, backend=backend.name)
                assert not session.reports, (title, op.call._fields[out], op.call._fields[one], backend.name)
                count += 1
    assert count


def is_alike(one, other):
    return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and (
        (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype))
