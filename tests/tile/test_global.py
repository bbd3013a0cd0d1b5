# SPDX-License-Identifier: MIT
"""tile/global.h: views select and slice, windows over an edge read zeros and write nothing outside."""

import math

import pytest
import torch
from tile_program import Program

from aiter_like.testing import strided_like

program = Program("tile/global.h", """
extern "C" __global__ void select_and_slice(const bf16* data, int* offsets) {
  const GlobalView<const bf16, 4> view{data, {3, 5, 7, 64}, {4096, 640, 64, 1}};
  const MatrixView<const bf16> matrix = view.select<0>(2).select<1>(4).slice(1, 3);
  offsets[0] = static_cast<int>(matrix.data - data);
  offsets[1] = static_cast<int>(matrix.sizes[0]), offsets[2] = static_cast<int>(matrix.sizes[1]);
  offsets[3] = static_cast<int>(matrix.strides[0]), offsets[4] = static_cast<int>(matrix.strides[1]);
}
template <class T>
__device__ void read_window(const T* data, int64_t rows, int64_t columns, int64_t stride, int64_t first_row, T* out) {
  constexpr int kRun = 16 / sizeof(T), kSlice = 4 * kRun;
  const TileWindow<const T, 32, 2 * kSlice> window({data, {rows, columns}, {stride, 1}}, first_row);
  to_memory(out, load_global<RegTile<T, 32, kSlice, OperandByRow<kRun>>>(window, 0));
  to_memory(out + 32 * kSlice, load_global<RegTile<T, 32, kSlice, OperandByRow<kRun>>>(window, kSlice));
}
extern "C" __global__ void read_bf16(const bf16* data, int64_t rows, int64_t columns, int64_t stride, int64_t first,
                                     bf16* out) { read_window(data, rows, columns, stride, first, out); }
extern "C" __global__ void read_fp8(const fp8* data, int64_t rows, int64_t columns, int64_t stride, int64_t first,
                                    fp8* out) { read_window(data, rows, columns, stride, first, out); }
extern "C" __global__ void read_from_column(const bf16* data, int64_t rows, int64_t columns, int64_t first_row,
                                            int64_t first_column, bf16* out) {
  const TileWindow<const bf16, 32, 32> window({data, {rows, columns}, {columns, 1}}, first_row, first_column);
  to_memory(out, load_global<RegTile<bf16, 32, 32, OperandByRow<8>>>(window, 0));
}
extern "C" __global__ void copy_chunks(const float* data, int64_t rows, int64_t columns, int64_t step, float* out) {
  const TileWindow<const float, 16, 16> from({data, {rows, columns}, {columns, 1}}, 0);
  const TileWindow<float, 16, 16> to({out, {rows, columns}, {columns, 1}}, 0);
  const int row = thread_index() / 4, column = thread_index() % 4 * 4;
  const Chunk chunk = load_chunk(from.descriptor(), from.offset(row, column), static_cast<uint32_t>(step));
  store_words(to.descriptor(), to.offset(row, column), chunk);
}
extern "C" __global__ void copy_fragments(const bf16* data, int64_t rows, int64_t columns, bf16* out) {
  const TileWindow<const bf16, 16, 16> from({data, {rows, columns}, {columns, 1}}, 0);
  const TileWindow<bf16, 16, 16> to({out, {rows, columns}, {columns, 1}}, 0);
  const int row = thread_index() / 4, column = thread_index() % 4 * 4;
  const Chunk chunk = load_chunk(from.descriptor(), from.offset(row, column));
  store_words(to.descriptor(), to.offset(row, column), Vec<uint32_t, 2>{{chunk[0], chunk[1]}});
}
template <class T, class PRODUCT>
__device__ void write_window(const float* matrix, int64_t rows, int64_t columns, int64_t stride, int64_t first_row,
                             T* out) {
  const TileWindow<T, 32, 64> window({out, {rows, columns}, {stride, 1}}, first_row);
  store_transposed<Rounding::kNearestEven>(window, from_memory<RegTile<float, 64, 32, PRODUCT>>(matrix), 0);
}
""" + "".join(f"""
extern "C" __global__ void write_{t}_{step}(const float* matrix, int64_t rows, int64_t columns, int64_t stride,
                                            int64_t first, {t}* out) {{
  write_window<{t}, Product<{step}>>(matrix, rows, columns, stride, first, out);
}}""" for t in ("bf16", "float") for step in (1, 2, 4)))


def test_select_and_slice():
    offsets = torch.zeros(5, dtype=torch.int32)
    program("select_and_slice", torch.zeros(1, dtype=torch.bfloat16), offsets)
    assert offsets.tolist() == [2 * 4096 + 4 * 64 + 640, 3, 64, 640, 1]


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float8_e4m3fnuz), ids=str)
@pytest.mark.parametrize("rows, columns, first", ((40, 64, 0), (40, 64, 32), (40, 48, 20), (8, 16, 0), (40, 64, 64)))
def test_a_window_over_the_edge_reads_zeros(dtype, rows, columns, first):
    """What lies between the rows is NaN; the bounds checker knows where the tensor ends."""
    columns = columns * 2 // dtype.itemsize
    width = 128 // dtype.itemsize
    x = torch.randint(-15, 16, (rows, columns)).float()  # exact in fp8
    padded = torch.full((rows, columns + 16), math.nan).to(dtype)
    padded[:, :columns] = x.to(dtype)
    inside = padded.as_strided((rows, columns), (columns + 16, 1))
    out = torch.zeros(2, 32, width // 2).to(dtype)
    program(f"read_{'bf16' if dtype.itemsize == 2 else 'fp8'}", inside, rows, columns, columns + 16, first, out)
    expected = torch.zeros(32, width)
    part = x[first:first + 32]
    expected[:len(part), :columns] = part
    assert torch.equal(torch.cat(tuple(out.float()), 1), expected)


@pytest.mark.parametrize("step", (1, 2, 4))
@pytest.mark.parametrize("t, dtype", (("bf16", torch.bfloat16), ("float", torch.float32)))
def test_a_window_over_the_edge_writes_nothing_outside(t, dtype, step):
    for rows, columns, first in ((40, 64, 0), (40, 64, 32), (40, 48, 20)):
        matrix = torch.randint(-20, 20, (64, 32)).float()
        out = strided_like(torch.full((rows, columns), 99.0, dtype=dtype), (0, 16))
        program(f"write_{t}_{step}", matrix, rows, columns, columns + 16, first, out)
        expected = torch.full((rows, columns), 99.0, dtype=dtype)
        part = expected[first:first + 32]
        part.copy_(matrix.T[:len(part), :columns])
        assert torch.equal(out, expected)
        assert out.as_strided((rows - 1, 16), (columns + 16, 1), columns).isnan().all()


@pytest.mark.parametrize("row, column", ((0, 0), (0, 32), (20, 64), (20, 80), (40, 0), (0, 96), (0, 128)))
def test_a_window_from_a_column_on(row, column):
    """Columns behind the window's, and rows and columns behind the view's, read as zeros."""
    x = torch.randn(40, 88).bfloat16()
    out = torch.full((32, 32), math.nan).bfloat16()
    program("read_from_column", x, 40, 88, row, column, out)
    expected = torch.zeros(72, 160).bfloat16()
    expected[:40, :88] = x
    assert torch.equal(out, expected[row:row + 32, column:column + 32])


def test_words_within_the_view():
    """What stands over an edge reads as zero and is not written."""
    for kernel, dtype in (("copy_chunks", torch.float32), ("copy_fragments", torch.bfloat16)):
        for rows, columns in ((16, 16), (11, 12), (3, 8)):
            x, out = torch.randn(rows, columns).to(dtype), torch.full((rows + 1, columns), 7, dtype=dtype)
            program(kernel, x, rows, columns, *([0] if kernel == "copy_chunks" else []), out)
            assert torch.equal(out[:rows], x) and (out[rows] == 7).all()


def test_a_step_moves_all_lanes():
    x, out = torch.randn(16, 16), torch.zeros(16, 16)
    program("copy_chunks", x, 16, 16, 64, out)  # bytes: a row further, which the last one does not have
    assert torch.equal(out[:15], x[1:])
