# SPDX-License-Identifier: MIT
"""Public microbenchmarks of the MI300X, rebuilt: what was published, by whom, and a kernel that shows the same.

Sources: SC25 = hibagus/SC25_AMD_CDNA3_Artifact, raw logs (RRZE-HPC/gpu-benches on an MI300X); mt4g = caps-tum/mt4g;
pyhip = tingqli/pyhip (an MI308X, which has the same CU); fleet = cklxx/fleet-mi300x. The model's parameters come from
these; no case here is a whole kernel of anybody's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aiter_like.sim.validation.kernels import Kernel

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Slope:
    """Cycles of a body, without its loop: how the time grows with the loop's runs and with the body's repetitions.

    Attributes:
        published: cycles.
        per: what one body counts as (instructions, and waves that share a unit).
    """

    name: str
    source: str
    published: float
    kernel: Kernel
    per: float = 1
    loops: tuple[int, int] = (8, 40)
    unit: str = "clk"


@dataclass(frozen=True)
class Chase:
    """Cycles of a load that depends on the one before, over a footprint.

    Attributes:
        warm: the footprint is walked through once before it counts.
    """

    name: str
    source: str
    published: float
    footprint: int
    warm: bool = True
    scalar: bool = False
    unit: str = "clk"


@dataclass(frozen=True)
class Rate:
    """Bytes per time of a grid that fills the chip.

    Attributes:
        published: TB/s.
        groups: workgroups, `loops` runs of the loop, `number` the kernel's argument.
        bytes_per_loop: that one workgroup counts for, in one run of the unrolled loop.
        repeats: the rate is that of what more loops add, so that the first fill of a cache does not count.
    """

    name: str
    source: str
    published: float
    kernel: Kernel
    groups: int
    loops: int
    bytes_per_loop: int
    number: int = 0
    repeats: bool = False
    unit: str = "TB/s"


# What the model is known to miss: the beginning of a case's name → why.
UNEXPLAINED = {
    "one buffer of 2 MB": "how the benchmark spreads the buffer over the waves of a CU is not published",
    "one buffer of 8 MB": "all CUs are modelled in step, so that a line comes from the MALL once for all CUs of an "
                          "XCD; on the hardware they drift apart and fetch it again",
    "512 KB of its own": "the share of the MALL that one XCD has is assumed to be an eighth",
    "read, 1 loads": "latency grows under load on the hardware before the channels are full",
    "read, 2 loads": "as with one load in flight",
    "read, 4 loads": "as with one load in flight",
    "read, 8 bytes a lane, 4": "as with one load in flight of 256 lanes",
    "read, rows of 16": "bandwidth is modelled by bytes; rows that are apart cost the hardware DRAM pages too",
    "read, rows of 4": "as rows of 16 lanes",
}


Case = Slope | Chase | Rate


def cases() -> list[Case]:
    """All of them, by group: latencies, issue, LDS, bandwidth."""
    return [*_latencies(), *_issue(), *_lds(), *_bandwidths()]


def _latencies() -> Iterator[Case]:
    for name, source, published, footprint, warm in (
            ("L1", "SC25, mt4g", 116, 16 * KIB, True), ("L2, 2 MB", "SC25", 208.5, 2 * MIB, True),
            ("MALL, 16 MB", "SC25", 445, 16 * MIB, True), ("HBM, 550 MB", "SC25", 861, 550 * MIB, False)):
        yield Chase(f"latency of {name}", source, published, footprint, warm)
    yield Chase("latency of scalar L1", "mt4g", 48, 8 * KIB, scalar=True)


def mfma(shape: str = "16x16x16_f16", sources: str = "v[2:3], v[4:5]", first: int = 0, registers: int = 4) -> str:
    """A matrix operation that adds to a[first] and the registers after it."""
    kind, out = "i32" if shape.endswith("i8") else "f32", f"a[{first}:{first + registers - 1}]"
    return f"v_mfma_{kind}_{shape} {out}, {sources}, {out}"


def _issue() -> Iterator[Case]:
    valu, exp = "v_add_u32 v20, v1, v1", "v_exp_f32 v20, v1"
    packed = "v_pk_fma_f32 v[20:21], v[22:23], v[24:25], v[26:27]"
    yield Slope("plain VALU", "pyhip", 4.01, Kernel(valu))
    yield Slope("packed f32", "pyhip", 4.01, Kernel(packed))
    yield Slope("exp", "pyhip", 16.0, Kernel(exp))
    yield Slope("8 bytes across a multiple of 8", "pyhip", 5.01, Kernel(
        "s_nop 0\n" + "v_add_u32 v20, 0x12345, v1\n" * 16 + "s_nop 0"), per=16 + 2 * 4 / 5.01)
    yield Slope("exp and VALU in series", "pyhip", 20.0, Kernel(f"{exp}\n{valu}"))
    two = f"{mfma()}\n{mfma(first=4)}"
    for waves, clk in ((1, 16), (4, 16), (8, 32), (16, 64)):
        yield Slope(f"MFMA f16 16x16x16, {waves} waves of a CU", "SC25", clk, Kernel(two, waves=waves), per=2)
    yield Slope("MFMA fp8 16x16x32", "SC25", 16, Kernel(mfma("16x16x32_fp8_fp8")))
    yield Slope("MFMA f32 16x16x4", "SC25", 32, Kernel(mfma("16x16x4_f32", "v2, v3")))
    for count, clk in ((1, 16), (2, 16), (3, 16), (4, 20)):
        yield Slope(f"MFMA and {count} VALU", "pyhip", clk, Kernel("\n".join([mfma(), *[valu] * count])))
    for count, clk in ((1, 28), (2, 32), (3, 36)):
        yield Slope(f"MFMA and {count} packed f32", "pyhip", clk, Kernel("\n".join([mfma(), *[packed] * count])))
    for count, clk in ((1, 20.1), (2, 36.1), (3, 52.1)):
        yield Slope(f"MFMA and {count} exp", "pyhip", clk, Kernel("\n".join([mfma(), *[exp] * count])))


def _lds() -> Iterator[Case]:
    wide = "v_lshlrev_b32 v5, 4, v1\nv_and_b32 v5, 0x3ff0, v5"
    read = "ds_read_b128 v[{k}%8*4+12:{k}%8*4+15], v5"
    lds = {"lds_bytes": 16 * KIB, "registers": 80}
    for width, clk in (("b32 v10", 52), ("b128 v[12:15]", 64)):
        yield Slope(f"LDS latency, {width.split(' ')[0]}", "pyhip, mt4g", clk,
                    Kernel(f"ds_read_{width}, v5\ns_waitcnt lgkmcnt(0)", wide.replace("4, v1", "2, v0"), **lds))
    yield Slope("ds_read_b128 of one wave", "pyhip", 16, Kernel(read, wide, **lds))
    yield Slope("ds_read_b128 of a CU", "pyhip", 8, Kernel(read, wide, waves=8, **lds), per=8)
    yield Slope("ds_read_b32 of one wave", "pyhip", 4,
                Kernel("ds_read_b32 v[{k}%16+12], v5", "v_lshlrev_b32 v5, 2, v0", **lds))
    for stride, clk in ((2, 4.2), (4, 8.07), (8, 16.06), (16, 32.03), (32, 64)):
        prepare = f"v_mul_u32_u24 v5, {4 * stride}, v0\nv_and_b32 v5, 0x3fff, v5"
        yield Slope(f"LDS, {stride} dwords between lanes", "pyhip, relative to 32: 64 clk", clk,
                    Kernel("ds_read_b32 v[{k}%16+12], v5", prepare, waves=8, **lds), per=8)


# v2 = 16 * work-item of the grid, for workgroups of 256.
_OF_GRID = "s_lshl_b32 s11, s2, 12\nv_lshl_add_u32 v2, v1, 4, s11"
_TO = "v[{k}%16*4+12:{k}%16*4+15]"


def _bandwidths() -> Iterator[Case]:
    reads = {"waves": 4, "registers": 80, "unroll": 8, "accumulators": 0}
    step = f"global_load_dwordx4 {_TO}, v2, s[4:5]\nv_add_u32 v2, v2, s9"
    of_group = 8 * 4 * KIB                     # bytes of a workgroup's eight loads
    around = "v_lshlrev_b32 v2, 4, v1\nv_mov_b32 v3, v2"
    yield Rate("L1, 16 KB a CU", "SC25", 39.0,
               Kernel(f"global_load_dwordx4 {_TO}, v2, s[4:5]\nv_add_u32 v2, 0x1000, v2\nv_and_b32 v2, 0x3fff, v2",
                      around, **{**reads, "waves": 16}), 304, 64, 4 * of_group, repeats=True)
    for size, rate in ((2 * MIB, 28.0), (8 * MIB, 17.4)):
        mask = size - 1
        yield Rate(f"one buffer of {size // MIB} MB for all CUs", "SC25", rate,
                   Kernel(f"global_load_dwordx4 {_TO}, v2, s[4:5]\nv_add_u32 v2, 0x4000, v2\n"
                          f"v_and_b32 v2, {mask:#x}, v2", around, **{**reads, "waves": 16}),
                   304, size // of_group, 4 * of_group, repeats=True)
    for size, rate in ((96 * KIB, 19.5), (512 * KIB, 5.0)):
        own = f"s_mul_i32 s11, s2, {size}\n{around}\ns_add_u32 s4, s4, s11\ns_addc_u32 s5, s5, 0"
        passes = max(16 * 96 * KIB // size, 1)
        yield Rate(f"{size // KIB} KB of its own for each CU", "SC25", rate,
                   Kernel(f"global_load_dwordx4 {_TO}, v2, s[4:5]\nv_add_u32 v2, 0x1000, v2\n"
                          f"v_cmp_gt_u32 vcc, {size:#x}, v2\nv_cndmask_b32 v2, v3, v2, vcc", own,
                          **reads), 304, passes * size // of_group, of_group, repeats=True)
    for flight, rate in ((1, 2.59), (2, 3.40), (4, 3.74), (8, 4.24), (16, 4.15)):
        body = f"{step}\ns_waitcnt vmcnt({flight - 1})"
        yield Rate(f"read, {flight} loads in flight of 256 lanes a CU", "fleet", rate,
                   Kernel(body, _OF_GRID, **{**reads, "unroll": 16, "registers": 96}), 304, 24, 2 * of_group,
                   304 * 4 * KIB)
    groups = 256 * MIB // (2 * KIB)
    one = {"waves": 4, "registers": 16, "unroll": 1, "accumulators": 0}
    at8 = "s_lshl_b32 s11, s2, 11\nv_lshl_add_u32 v2, v1, 3, s11"
    read8 = "global_load_dwordx2 v[4:5], v2, s[4:5]\ns_waitcnt vmcnt(0)"
    for share, rate in ((1, 1.05), (2, 1.97), (4, 3.09), (8, 4.14)):
        yield Rate(f"read, 8 bytes a lane, {share} of 8 workgroups resident", "SC25", rate,
                   Kernel(read8, at8, lds_bytes=65536 // share if share < 8 else 0, **one), groups, 1, 2 * KIB)
    yield Rate("init, 8 bytes a lane", "SC25", 4.59,
               Kernel("global_store_dwordx2 v2, v[2:3], s[4:5]", at8, **one), groups, 1, 2 * KIB)
    yield Rate("scale, 8 bytes a lane", "SC25", 3.97,
               Kernel(f"{read8}\nglobal_store_dwordx2 v2, v[4:5], s[6:7]", at8, **one), groups, 1, 4 * KIB)
    for name, prepare, rate, apart in (
            ("64 lanes in a row", _OF_GRID, 4.0, 1), ("rows of 16 lanes", f"{_OF_GRID}\n{_rows(16)}", 3.8, 2),
            ("rows of 4 lanes", f"{_OF_GRID}\n{_rows(4)}", 1.8, 2)):
        yield Rate(f"read, {name}", "pyhip", rate,
                   Kernel(f"{step}\ns_waitcnt vmcnt(7)", prepare, **{**reads, "unroll": 16, "registers": 96}), 608, 24,
                   2 * of_group, apart * 608 * 4 * KIB)


def _rows(lanes: int) -> str:
    """v2 of lanes in rows: each row's place is twice as far from the one before as the row is long."""
    shift = {16: 8, 4: 6}[lanes]
    return f"v_and_b32 v3, {(1 << shift) - 1}, v2\nv_lshrrev_b32 v2, {shift}, v2\n" \
           f"v_lshl_add_u32 v2, v2, {shift + 1}, v3"
