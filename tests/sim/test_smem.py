# SPDX-License-Identifier: MIT
"""Scalar memory: loads, stores and atomics of dwords, by address and through a descriptor, against NumPy."""

import numpy as np
import pytest
from asm import Case, run, run_many
from isa_model import table_names

ATOMICS = {
    "swap": lambda old, data, bits: data,
    "add": lambda old, data, bits: old + data,
    "sub": lambda old, data, bits: old - data,
    "smin": lambda old, data, bits: min(signed(old, bits), signed(data, bits)),
    "smax": lambda old, data, bits: max(signed(old, bits), signed(data, bits)),
    "umin": lambda old, data, bits: min(old, data),
    "umax": lambda old, data, bits: max(old, data),
    "and": lambda old, data, bits: old & data,
    "or": lambda old, data, bits: old | data,
    "xor": lambda old, data, bits: old ^ data,
    "inc": lambda old, data, bits: 0 if old >= data else old + 1,
    "dec": lambda old, data, bits: data if old == 0 or old > data else old - 1,
}
OPERANDS = (0, 1, 7, 1 << 31, (1 << 32) - 1, 0x123456789ABCDEF0, 1 << 63)


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> bits - 1 & 1 else x


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_loads(count):
    data = np.arange(64, dtype=np.uint32) * 3 + 7
    width = "" if count == 1 else f"x{count}"
    last = f":{16 + count - 1}]"
    dst, second = ("s16", "s32") if count == 1 else (f"s[16{last}", f"s[32:{32 + count - 1}]")
    third = "s48" if count == 1 else f"s[48:{48 + count - 1}]"
    outputs = [f"s{first + at}" for first in (16, 32, 48) for at in range(count)]
    got = run(f"s_add_u32 s8, s10, 64\ns_addc_u32 s9, s11, 0\ns_load_dword{width} {dst}, s[8:9], -0x10\n"
              f"s_load_dword{width} {second}, s[10:11], s12\ns_load_dword{width} {third}, s[10:11], s12 offset:0x8\n"
              "s_waitcnt lgkmcnt(0)", {"s12": 9}, outputs, buffers={"s[10:11]": data})
    for first, base in ((16, 12), (32, 2), (48, 4)):       # byte offsets 48; 9 and 17 without their low bits
        assert [int(got[f"s{first + at}"]) for at in range(count)] == data[base:base + count].tolist()


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_buffer_loads_obey_num_records(count):
    data = np.arange(64, dtype=np.uint32) + 1
    dst = "s32" if count == 1 else f"s[32:{32 + count - 1}]"
    other = "s48" if count == 1 else f"s[48:{48 + count - 1}]"
    width = "" if count == 1 else f"x{count}"
    outputs = [f"s{first + at}" for first in (32, 48) for at in range(count)]
    got = run(f"s_mov_b32 s8, s20\ns_mov_b32 s9, s21\ns_mov_b32 s10, 40\ns_mov_b32 s11, 0x20000\n"
              f"s_buffer_load_dword{width} {dst}, s[8:11], 0x10\ns_waitcnt lgkmcnt(0)\n"
              f"s_or_b32 s9, s9, 0x1c0000\ns_mov_b32 s10, 0\ns_mov_b32 s12, 8\n"
              f"s_buffer_load_dword{width} {other}, s[8:11], s12\ns_waitcnt lgkmcnt(0)",
              {}, outputs, buffers={"s[20:21]": data})
    wanted = [int(data[4 + at]) if 4 + at < 10 else 0 for at in range(count)]
    assert [int(got[f"s{32 + at}"]) for at in range(count)] == wanted
    assert not any(int(got[f"s{48 + at}"]) for at in range(count))         # zero records of 28 bytes


def test_stores_clocks_and_caches():
    data = np.zeros(16, np.uint32)
    got = run("s_store_dword s12, s[10:11], 0x4\ns_store_dwordx2 s[12:13], s[10:11], 0x8\n"
              "s_store_dwordx4 s[12:15], s[10:11], 0x10\ns_dcache_wb\ns_dcache_inv\ns_dcache_inv_vol\ns_dcache_wb_vol\n"
              "s_memtime s[16:17]\ns_memrealtime s[20:21]\ns_nop 0\ns_memtime s[18:19]\ns_waitcnt lgkmcnt(0)",
              {f"s{at}": at for at in range(12, 16)}, ["s[16:17]", "s[18:19]", "s[20:21]"], buffers={"s[10:11]": data})
    assert data[:8].tolist() == [0, 12, 12, 13, 12, 13, 14, 15]
    assert int(got["s[18:19]"]) > int(got["s[16:17]"])
    assert 2 * 128 <= int(got["s[18:19]"]) - int(got["s[16:17]"]) < 3 * 128
    assert int(got["s[16:17]"]) <= 21 * int(got["s[20:21]"]) + 20 and int(got["s[20:21]"]) < int(got["s[18:19]"])


def test_sleep_is_time():
    got = run("s_memtime s[16:17]\ns_sleep 127\ns_memtime s[18:19]\ns_waitcnt lgkmcnt(0)", {},
              ["s[16:17]", "s[18:19]"])
    assert 0 <= int(got["s[18:19]"]) - int(got["s[16:17]"]) - 64 * 127 - 128 < 64


def descriptor_text(records: int) -> str:
    """s[8:11] describes `records` bytes at the buffer whose address is in s[20:21]."""
    return f"s_mov_b32 s8, s20\ns_mov_b32 s9, s21\ns_mov_b32 s10, {records}\ns_mov_b32 s11, 0x20000\n"


def atomic_cases(name: str, bits: int, base: str) -> tuple[list[Case], list[tuple[int, int, int]]]:
    """A case per pair of OPERANDS, at byte 16 of 32, and its (old value, data, compare value)."""
    width, count = "_x2" if bits == 64 else "", bits // 32
    compares = name.endswith("cmpswap")
    registers = 2 * count if compares else count
    data_text = "s24" if registers == 1 else f"s[24:{23 + registers}]"
    cases, values = [], []
    for old in OPERANDS:
        for data in OPERANDS:
            mask = (1 << bits) - 1
            old_, data_, compare = old & mask, data & mask, (old if data % 2 else data) & mask
            words = np.array([data_, compare], np.uint64 if bits == 64 else np.uint32).view(np.uint32)
            memory = np.zeros(32 // (bits // 8), np.uint64 if bits == 64 else np.uint32)
            memory[16 // (bits // 8)] = old_
            cases.append(Case(
                f"{descriptor_text(24)}{name}{width} {data_text}, {base}, 0x10 glc\ns_waitcnt lgkmcnt(0)",
                {f"s{24 + at}": int(words[at]) for at in range(registers)}, [f"s{24 + at}" for at in range(count)],
                buffers={"s[20:21]": memory}))
            values.append((old_, data_, compare))
    return cases, values


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("prefix, base", [("s_atomic", "s[20:21]"), ("s_buffer_atomic", "s[8:11]")])
def test_atomics(prefix, base, bits):
    count = bits // 32
    for name, model in {**ATOMICS, "cmpswap": None}.items():
        cases, values = atomic_cases(f"{prefix}_{name}", bits, base)
        for case, result, (old, data, compare) in zip(cases, run_many(cases), values, strict=True):
            wanted = (data if old == compare else old) if model is None else model(old, data, bits)
            memory = next(iter(case.buffers.values()))
            assert int(memory[16 // (bits // 8)]) == wanted & (1 << bits) - 1, (name, hex(old), hex(data))
            assert np.count_nonzero(memory) <= 1
            assert sum(int(result[f"s{24 + at}"]) << 32 * at for at in range(count)) == old, (name, hex(old), hex(data))


def test_atomics_without_glc_leave_their_data():
    memory = np.array([5, 6], np.uint32)
    got = run("s_atomic_add s24, s[20:21], 0x4\ns_waitcnt lgkmcnt(0)", {"s24": 10}, ["s24"],
              buffers={"s[20:21]": memory})
    assert int(got["s24"]) == 10 and memory.tolist() == [5, 16]


def test_buffer_atomics_and_stores_obey_num_records():
    memory = np.arange(16, dtype=np.uint32)
    body = (f"{descriptor_text(24)}s_buffer_atomic_add s24, s[8:11], 0x18 glc\n"
            "s_buffer_store_dword s25, s[8:11], 0x4\ns_buffer_store_dwordx2 s[26:27], s[8:11], 0x8\n"
            "s_buffer_store_dwordx4 s[28:31], s[8:11], s32\ns_waitcnt lgkmcnt(0)\ns_dcache_wb\n"
            "s_atc_probe 0, s[20:21], 0x0\ns_atc_probe_buffer 0, s[8:11], 0x0")
    inputs = {f"s{at}": 100 + at for at in range(24, 32)}
    got = run(body, {**inputs, "s32": 16}, ["s24"], buffers={"s[20:21]": memory})
    assert int(got["s24"]) == 0
    assert memory.tolist() == [0, 125, 126, 127, 128, 129, *range(6, 16)]      # the last two of x4 are out of bounds


def test_every_smem_row_is_tested():
    widths = ("", "x2", "x4", "x8", "x16")
    tested = {f"s_{name}_dword{width}" for name in ("load", "buffer_load") for width in widths}
    tested |= {f"s_{name}_dword{width}" for name in ("store", "buffer_store") for width in widths[:3]}
    tested |= {f"s_{name}_{op}{width}" for name in ("atomic", "buffer_atomic") for op in (*ATOMICS, "cmpswap")
               for width in ("", "_x2")}
    tested |= {"s_atc_probe", "s_atc_probe_buffer"}
    tested |= {"s_memtime", "s_memrealtime", "s_dcache_wb", "s_dcache_inv", "s_dcache_inv_vol", "s_dcache_wb_vol"}
    assert tested == table_names("smem")
