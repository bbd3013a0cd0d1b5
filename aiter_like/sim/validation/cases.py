# SPDX-License-Identifier: MIT
"""Public microbenchmarks of the MI300X, rebuilt: what was published, by whom, and a kernel that shows the same.

The model's parameters come from these; no case here is a whole kernel of anybody's. case.py names the sources.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from aiter_like.sim.validation.bandwidths import bandwidths
from aiter_like.sim.validation.case import KIB, MIB, Case, Chase, Flag, Rate, Slope, Stall
from aiter_like.sim.validation.kernels import Kernel

VALU, EXP = "v_add_u32 v20, v1, v1", "v_exp_f32 v20, v1"
PACKED = "v_pk_fma_f32 v[20:21], v[22:23], v[24:25], v[26:27]"


def cases() -> list[Case]:
    """All of them, by group: latencies, issue, LDS, vector memory of a CU, bandwidth, atomics, flags."""
    return [*_latencies(), *_issue(), *_matrix_rates(), *_lds(), *_vector_memory(), *bandwidths(), *_atomics(),
            *_flags()]


def mfma(shape: str = "16x16x16_f16", sources: str = "v[2:3], v[4:5]", first: int = 0, registers: int = 4) -> str:
    """A matrix operation that adds to a[first] and the registers after it."""
    kind = "i32" if shape.endswith("i8") else "f64" if shape.endswith("f64") else "f32"
    out = f"a[{first}:{first + registers - 1}]"
    return f"v_mfma_{kind}_{shape} {out}, {sources}, {out}"


def _latencies() -> Iterator[Case]:
    for name, source, published, footprint, warm, parameter in (
            ("L1", "SC25, mt4g", 116, 16 * KIB, True, "l1_latency_clk"),
            ("L2, 2 MB", "SC25", 208.5, 2 * MIB, True, "l2_latency_clk"),
            ("L2 and MALL, 4.6 MB", "SC25", 388, 4_600_064, True, "l2_bytes"),
            ("MALL, 16 MB", "SC25", 445, 16 * MIB, True, "mall_latency_clk"),
            ("MALL, 92 MB", "SC25", 476, 92_000_000 // 128 * 128, True, "mall_bytes"),
            ("MALL, 161 MB", "SC25", 504, 161_000_000 // 128 * 128, True, "mall_bytes"),
            ("HBM, 550 MB", "SC25", 861, 550 * MIB, False, "hbm_latency_clk"),
            ("HBM, 1.9 GB", "SC25", 869, 1_900_000_000 // 128 * 128, False, "hbm_latency_clk")):
        yield Chase(f"latency of {name}", source, published, footprint, warm, parameters=(parameter,))
    yield Chase("latency of HBM, the first touch of a page", "MrRoy09", 1212, 1 << 30, False, apart=2 * MIB,
                parameters=("hbm_latency_clk",))
    yield Chase("what an L1 miss adds", "mt4g", 134, 2 * MIB, minus=16 * KIB, parameters=("l2_latency_clk",))
    for modifier in ("sc1", "nt"):
        yield Chase(f"latency of a load with {modifier}, 16 KB", "MrRoy09", 224, 16 * KIB, modifier=f" {modifier}",
                    parameters=("l2_latency_clk",))
    store = Kernel("global_store_dword v3, v1, s[4:5]\ns_waitcnt vmcnt(0)", "v_mov_b32 v3, 0")
    yield Slope("latency of a load after a store to its place", "MrRoy09", 208, Kernel(
        f"{store.body}\nglobal_load_dword v4, v3, s[4:5]\ns_waitcnt vmcnt(0)", store.prepare), minus=store,
                parameters=("l2_latency_clk",))
    yield Chase("latency of scalar L1", "mt4g", 48, 8 * KIB, scalar=True, parameters=("scalar_latency_clk",))


def _issue() -> Iterator[Case]:
    yield Slope("plain VALU", "pyhip", 4.01, Kernel(VALU), parameters=("valu_clk",))
    yield Slope("packed f32", "pyhip", 4.01, Kernel(PACKED), parameters=("valu_clk",))
    yield Slope("exp", "pyhip", 16.0, Kernel(EXP), parameters=("trans_clk",))
    yield Slope("rcp", "pyhip", 16.0, Kernel("v_rcp_f32 v20, v1"), parameters=("trans_clk",))
    yield Slope("8 bytes across a multiple of 8", "pyhip", 5.01, Kernel(
        "s_nop 0\n" + "v_add_u32 v20, 0x12345, v1\n" * 16 + "s_nop 0"), per=16 + 2 * 4 / 5.01,
                parameters=("straddle_clk",))
    yield Slope("exp and VALU in series", "pyhip", 20.0, Kernel(f"{EXP}\n{VALU}"), parameters=("trans_clk",))
    two = f"{mfma()}\n{mfma(first=4)}"
    for waves, clk in ((1, 16), (4, 16), (8, 32), (16, 64)):
        yield Slope(f"MFMA f16 16x16x16, {waves} waves of a CU", "SC25", clk, Kernel(two, waves=waves), per=2,
                    parameters=("pass_clk",))
    for name, body, clk in (("bf16 16x16x16", mfma("16x16x16_bf16"), 16),
                            ("fp8 16x16x32", mfma("16x16x32_fp8_fp8"), 16),
                            ("i8 16x16x32", mfma("16x16x32_i8"), 16),
                            ("f32 16x16x4", mfma("16x16x4_f32", "v2, v3"), 32),
                            ("f64 16x16x4", mfma("16x16x4_f64", registers=8), 32)):
        yield Slope(f"MFMA {name}", "SC25", clk, Kernel(body), parameters=("pass_clk",))
    for count, clk in ((1, 16), (2, 16), (3, 16), (4, 20)):
        yield Slope(f"MFMA and {count} VALU", "pyhip", clk, Kernel("\n".join([mfma(), *[VALU] * count])),
                    parameters=("valu_clk",))
    for count, clk in ((1, 28), (2, 32), (3, 36)):
        yield Slope(f"MFMA and {count} packed f32", "pyhip", clk, Kernel("\n".join([mfma(), *[PACKED] * count])),
                    parameters=("packed_after_mfma_clk",))
    for count, clk in ((1, 20.1), (2, 36.1), (3, 52.1)):
        yield Slope(f"MFMA and {count} exp", "pyhip", clk, Kernel("\n".join([mfma(), *[EXP] * count])),
                    parameters=("trans_clk",))


def _matrix_rates() -> Iterator[Case]:
    """Rates of the whole chip from registers full of zeros, in flops of four waves' operations."""
    for name, shape, depth, rate in (("bf16", "16x16x16_bf16", 16, 1252), ("fp16", "16x16x16_f16", 16, 1246),
                                     ("fp8", "16x16x32_fp8_fp8", 32, 2405), ("i8", "16x16x32_i8", 32, 2456)):
        idle = "\n".join(f"v_mov_b32 v{register}, 0" for register in range(2, 6))
        kernel = Kernel(f"{mfma(shape)}\n{mfma(shape, first=4)}", idle, waves=4)
        yield Rate(f"MFMA {name}, 304 CUs", "SC25", rate, kernel, 304, 200, 4 * 2 * kernel.unroll * 2 * 256 * depth,
                   repeats=True, unit="TFLOP/s", parameters=("pass_clk",))


def _lds() -> Iterator[Case]:
    wide = "v_lshlrev_b32 v5, 4, v1\nv_and_b32 v5, 0x3ff0, v5"
    read = "ds_read_b128 v[{k}%8*4+12:{k}%8*4+15], v5"
    lds = {"lds_bytes": 16 * KIB, "registers": 80}
    for width, clk in (("b32 v10", 52), ("b128 v[12:15]", 64)):
        yield Slope(f"LDS latency, {width.split(' ')[0]}", "pyhip, mt4g", clk,
                    Kernel(f"ds_read_{width}, v5\ns_waitcnt lgkmcnt(0)", wide.replace("4, v1", "2, v0"), **lds),
                    parameters=("lds_latency_clk",))
    yield Slope("ds_read_b128 of one wave", "pyhip", 16, Kernel(read, wide, **lds), parameters=("lds_return_bytes",))
    yield Slope("ds_read_b128 of a CU", "pyhip", 8, Kernel(read, wide, waves=8, **lds), per=8)
    yield Slope("ds_read_b32 of one wave", "pyhip", 4,
                Kernel("ds_read_b32 v[{k}%16+12], v5", "v_lshlrev_b32 v5, 2, v0", **lds))
    for stride, clk in ((2, 4.2), (4, 8.07), (8, 16.06), (16, 32.03), (32, 64)):
        yield Slope(f"LDS, {stride} dwords between lanes", "pyhip, relative to 32: 64 clk", clk,
                    Kernel("ds_read_b32 v[{k}%16+12], v5", _apart(stride), waves=8, **lds), per=8)
    for stride, name, latency, clk in ((8, "lanes on 4 banks", 120, 16), (32, "lanes on one bank", 119, 64)):
        yield Slope(f"LDS latency, b32, all {name}", "pyhip", latency,
                    Kernel("ds_read_b32 v12, v5\ns_waitcnt lgkmcnt(0)", _apart(stride), **lds),
                    parameters=("lds_latency_clk",))
        yield Slope(f"ds_read_b32 of one wave, all {name}", "pyhip", clk,
                    Kernel("ds_read_b32 v[{k}%16+12], v5", _apart(stride), **lds))


def _apart(stride: int) -> str:
    return f"v_mul_u32_u24 v5, {4 * stride}, v0\nv_and_b32 v5, 0x3fff, v5"


def _vector_memory() -> Iterator[Case]:
    """Bursts of eleven, as published: their time without the first one's, through ten; one wave, memory far away."""
    step = "s_waitcnt vmcnt(0)\ns_add_u32 s16, s16, 0x4000\ns_and_b32 s16, s16, 0x3fffff"
    for name, load, shift, clk, parameter in (
            ("buffer_load_dwordx4", "buffer_load_dwordx4 v[{to}:{to3}], v{at}, s[12:15], s16 offen", 4, 32,
             "l1_fill_bytes"),
            ("buffer_load_dword to LDS", "buffer_load_dword v{at}, s[12:15], s16 offen lds", 2, 11, "lds_dma_clk")):
        def burst(count: int, load: str = load, shift: int = shift) -> Kernel:
            lines = [load.format(at=60 + k, to=4 * k + 12, to3=4 * k + 15) for k in range(count)]
            return Kernel("\n".join([*lines, step]), _far(shift), unroll=4, lds_bytes=8 * KIB, registers=80)

        yield Slope(f"{name}, ten more of a wave", "pyhip", clk, burst(11), per=10, minus=burst(1),
                    parameters=(parameter,))
    order = random.Random(0).sample(range(1024), 56)
    loads = tuple(f"s_movk_i32 s{20 + k % 40}, {place}\ns_lshl_b32 s{20 + k % 40}, s{20 + k % 40}, 12\n"
                  f"buffer_load_dword v{k + 4}, v60, s[12:15], s{20 + k % 40} offen"
                  for k, place in enumerate(order))
    yield Stall("loads in a row before issue stalls", "pyhip", 24, loads, _far(2), "memory queue",
                parameters=("vmem_queue",))


def _far(shift: int) -> str:
    """A buffer descriptor of all memory from the first buffer on, and the places of eleven accesses of a wave."""
    places = "\n".join(f"v_add_u32 v{60 + k}, {k << shift + 6}, v60" for k in range(1, 11))
    return f"v_lshlrev_b32 v60, {shift}, v0\n{places}\ns_mov_b64 s[12:13], s[4:5]\ns_mov_b32 s14, -1\n" \
           "s_mov_b32 s15, 0x20000\ns_mov_b32 s16, 0\ns_mov_b32 m0, 0"


def _atomics() -> Iterator[Case]:
    yield Slope("atomic in L2, one lane", "rocprof", 382,
                Kernel("global_atomic_add v4, v3, v1, s[4:5] sc0\ns_waitcnt vmcnt(0)",
                       "v_mov_b32 v3, 0\ns_mov_b64 exec, 1"), parameters=("atomic_latency_clk",))
    one = {"waves": 4, "registers": 16, "unroll": 1, "accumulators": 0}
    at4 = "s_lshl_b32 s11, s2, 10\nv_lshl_add_u32 v2, v1, 2, s11\nv_mov_b32 v3, 0"
    yield Rate("pk_add_bf16 atomics, of the rate of stores", "pyhip", 0.25,
               Kernel("global_atomic_pk_add_bf16 v2, v3, s[4:5]", at4, **one), 256 * MIB // KIB, 1, KIB,
               unit="times", relative=Kernel("global_store_dword v2, v3, s[4:5]", at4, **one),
               parameters=("atomic_clk",))


def _flags() -> Iterator[Case]:
    yield Flag("flag, round trip in an XCD", "fleet", 1.20, 8)
    yield Flag("flag, round trip to another XCD", "fleet", 1.44, 1)
    yield Flag("flag, round trip to another XCD under load", "fleet", 6.8, 1, is_loaded=True)
