# SPDX-License-Identifier: MIT
"""tile/reduce.h against torch: sums and maxima of rows and of columns, for every kind of layout."""

import pytest
import torch
from test_map import SHAPES
from tile_program import Program

program = Program("tile/reduce.h", """
template <class TILE>
__device__ void reductions(const float* matrix, float* rows, float* columns) {
  const TILE tile = from_memory<TILE>(matrix);
  const auto row_max = reduce_rows(tile, Maximum{}), row_sum = reduce_rows(tile, Sum{});
  for (int i = 0; i < row_max.kCount; ++i) {
    rows[row_max.index(i)] = row_max[i];
    rows[TILE::kRows + row_max.index(i)] = row_sum[i];
  }
  const auto column_max = reduce_columns(tile, Maximum{}), column_sum = reduce_columns(tile, Sum{});
  for (int i = 0; i < column_max.kCount; ++i) {
    columns[column_max.index(i)] = column_max[i];
    columns[TILE::kColumns + column_max.index(i)] = column_sum[i];
  }
}
""" + "".join(f"""
extern "C" __global__ void {name}(const float* matrix, float* rows, float* columns) {{
  reductions<{tile}>(matrix, rows, columns);
}}""" for name, tile in SHAPES.items()))


@pytest.mark.parametrize("name, shape", (("product", (64, 32)), ("stepped", (32, 16)), ("wide", (64, 32)),
                                         ("by_row", (32, 64))))
def test_against_torch(name, shape):
    """Integers: sums are exact. Lanes that hold the same index store the same value, or the sanity checker reports."""
    x = torch.randint(-1000, 1000, shape).float()
    rows, columns = torch.zeros(2, shape[0]), torch.zeros(2, shape[1])
    program(name, x, rows, columns)
    assert torch.equal(rows, torch.stack((x.amax(1), x.sum(1))))
    assert torch.equal(columns, torch.stack((x.amax(0), x.sum(0))))
