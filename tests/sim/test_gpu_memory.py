# SPDX-License-Identifier: MIT
"""sim.as_gpu(): memory of the simulated device as torch.cuda counts it, its limits and its history."""

from __future__ import annotations

import pickle

import pytest
import torch

from aiter_like import sim
from aiter_like.sim.torch_cuda import memory


@pytest.fixture(autouse=True)
def gpu():
    with sim.as_gpu() as device:
        yield device


def test_blocks_are_counted():
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    small, large = torch.empty(1, device="cuda"), torch.empty((1 << 20) + 1, dtype=torch.uint8, device="cuda")
    assert not torch.empty(0, device="cuda").numel()
    after = torch.cuda.memory_stats()
    for key, growth in (("allocation.all.current", 2), ("allocation.small_pool.current", 1), ("segment.all.current", 2),
                        ("active.large_pool.current", 1), ("allocated_bytes.small_pool.current", 512),
                        ("allocated_bytes.all.peak", 1024 + (1 << 20)), ("requested_bytes.all.current", 5 + (1 << 20)),
                        ("inactive_split.all.current", 0), ("num_ooms", 0)):
        assert after[key] - before[key] == growth, key
    segments = [one for one in torch.cuda.memory_snapshot() if one["address"] in (small.data_ptr(), large.data_ptr())]
    assert sorted((one["segment_type"], one["total_size"], one["requested_size"]) for one in segments) == [
        ("large", (1 << 20) + 512, (1 << 20) + 1), ("small", 512, 4)]
    assert sum(one["allocated_size"] for one in torch.cuda.memory_snapshot()) == torch.cuda.memory_allocated()
    lazy = torch._lazy_clone(small)
    assert lazy.is_cuda and torch._C._is_cow_tensor(lazy) and torch._C._is_cow_tensor(small)
    del small, large, lazy
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
    assert torch.cuda.memory_stats()["allocation.all.current"] == before["allocation.all.current"]


def test_a_part_of_the_memory():
    torch.cuda.set_per_process_memory_fraction(2.0**-20, 0)
    try:
        assert torch.cuda.get_per_process_memory_fraction() == 2.0**-20
        with pytest.raises(torch.OutOfMemoryError, match="0.00 GiB allowed"):
            torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_stats()["num_ooms"] >= 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    for wrong, kind in ((1, TypeError), (1.5, ValueError)):
        with pytest.raises(kind, match="Invalid"):
            torch.cuda.set_per_process_memory_fraction(wrong)
    with pytest.raises(torch.OutOfMemoryError, match="more than 1EB"):
        torch.empty(1 << 60, dtype=torch.uint8, device="cuda")


def test_history(tmp_path):
    torch.cuda.memory._record_memory_history(max_entries=3, clear_history=True)
    try:
        for _ in range(2):
            torch.empty(700, dtype=torch.uint8, device="cuda")
        held = torch.empty(1, device="cuda")
        torch.cuda.memory._dump_snapshot(tmp_path / "snapshot")
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    told = pickle.loads((tmp_path / "snapshot").read_bytes())
    assert [(one["action"], one["size"]) for one in told["device_traces"][0]] == [
        ("free_requested", 1024), ("free_completed", 1024), ("alloc", 512)]
    (segment,) = (one for one in told["segments"] if one["address"] == held.data_ptr())
    assert any(frame["name"] == "test_history" for frame in segment["blocks"][0]["frames"])
    with pytest.raises(RuntimeError, match="enabled"):
        torch.cuda.memory._record_memory_history("some")


def test_pinned_and_raw_memory():
    before, device = torch.cuda.host_memory_stats()["allocated_bytes.current"], torch.cuda.memory_allocated()
    pinned = torch.empty(1024, dtype=torch.uint8, pin_memory=True)
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] - before == pinned.numel()
    address = torch.cuda.caching_allocator_alloc(1024)
    assert torch.cuda.memory_allocated() - device == 1024
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == device
    with pytest.raises(RuntimeError, match="caching_allocator_delete: invalid device pointer"):
        torch.cuda.caching_allocator_delete(address)


@pytest.mark.parametrize("context", ["alloc", "all"])
def test_history_says_where_memory_was_freed(context):
    torch.cuda.memory._record_memory_history(context=context, clear_history=True)
    try:
        torch.empty(700, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    made, *freed = torch.cuda.memory._snapshot()["device_traces"][0]
    assert made["frames"] and [bool(one["frames"]) for one in freed] == [context == "all"] * 2


def test_observers_of_too_little_memory():
    told, total = [], torch.cuda.get_device_properties(0).total_memory
    torch._C._cuda_attach_out_of_memory_observer(lambda *facts: told.append(facts))
    torch.cuda.set_per_process_memory_fraction(1e-6)
    try:
        for count in (total // 1000, 1 << 59):  # the host has not so many, either
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(count, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        memory.observers.clear()
    assert [facts[:3] for facts in told] == [(0, total // 1000, total), (0, 1 << 59, total)]
    assert told[0][3] <= total // 1_000_000
