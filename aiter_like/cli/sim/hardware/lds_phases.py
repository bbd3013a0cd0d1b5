# SPDX-License-Identifier: MIT
"""Finds the lanes of an LDS instruction that go to the banks together: two of them cost a cycle more at two dwords of
one bank than at two banks. Hardware shows it by time, the simulated MI300X by its counts. Used by costs.py."""

import statistics
from collections.abc import Callable
from typing import Any

from torch import Tensor

from aiter_like.cli.sim.hardware.device import Device, spans
from aiter_like.sim import names
from aiter_like.sim.validation.kernels import Kernel
from aiter_like.sim.validation.question import LANES

_BANKS_BYTES, _WAVES, _UNROLL, _LOOPS = 128, 8, 32, 64
_AWAY = 16 * _BANKS_BYTES  # the first bank again, at another dword
_LDS_BYTES = 4 << 10

# Instruction → (its text for address v5, bytes of a lane).
_FORMS = {
    "ds_read_b32": ("ds_read_b32 v12, v5", 4), "ds_read_b64": ("ds_read_b64 v[12:13], v5", 8),
    "ds_read_b128": ("ds_read_b128 v[12:15], v5", 16),
    "ds_read2_b32": ("ds_read2_b32 v[12:13], v5 offset0:0 offset1:64", 4),
    "ds_read2_b64": ("ds_read2_b64 v[12:15], v5 offset0:0 offset1:64", 8),
    "ds_write_b32": ("ds_write_b32 v5, v6", 4), "ds_write_b64": ("ds_write_b64 v5, v[6:7]", 8),
    "ds_write_b128": ("ds_write_b128 v5, v[8:11]", 16),
    "ds_write2_b32": ("ds_write2_b32 v5, v6, v7 offset0:0 offset1:64", 4),
    "ds_add_u32": ("ds_add_u32 v5, v6", 4), "ds_add_f32": ("ds_add_f32 v5, v6", 4)}

_HALVES, _QUARTERS = "0-31; 32-63", "0-15; 16-31; 32-47; 48-63"
SIMULATED = {
    "ds_read_b32": _HALVES, "ds_read_b64": _QUARTERS,
    "ds_read_b128": "0-3,20-23; 4-7,16-19; 8-11,28-31; 12-15,24-27; "
                    "32-35,52-55; 36-39,48-51; 40-43,60-63; 44-47,56-59",
    "ds_read2_b32": _HALVES, "ds_read2_b64": _QUARTERS, "ds_write_b32": _HALVES, "ds_write_b64": _QUARTERS,
    "ds_write_b128": "; ".join(f"{first}-{first + 7}" for first in range(0, LANES, 8)), "ds_write2_b32": _HALVES,
    "ds_add_u32": _HALVES, "ds_add_f32": _HALVES}
"""The phases of csrc/sim/timing/access_shape.cpp, as `lds_phases` says them."""

# The first buffer: each lane's address, then which lanes take part.
_PREPARE = "v_lshlrev_b32 v5, 2, v0\nglobal_load_dword v5, v5, s[4:5]\ns_load_dwordx2 s[12:13], s[4:5], 0x100\n" + \
           "\n".join(f"v_mov_b32 v{register}, 0" for register in range(6, 12)) + \
           "\ns_waitcnt vmcnt(0) lgkmcnt(0)\ns_mov_b64 exec, s[12:13]"


def lds_phases(device: Device) -> dict[str, Any]:
    """Instruction → the lanes of each phase; raw: the cycles of each pair that was tried, apart and meeting."""
    found: dict[str, Any] = {"raw": {}}
    for name, (body, size) in _FORMS.items():
        cost = _cost(device, Kernel(body, _PREPARE, waves=_WAVES, unroll=_UNROLL, lds_bytes=_LDS_BYTES))
        phases, found["raw"][name] = _partition(cost, size)
        found[name] = "; ".join(names.spans(phase) for phase in phases)
    return found


def addresses(first: int, second: int, size: int, meet: bool) -> tuple[list[int], int]:
    """Each lane's, and the mask of the lanes that take part: two, which meet at a bank or not, and beside them as many
    as have banks of their own, from all over the wave, so that no phase is empty."""
    slots = _BANKS_BYTES // size
    rest = [lane for lane in range(LANES) if lane not in (first, second)]
    others = [rest[k * len(rest) // (slots - 2)] for k in range(slots - 2)]
    places = dict(zip(others, range(2 * size, slots * size, size), strict=True))
    places |= {first: 0, second: _AWAY if meet else size}
    return [places.get(lane, 0) for lane in range(LANES)], sum(1 << lane for lane in places)


def _partition(cost: Callable[[list[int], int], float], size: int) -> tuple[list[list[int]], dict[str, list[float]]]:
    """Phases, found by trying a lane of each with every lane that has none yet."""
    left, phases, pairs = list(range(LANES)), [], {}
    while left:
        first, *others = left
        phase = [first]
        for second in others:
            apart, met = (cost(*addresses(first, second, size, meet)) for meet in (False, True))
            pairs[f"{first} {second}"] = [apart, met]
            if met > apart + 0.5:
                phase.append(second)
        phases.append(phase)
        left = [lane for lane in left if lane not in phase]
    return phases, pairs


def _cost(device: Device, kernel: Kernel) -> Callable[[list[int], int], float]:
    """Cycles of the CU's banks for one instruction, by its lanes' addresses."""
    (function,) = device.load([(kernel, kernel.unroll)], timed=True)

    def tensor(places: list[int], lanes: int) -> Tensor:
        return device.tensor([*places, lanes & 0xFFFFFFFF, lanes >> 32])

    def measured(places: list[int], lanes: int) -> float:
        first, times, samples = tensor(places, lanes), device.times(_WAVES), []
        for _ in range(5):
            device.launch(function, 1, _WAVES, _LOOPS, first, times=times)
            device.wait()
            samples.append(spans(times)[0])
        return statistics.median(samples[1:]) / (_LOOPS * _UNROLL * _WAVES)

    def counted(places: list[int], lanes: int) -> float:
        from aiter_like import sim

        with sim.enabled(checks=False, counters=True) as session:
            device.launch(function, 1, 1, 1, tensor(places, lanes), times=device.times(_WAVES))
        (launch,) = session.launches
        return launch["totals"]["lds_clk"] / _UNROLL

    return counted if device.target.simulated else measured
