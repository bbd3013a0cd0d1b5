# SPDX-License-Identifier: MIT
"""Forward progress between workgroups, deadlocks, and schedule fuzzing: any seed and thread count, the same result."""

import struct
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from asm import run
from hip_program import code_object
from hip_runtime import HipError, runtime
from mutants import instructions, replaced

import aiter_like
from aiter_like import sim
from aiter_like.sim import modelling

SOURCE = """
__device__ int load(const int* p) { return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT); }
__device__ void store(int* p, int x) { __hip_atomic_store(p, x, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT); }

// Workgroup i waits for i + 1: the last one that starts is the first that can go on.
template <bool kSleep> __device__ void chain(int* flag, int* out, int n) {
  const int i = workgroup_index().x;
  if (thread_index() == 0 && i + 1 < n) {
    while (load(flag + i + 1) == 0) {
      if (kSleep) __builtin_amdgcn_s_sleep(1);
    }
  }
  workgroup_barrier();
  const int mine = i + 1 < n ? out[(i + 1) * 128 + thread_index()] + 1 : static_cast<int>(thread_index());
  out[i * 128 + thread_index()] = mine;
  workgroup_barrier();
  if (thread_index() == 0) store(flag + i, 1);
}
extern "C" __global__ void chain_spin(int* flag, int* out, int n) { chain<false>(flag, out, n); }
extern "C" __global__ void chain_sleep(int* flag, int* out, int n) { chain<true>(flag, out, n); }

// A persistent kernel: in each round every workgroup reads what its neighbour wrote in the one before.
extern "C" __global__ void grid_barrier(int* count, int* out, int n) {
  const int i = workgroup_index().x, t = thread_index();
  int value = i;
  for (int round = 0; round < 3; ++round) {
    out[(round % 2 * n + i) * 128 + t] = value;
    workgroup_barrier();
    if (t == 0) {
      __hip_atomic_fetch_add(count, 1, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
      while (load(count) < n * (round + 1)) {}
    }
    workgroup_barrier();
    value += __hip_atomic_load(out + (round % 2 * n + (i + 1) % n) * 128 + t, __ATOMIC_RELAXED,
                               __HIP_MEMORY_SCOPE_AGENT);
  }
  out[2 * n * 128 + i * 128 + t] = value;
}
"""


@pytest.fixture(autouse=True)
def forgotten_errors():
    """An expected failure is not left for the next launch's caller to find."""
    yield
    sim.load().hipGetLastError()


def launch(kernel: str, groups: int, out_dwords: int, ready: int = 0, **settings) -> np.ndarray:
    """`kernel(flags, out, groups)` with 128 lanes per workgroup, of whose flags `ready` are set; gives `out`."""
    hip, out = runtime(), np.zeros(out_dwords, np.int32)
    with hip.module(code_object(SOURCE)) as module, hip.memory() as memory:
        flags, data = memory.upload((np.arange(groups + 1) < ready).astype(np.int32)), memory.upload(out)
        with sim.enabled(**{"checks": False, **settings}):
            hip.launch(module.function(kernel), groups, 128, 0, (flags, data, groups))
        memory.download(data, out)
    return out


@pytest.mark.parametrize("kernel", ["chain_spin", "chain_sleep"])
@pytest.mark.parametrize("threads, seed", [(1, 0), (2, 0), (1, 7), (2, 8)])
def test_a_workgroup_may_wait_for_a_later_one(kernel, threads, seed):
    groups = 12 if seed else 40
    out = launch(kernel, groups, groups * 128, threads=threads, fuzz=seed).reshape(groups, 128)
    np.testing.assert_array_equal(out, np.arange(groups)[::-1, None] + np.arange(128))


@pytest.mark.parametrize("threads, seed, checks", [(1, 0, False), (2, 0, False), (1, 3, False), (1, 0, True)])
def test_a_barrier_of_the_whole_grid(threads, seed, checks):
    groups = 12 if seed else 64
    out = launch("grid_barrier", groups, 3 * groups * 128, threads=threads, fuzz=seed, checks=checks)
    value = np.arange(groups)
    for _ in range(3):
        value = value + np.roll(value, -1)
    np.testing.assert_array_equal(out[2 * groups * 128:].reshape(groups, 128), np.repeat(value[:, None], 128, 1))


@pytest.mark.parametrize("threads, seed", [(1, 0), (2, 0), (1, 1)])
def test_a_deadlock_names_every_waiting_wave(threads, seed):
    """Two workgroups wait for a flag that nobody sets; the second wave of each is at the barrier."""
    body = """
  s_load_dwordx2 s[4:5], s[96:97], 0x0
  v_readfirstlane_b32 s6, v0
  s_waitcnt lgkmcnt(0)
  s_cmp_lg_u32 s6, 0
  s_cbranch_scc1 2f
1:
  global_load_dword v2, v1, s[8:9] sc1
  s_waitcnt vmcnt(0)
  v_cmp_eq_u32 vcc, 0, v2
  s_cbranch_vccnz 1b
2:
  s_barrier"""
    lanes = np.repeat(np.array([0, 1], np.uint32), 64)
    inputs = {"v0": np.stack([lanes, lanes]), "v1": np.zeros(128, np.uint32)}
    with sim.enabled(checks=False, threads=threads, fuzz=seed, on_report="collect") as session:
        with pytest.raises(HipError, match="deadlock") as error:
            run(body, inputs, {}, buffers={"s[8:9]": np.zeros(1, np.uint32)}, waves=2)
    message, (report,) = str(error.value), session.reports
    assert report["check"] == "launch" and report["message"] in message
    for wave in ("wg(0,0,0) wave 0", "wg(0,0,0) wave 1", "wg(1,0,0) wave 0", "wg(1,0,0) wave 1"):
        assert message.count(wave) == 1
    barrier = next(line for line in message.splitlines() if "at the barrier" in line)
    assert "s_barrier" in barrier and barrier.count("wave 1") == 2


def test_a_sample_of_workgroups_that_wait_for_one_another_says_so():
    with pytest.raises(HipError, match='deadlock(?s:.)*left out(?s:.)*model="whole"'):
        with modelling.modelled([], sample=True, budget=1):
            launch("chain_spin", 4000, 4000 * 128, ready=64)
    # A budget that holds all of them leaves none out.
    assert launch("chain_spin", 60, 60 * 128, model="sample")[-1] == 127
    assert (launch("chain_spin", 60, 60 * 128, model="whole")[:128] == 59 + np.arange(128)).all()


def test_more_workgroups_than_are_resident_is_a_deadlock_when_they_wait_for_the_rest():
    """One workgroup per CU: 304 of 305 are resident, and all wait for the last."""
    body = """
1:
  global_load_dword v2, v1, s[8:9] sc1
  s_waitcnt vmcnt(0)
  s_sleep 1
  v_cmp_eq_u32 vcc, 0, v2
  s_cbranch_vccnz 1b"""
    inputs = {"v1": np.zeros((305, 64), np.uint32)}
    with sim.enabled(checks=False, threads=1, on_report="collect"):
        with pytest.raises(HipError, match="deadlock.*(?s:.)*and 296 more"):
            run(body, inputs, {}, buffers={"s[8:9]": np.zeros(1, np.uint32)}, lds_bytes=65536)


LATE = {
    "v_mov_b32 v3, v2": "global_load_dword v2, v1, s[8:9]",
    "v_mov_b32 v3, v6": "ds_write_b32 v1, v1\ns_waitcnt lgkmcnt(0)\nds_read_b32 v6, v1",
    "v_mov_b32 v3, s12": "s_load_dword s12, s[8:9], 0x4",
    "ds_read_b32 v3, v1": "s_mov_b32 m0, 0\nglobal_load_lds_dword v1, s[8:9]",
}


@pytest.mark.parametrize("use, load", LATE.items())
def test_without_its_wait_a_load_is_late(use, load):
    """The result is right with a wait for any seed, and without one only in program order."""
    data = np.arange(64, dtype=np.uint32) * 4
    options = {"inputs": {"v1": data}, "outputs": ("v3",), "buffers": {"s[8:9]": data.copy()}, "lds_bytes": 512}
    end = "\ns_waitcnt vmcnt(0) lgkmcnt(0)"
    expected = run(f"{load}{end}\n{use}{end}", **options)["v3"]
    for seed in range(4):
        with sim.enabled(checks=False, fuzz=seed):
            np.testing.assert_array_equal(run(f"{load}{end}\n{use}{end}", **options)["v3"], expected)
            same = np.array_equal(run(f"{load}\n{use}{end}", **options)["v3"], expected)
        assert same == (seed == 0), seed


def test_halves_of_a_register_arrive_one_by_one():
    data = np.arange(128, dtype=np.uint16)
    body = """global_load_short_d16 v2, v1, s[8:9]
global_load_short_d16_hi v2, v1, s[8:9] offset:128
s_waitcnt vmcnt(1)
v_mov_b32 v3, v2
s_waitcnt vmcnt(0)"""
    with sim.enabled(checks=False, fuzz=5):
        out = run(body, {"v1": np.arange(64, dtype=np.uint32) * 2}, ("v2", "v3"), buffers={"s[8:9]": data})
    np.testing.assert_array_equal(out["v2"], np.arange(64) | np.arange(64, 128) << 16)
    np.testing.assert_array_equal(out["v3"] & 0xffff, np.arange(64))
    assert not np.array_equal(out["v3"], out["v2"])


def test_a_seed_repeats_and_another_differs():
    """Undefined registers hold the seed's poison; one worker repeats a run exactly."""
    def undefined(seed: int) -> np.ndarray:
        with sim.enabled(checks=False, fuzz=seed, threads=1):
            return run("", {}, ("v77",))["v77"]

    assert np.array_equal(undefined(1), undefined(1)) and not np.array_equal(undefined(1), undefined(2))
    assert (undefined(0) == 0xCDCDCDCD).all()


def test_waves_of_a_workgroup_keep_close_together():
    """Each wave counts down in LDS and looks how far its neighbour is behind, at most two iterations of nine."""
    body = """
  s_movk_i32 s4, 20000
  v_mov_b32 v3, s4
  ds_write_b32 v0, v3
  s_waitcnt lgkmcnt(0)
  s_barrier
  v_mov_b32 v5, 0
1:
  s_sub_u32 s4, s4, 1
  v_mov_b32 v3, s4
  ds_write_b32 v0, v3
  ds_read_b32 v6, v1
  s_waitcnt lgkmcnt(0)
  v_sub_u32 v6, v6, v3
  v_max_i32 v5, v5, v6
  s_cmp_lg_u32 s4, 0
  s_cbranch_scc1 1b"""
    waves = 4
    wave = np.arange(64 * waves, dtype=np.uint32) // 64
    with sim.enabled(checks=False):
        out = run(body, {"v0": wave * 4, "v1": (wave + 1) % waves * 4}, {"v5": np.int32}, waves=waves, lds_bytes=512)
    assert out["v5"].max() <= 2


def operators() -> dict:
    """Name → call of each kernel of the project in a small shape."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(torch.bfloat16)

    x, weight = normal(24, 4096), normal(4096)
    q, k, v = (normal(1, 160, 2, 64) for _ in range(3))

    def rms_norm(backend: str) -> list[torch.Tensor]:
        return [aiter_like.rms_norm(x, weight, 1e-6, backend=backend)]

    def flash_attn(backend: str, **options) -> list[torch.Tensor]:
        return list(aiter_like.flash_attn_func(q, k, v, return_lse=True, backend=backend, **options))

    return {"rms_norm hip": lambda: rms_norm("hip"), "rms_norm asm": lambda: rms_norm("asm"),
            "rms_norm triton": lambda: rms_norm("triton"),
            "rms_norm hip, odd": lambda: [aiter_like.rms_norm(x[:, :1000], weight[:1000], 1e-6, backend="hip")],
            "flash_attn hip": lambda: flash_attn("hip", causal=True),
            "flash_attn triton": lambda: flash_attn("triton", causal=True)}


def compare_seeds(seeds: range, threads: Sequence[int]) -> None:
    for name, call in operators().items():
        with sim.enabled(checks=False, fuzz=0, threads=1):
            expected = call()
        for seed in seeds:
            for count in threads:
                with sim.enabled(checks=False, fuzz=seed, threads=count):
                    assert all(map(torch.equal, call(), expected)), f"{name}, seed {seed}, {count} threads"


def test_the_projects_kernels_do_not_depend_on_seed_and_threads():
    compare_seeds(range(5), (1, 2))


@pytest.mark.exhaustive
def test_the_projects_kernels_do_not_depend_on_a_hundred_seeds():
    compare_seeds(range(1, 101), (1, 2, 5))


WAITING = """
extern "C" __global__ __launch_bounds__(64) void waiting(const float* in, float* out, int n) {
  float total = 0;
  for (int i = 0; i < n; ++i) total += in[i * 64 + thread_index()];
  out[thread_index()] = total;
}
"""


def test_every_removed_wait_of_a_compiled_kernel_changes_its_result():
    def collecting(seed: int):
        return sim.enabled(checks=False, fuzz=seed, on_report="collect")

    def result(elf: bytes, seed: int) -> np.ndarray | None:
        hip, out = runtime(), np.zeros(64, np.float32)
        with hip.module(elf) as module, hip.memory() as memory, collecting(seed):
            pointers = memory.upload(np.ones((5, 64), np.float32)), memory.upload(out)
            try:
                hip.launch(module.function("waiting"), 1, 64, 0, (*pointers, 5))
            except HipError:
                return None                            # a poisoned address
            memory.download(pointers[1], out)
        return out

    elf = code_object(WAITING)
    waits = [(pc, text) for pc, text in instructions(elf) if text.startswith("s_waitcnt")]
    assert len(waits) >= 2 and np.array_equal(result(elf, 1), np.full(64, 5, np.float32))
    nop = struct.pack("<I", 0xBF800000)
    kept = [f"{pc:#x}: {text}" for pc, text in waits
            if np.array_equal(result(replaced(elf, pc, nop), 1), np.full(64, 5, np.float32))]
    assert not kept
