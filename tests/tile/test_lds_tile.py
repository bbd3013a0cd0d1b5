# SPDX-License-Identifier: MIT
"""tile/lds_tile.h: what is stored comes back by rows and transposed, and no read has a bank conflict."""

import numpy as np
import pytest
import torch
from tile_program import Program

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "fp8": torch.float8_e4m3fnuz}
COLUMNS = {"bf16": (32, 64, 96, 128, 192, 256), "f16": (128,), "fp8": (64, 128, 192)}
CASES = [(t, columns) for t in DTYPES for columns in COLUMNS[t]]
GROUP_LANES = {16: 8, 8: 16, 4: 32}  # bytes of a lane's access → lanes that LDS serves at once
program = Program("tile/lds_tile.h", """
template <class T, int COLUMNS, class SWIZZLE>
__device__ void copies(const T* matrix, T* by_row, T* by_column) {
  __shared__ LdsTile<T, 64, COLUMNS, SWIZZLE> lds;
  constexpr int kRun = 16 / sizeof(T), kSlice = 4 * kRun, kStep = 4 / sizeof(T);
  for (int c = 0; c < COLUMNS; c += kSlice) {
    using Slice = RegTile<T, 16, kSlice, OperandByRow<kRun>>;
    for (int r = 0; r < 64; r += 16) {
      Slice slice;
      union { Slice tile; T elements[1][Slice::kPerStrip]; };
      for (int e = 0; e < Slice::kPerStrip; ++e)
        elements[0][e] = matrix[(r + Slice::row(0, e)) * COLUMNS + c + Slice::column(0, e)];
      store(lds, tile, r, c);
    }
  }
  for (int c = 0; c < COLUMNS; c += kSlice) {
    to_memory(by_row + 64 * c, load<RegTile<T, 64, kSlice, OperandByRow<kRun>>>(lds, 0, c));
    to_memory(by_column + 64 * c, load_transposed<RegTile<T, 64, 16 * kStep, OperandByColumn<4, kStep>>>(lds, 0, c));
  }
}
/// Offsets of the reads of operands, lane by lane.
template <class T, int COLUMNS>
__device__ void offsets(int* by_row, int* by_column) {
  constexpr int kRun = 16 / sizeof(T), kStep = 4 / sizeof(T);
  using ByRow = LdsTile<T, 64, COLUMNS, SwizzledByRow>;
  using ByColumn = LdsTile<T, 64, COLUMNS, SwizzledByColumn>;
  for (int i = 0; i < 4 * COLUMNS / kRun / 4; ++i) {
    const int strip = i % 4, run = i / 4;
    by_row[64 * i + lane_index()] = ByRow::offset(OperandByRow<kRun>::owned(strip),
                                                  OperandByRow<kRun>::depth(run * kRun) * sizeof(T));
  }
  using Column = OperandByColumn<4, kStep>;
  for (int i = 0; i < 16 * COLUMNS / 16 / kStep; ++i) {
    const int element = i % 16, set = i / 16;
    by_column[64 * i + lane_index()] = ByColumn::offset(Column::depth(element), Column::owned(set * kStep) * sizeof(T));
  }
}
""" + "".join(f"""
extern "C" __global__ void rows_{t}_{columns}(const {t}* matrix, {t}* by_row, {t}* by_column) {{
  copies<{t}, {columns}, SwizzledByRow>(matrix, by_row, by_column);
}}
extern "C" __global__ void columns_{t}_{columns}(const {t}* matrix, {t}* by_row, {t}* by_column) {{
  copies<{t}, {columns}, SwizzledByColumn>(matrix, by_row, by_column);
}}
extern "C" __global__ void offsets_{t}_{columns}(int* by_row, int* by_column) {{
  offsets<{t}, {columns}>(by_row, by_column);
}}""" for t, columns in CASES))


@pytest.mark.parametrize("t, columns", CASES)
@pytest.mark.parametrize("swizzle", ("rows", "columns"))
def test_what_is_stored_comes_back(t, columns, swizzle):
    """Also through the swizzle that is not meant for it: slower, not wrong."""
    dtype, width = DTYPES[t], 32 if t != "fp8" else 64
    x = torch.randint(-120, 120, (64, columns)).float().to(dtype)
    by_row, by_column = torch.zeros(2, columns // width, 64, width, dtype=torch.float32).to(dtype)
    program(f"{swizzle}_{t}_{columns}", x, by_row, by_column)
    expected = x.float().reshape(64, -1, width).transpose(0, 1)
    assert torch.equal(by_row.float(), expected) and torch.equal(by_column.float(), expected)


def conflicts(offsets: np.ndarray, access_bytes: int) -> int:
    """Most dwords of one bank, in different rows of the banks, that one group of lanes asks for; 1 = no conflict."""
    lanes = GROUP_LANES[access_bytes]
    worst = 0
    for access in offsets:
        for group in access.reshape(-1, lanes):
            dwords = {(offset + byte) // 4 for offset in group for byte in range(0, access_bytes, 4)}
            worst = max(worst, np.bincount([dword % 32 for dword in dwords]).max())
    return worst


@pytest.mark.parametrize("t, columns", CASES)
def test_reads_have_no_bank_conflicts(t, columns):
    per_row, per_column = 4 * columns * DTYPES[t].itemsize // 64, columns * DTYPES[t].itemsize // 4
    by_row, by_column = (torch.zeros(count, 64, dtype=torch.int32) for count in (per_row, per_column))
    program(f"offsets_{t}_{columns}", by_row, by_column)
    assert conflicts(by_row.numpy(), 16) == 1
    assert conflicts(by_column.numpy(), 4) == 1


def test_the_model_sees_conflicts():
    lanes = np.arange(64)
    assert conflicts((lanes % 16 * 256 + lanes // 16 * 16)[None], 16) == 8  # rows of 256 bytes without a swizzle
    assert conflicts((lanes % 16 * 4 + lanes // 16 * 4 * 256)[None], 4) == 2
