# SPDX-License-Identifier: MIT
"""Definedness through matrix operations and LDS-DMA.

What an undefined operand of a matrix operation makes undefined is what a NaN there makes NaN.
"""

import ctypes

import numpy as np
import pytest
from asm import run
from checking import listing, only, reports
from hip_runtime import runtime

LANE = np.arange(64, dtype=np.uint32)
UNDEFINED = "ds_read_b32 v1, v0 offset:256\ns_waitcnt lgkmcnt(0)\n"      # v1: LDS that nobody wrote
NAN = 0x7FFF7FFF                                       # in f16, bf16 and f32, and as the high half of f64
ONES = 0x3C003C00                                      # not zero in any of them
LANES = (1 << 5, 1 << 63 | 1 << 34 | 1 << 16 | 1 << 1)
OPERANDS = {"a": range(10, 12), "b": range(12, 16), "index": range(16, 17)}


def _body(matrix: str, operand: str) -> str:
    moves = "\n".join(f"v_mov_b32_e32 v{register}, v1" for register in OPERANDS[operand])
    return f"s_mov_b64 exec, s[20:21]\n{moves}\ns_mov_b64 exec, -1\ns_nop 4\n{matrix}\ns_nop 15\ns_nop 3\n"


def _inputs(lanes: int) -> dict:
    ones = {f"v{register}": LANE * 0 + ONES for register in range(10, 17)}
    return {"v0": LANE * 4, "s[20:21]": lanes, **ones, **{f"v{register}": LANE * 0 for register in range(20, 52)}}


def _undefined(matrix: str, rows: int, operand: str, lanes: int) -> np.ndarray:
    """Which lanes of which result register are undefined: bool [rows, 64]."""
    stores = "\n".join(f"global_store_dword v0, v{20 + row}, s[10:11]" for row in range(rows))
    found = reports(f"{UNDEFINED}{_body(matrix, operand)}{stores}\ns_waitcnt vmcnt(0)", _inputs(lanes), ("uninit",),
                    lds_bytes=1024, buffers={"s[10:11]": np.zeros(64, np.uint32)})
    table = np.zeros((rows, 64), bool)
    for report in found:
        assert report["text"].startswith("global_store_dword v0, v"), listing(found)
        row = int(report["text"].split("v0, v")[1].split(",")[0]) - 20
        table[row] = [report["lanes"] >> lane & 1 for lane in range(64)]
    return table


def _not_a_number(matrix: str, rows: int, operand: str, lanes: int) -> np.ndarray:
    result = run(_body(matrix, operand), {**_inputs(lanes), "v1": LANE * 0 + NAN}, [f"v{20 + r}" for r in range(rows)])
    bits = np.stack([result[f"v{20 + row}"] for row in range(rows)])
    if "_f64_" in matrix:
        wide = bits[0::2].astype(np.uint64) | bits[1::2].astype(np.uint64) << np.uint64(32)
        return np.repeat(np.isnan(wide.view(np.float64)), 2, axis=0)
    return np.isnan(bits.view(np.float32))


MFMA_4, MFMA_32 = "v_mfma_f32_4x4x4_16b_f16 v[20:23], {}", "v_mfma_f32_32x32x4_2b_bf16 v[20:51], {}"
TWO, ONE = "v[10:11], v[12:13], 0", "v10, v12, 0"


@pytest.mark.parametrize("matrix, rows", [
    *[(f"{MFMA_4.format(TWO)}{more}", 4)
      for more in ("", " cbsz:2 abid:1", " cbsz:4 abid:9", " blgp:1", " blgp:2", " blgp:3", " cbsz:1 blgp:6")],
    *[(f"{MFMA_32.format(TWO)}{more}", 32) for more in ("", " cbsz:1 abid:1", " cbsz:1 blgp:2")],
    (f"v_mfma_f32_16x16x1_4b_f32 v[20:35], {ONE} cbsz:1 abid:1 blgp:3", 16),
    (f"v_mfma_f32_16x16x4_f32 v[20:23], {ONE} blgp:7", 4),
    (f"v_mfma_f64_4x4x4_4b_f64 v[20:21], {TWO}", 2),
    (f"v_mfma_f64_4x4x4_4b_f64 v[20:21], {TWO} neg:[1,1,0]", 2),
    (f"v_mfma_f64_16x16x4_f64 v[20:27], {TWO}", 8),
    ("v_smfmac_f32_16x16x32_f16 v[20:23], v[10:11], v[12:15], v16", 4),
    ("v_smfmac_f32_16x16x32_bf16 v[20:23], v[10:11], v[12:15], v16 abid:1", 4),
    ("v_smfmac_f32_32x32x16_f16 v[20:35], v[10:11], v[12:15], v16", 16)])
def test_undefined_as_a_nan_would_be(matrix, rows):
    for operand in "ab":
        for lanes in LANES:
            expected = _not_a_number(matrix, rows, operand, lanes)
            np.testing.assert_array_equal(_undefined(matrix, rows, operand, lanes), expected, f"{operand} {lanes:#x}")


def test_a_broadcast_block_that_is_not_used_may_be_undefined():
    matrix = f"{MFMA_4.format(TWO)} cbsz:2 abid:1"
    assert not _undefined(matrix, 4, "a", 0x000F).any()                 # block 0: replaced by block 1
    assert _undefined(matrix, 4, "a", 0x00F0)[:, :16].all()


def test_the_index_of_a_sparse_operation_counts_for_its_row():
    matrix = "v_smfmac_f32_16x16x32_f16 v[20:23], v[10:11], v[12:15], v16"
    table = _undefined(matrix, 4, "index", 1 << 5)
    np.testing.assert_array_equal(table, _undefined(matrix, 4, "a", 1 << 5))
    assert table.sum() == 16


# ---- LDS-DMA: UNDEFINED reads what it brought

BUFFER = "s_mov_b32 s6, 256\ns_mov_b32 s7, 0x27000\ns_and_b32 s5, s5, 0xffff\n"


@pytest.mark.parametrize("load", ["global_load_lds_dword v0, s[4:5]",
                                  BUFFER + "buffer_load_dword v0, s[4:7], 0 offen lds"])
def test_memory_that_nobody_wrote_through_an_lds_dma(load):
    body = f"s_mov_b32 m0, 0x100\ns_nop 0\n{load}\ns_waitcnt vmcnt(0)\n{UNDEFINED}global_store_dword v0, v1, s[10:11]"
    write = "global_store_dword v0, v5, s[4:5]\n"
    report = only(_dma_reports(f"s_mov_b64 exec, 0xffff\n{write}s_mov_b64 exec, -1\n{body}"), "uninit",
                  "global_store_dword v0, v1, .*", "stores v1", "LDS byte 320")
    assert report["lanes"] == 2**64 - 2**16
    assert not _dma_reports(write + body)


@pytest.mark.parametrize("extends, mask", [("ubyte", 0xFF), ("sbyte", 0xFF00)])
def test_a_byte_through_an_lds_dma(extends, mask):
    """The upper bytes of the dword are zeros, or copies of the byte's sign."""
    body = f"s_mov_b32 m0, 0x100\ns_nop 0\nglobal_load_lds_{extends} v0, s[4:5]\ns_waitcnt vmcnt(0)\n{UNDEFINED}" \
        "v_and_b32 v1, {0:#x}, v1\nglobal_store_dword v0, v1, s[10:11]"
    only(_dma_reports(body.format(mask)), "uninit", "global_store_dword v0, v1, .*", "stores v1")
    if extends == "ubyte":
        assert not _dma_reports(body.format(0xFFFFFF00))
    assert not _dma_reports("global_store_byte v0, v5, s[4:5]\n" + body.format(mask))


def _dma_reports(body: str) -> list[dict]:
    """s[4:5]: 256 bytes of new device memory."""
    hip, pointer = runtime(), ctypes.c_void_p()
    hip.call("hipMalloc", ctypes.byref(pointer), ctypes.c_size_t(256))
    try:
        inputs = {"v0": LANE * 4, "v5": LANE, "s[4:5]": pointer.value}
        return reports(f"{body}\ns_waitcnt vmcnt(0)", inputs, ("uninit",), lds_bytes=1024,
                       buffers={"s[10:11]": np.zeros(64, np.uint32)})
    finally:
        hip.call("hipFree", pointer)
