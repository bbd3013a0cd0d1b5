# SPDX-License-Identifier: MIT
"""Public bandwidths, from the L1 to memory, rebuilt; part of cases.py."""

from __future__ import annotations

from collections.abc import Iterator

from aiter_like.sim.validation.case import KIB, MIB, TIB_PER_S, Case, Rate
from aiter_like.sim.validation.kernels import Kernel

# v2 = 16 * work-item of the grid, for workgroups of 256.
_OF_GRID = "s_lshl_b32 s11, s2, 12\nv_lshl_add_u32 v2, v1, 4, s11"
_TO = "v[{k}%16*4+12:{k}%16*4+15]"
_LOAD = f"global_load_dwordx4 {_TO}, v2, s[4:5]"
_READS = {"waves": 4, "registers": 80, "unroll": 8, "accumulators": 0}
_OF_GROUP = 8 * 4 * KIB  # bytes of a workgroup's eight loads
_AROUND = "v_lshlrev_b32 v2, 4, v1\nv_mov_b32 v3, v2"
_MEMORY, _MALL = "hbm_read_tb_per_s", "mall_tb_per_s"


def bandwidths() -> Iterator[Case]:
    """Those of caches, of loads in flight, of streams, of access shapes."""
    yield from _caches()
    step = f"{_LOAD}\nv_add_u32 v2, v2, s9"
    for flight, rate in ((1, 2.59), (2, 3.40), (4, 3.74), (8, 4.24), (16, 4.15)):
        yield Rate(f"read, {flight} loads in flight of 256 lanes a CU", "fleet", rate,
                   Kernel(f"{step}\ns_waitcnt vmcnt({flight - 1})", _OF_GRID,
                          **{**_READS, "unroll": 16, "registers": 96}), 304, 24, 2 * _OF_GROUP, 304 * 4 * KIB,
                   parameters=(_MEMORY,))
    yield from _streams()
    for name, prepare, rate, apart in (
            ("64 lanes in a row", _OF_GRID, 4.0, 1), ("rows of 16 lanes", f"{_OF_GRID}\n{_rows(16)}", 3.8, 2),
            ("rows of 4 lanes", f"{_OF_GRID}\n{_rows(4)}", 1.8, 2), ("lanes as MFMA takes them", _MATRIX, 1.1, 2)):
        yield Rate(f"read, {name}", "pyhip", rate,
                   Kernel(f"{step}\ns_waitcnt vmcnt(7)", prepare, **{**_READS, "unroll": 16, "registers": 96}), 608, 24,
                   2 * _OF_GROUP, apart * 608 * 4 * KIB, parameters=(_MEMORY,))


def _caches() -> Iterator[Case]:
    yield Rate("L1, 16 KB a CU", "SC25", 39.0, Kernel(f"{_LOAD}\nv_add_u32 v2, 0x1000, v2\nv_and_b32 v2, 0x3fff, v2",
                                                      _AROUND, **{**_READS, "waves": 16}),
               304, 64, 4 * _OF_GROUP, repeats=True)
    for size, rate in ((2 * MIB, 28.0), (8 * MIB, 17.4), (13_795_328, 8.8)):
        wrap = f"v_and_b32 v2, {size - 1:#x}, v2" if size % MIB == 0 else \
            f"v_cmp_gt_u32 vcc, {size:#x}, v2\nv_cndmask_b32 v2, v3, v2, vcc"
        yield Rate(f"one buffer of {size / MIB:.0f} MB for all CUs", "SC25", rate,
                   Kernel(f"{_LOAD}\nv_add_u32 v2, 0x4000, v2\n{wrap}", _AROUND, **{**_READS, "waves": 16}),
                   304, size // _OF_GROUP, 4 * _OF_GROUP, repeats=True, parameters=("channel_again_clk",))
    for size, rate, parameter in ((96 * KIB, 19.5, "channel_clk"), (512 * KIB, 5.0, _MALL)):
        yield _own(f"{size // KIB} KB of its own for each CU", "SC25", rate, size, _LOAD, parameter)
    store = "global_store_dwordx4 v2, v[12:15], s[4:5]"
    for size, rate, parameter in ((96 * KIB, 6.6, "channel_clk"), (512 * KIB, 5.1, _MALL)):
        yield _own(f"stores to {size // KIB} KB of its own for each CU", "mt4g", round(rate * TIB_PER_S, 2), size,
                   store, parameter)


def _own(name: str, source: str, rate: float, size: int, access: str, parameter: str) -> Rate:
    """Each CU goes through memory of its own again and again."""
    own = f"s_mul_i32 s11, s2, {size}\n{_AROUND}\ns_add_u32 s4, s4, s11\ns_addc_u32 s5, s5, 0"
    passes = max(16 * 96 * KIB // size, 1)
    return Rate(name, source, rate,
                Kernel(f"{access}\nv_add_u32 v2, 0x1000, v2\nv_cmp_gt_u32 vcc, {size:#x}, v2\n"
                       "v_cndmask_b32 v2, v3, v2, vcc", own, **_READS),
                304, passes * size // _OF_GROUP, _OF_GROUP, repeats=True, parameters=(parameter,))


def _streams() -> Iterator[Case]:
    """Eight bytes of each lane, a workgroup for every 2 KB; what counts is what the published benchmark counts."""
    groups = 256 * MIB // (2 * KIB)
    one = {"waves": 4, "registers": 24, "unroll": 1, "accumulators": 0}
    at = "s_lshl_b32 s11, s2, 11\nv_lshl_add_u32 v2, v1, 3, s11"
    read = "global_load_dwordx2 v[4:5], v2, s[4:5]\ns_waitcnt vmcnt(0)"
    for share, rate in ((1, 1.05), (2, 1.97), (4, 3.09), (8, 4.14)):
        yield Rate(f"read, 8 bytes a lane, {share} of 8 workgroups resident", "SC25", rate,
                   Kernel(read, at, lds_bytes=65536 // share if share < 8 else 0, **one), groups, 1, 2 * KIB,
                   parameters=("dispatch_clk",) if share == 1 else (_MEMORY,))
    yield Rate("init, 8 bytes a lane", "SC25", 4.59,
               Kernel("global_store_dwordx2 v2, v[2:3], s[4:5]", at, **one), groups, 1, 2 * KIB,
               parameters=("hbm_write_tb_per_s",))
    yield Rate("scale, 8 bytes a lane", "SC25", 3.97,
               Kernel(f"{read}\nglobal_store_dwordx2 v2, v[4:5], s[6:7]", at, **one), groups, 1, 4 * KIB,
               parameters=("turnaround_clk",))
    # The other two sources lie behind the first; the kernel's argument has their distance, which no cache holds.
    others = f"{at}\ns_add_u32 s12, s4, s9\ns_addc_u32 s13, s5, 0\ns_add_u32 s14, s12, s9\ns_addc_u32 s15, s13, 0"
    loads = "\n".join(f"global_load_dwordx2 v[{4 + 2 * k}:{5 + 2 * k}], v2, s[{first}:{first + 1}]"
                      for k, first in enumerate((4, 12, 14)))
    yield Rate("triad, 8 bytes a lane", "SC25", 3.88,
               Kernel(f"{loads}\ns_waitcnt vmcnt(0)\nv_fma_f64 v[4:5], v[4:5], v[6:7], v[8:9]\n"
                      "global_store_dwordx2 v2, v[4:5], s[6:7]", others, **one),
               groups, 1, 8 * KIB, 512 * MIB, parameters=("turnaround_clk",))
    five = "\n".join(f"global_load_dwordx2 v[{4 + 2 * k}:{5 + 2 * k}], v2, s[4:5] offset:{8 * k}" for k in range(5))
    sums = "\n".join(f"v_add_f64 v[4:5], v[4:5], v[{4 + 2 * k}:{5 + 2 * k}]" for k in range(1, 5))
    yield Rate("five points, 8 bytes a lane", "SC25", 3.63,
               Kernel(f"{five}\ns_waitcnt vmcnt(0)\n{sums}\nglobal_store_dwordx2 v2, v[4:5], s[6:7] offset:16", at,
                      **one), groups, 1, 4 * KIB, parameters=("turnaround_clk",))


def _rows(lanes: int) -> str:
    """v2 of lanes in rows: each row's place is twice as far from the one before as the row is long."""
    shift = {16: 8, 4: 6}[lanes]
    return f"v_and_b32 v3, {(1 << shift) - 1}, v2\nv_lshrrev_b32 v2, {shift}, v2\n" \
           f"v_lshl_add_u32 v2, v2, {shift + 1}, v3"


# The bytes of rows of 4 lanes, but lane l has row l mod 16 and column l / 16: neighbours lie in other rows.
_MATRIX = "v_and_b32 v4, 15, v1\nv_bfe_u32 v5, v1, 4, 2\nv_and_b32 v6, 0xc0, v1\nv_lshl_add_u32 v4, v4, 2, v5\n" \
          f"v_or_b32 v1, v4, v6\n{_OF_GRID}\n{_rows(4)}"
