# SPDX-License-Identifier: MIT
"""tile/map.h against torch: elementwise, indexed and broadcast, for tiles that own columns and tiles that own rows."""

import pytest
import torch
from tile_program import Program

# A tile of floats may own rows too: the result of a product with its operands exchanged, transposed.
SHAPES = {"product": "RegTile<float, 64, 32, Product<>>", "stepped": "RegTile<float, 32, 16, Product<2>>",
          "wide": "RegTile<float, 64, 32, Product<1, 32>>",
          "by_row": "RegTile<float, 32, 64, Layout<Axis::kRow, 4>>"}
program = Program("tile/map.h", """
template <class TILE>
__device__ void all_maps(const float* matrix, const float* rows, const float* columns, float* out) {
  constexpr int kSize = TILE::kRows * TILE::kColumns;
  const TILE tile = from_memory<TILE>(matrix);
  TILE copy = tile;
  map(copy, [](float x) { return x * x; });
  to_memory(out, copy);
  copy = tile;
  map_indexed(copy, [](float x, int row, int column) { return x + 100 * row + column; });
  to_memory(out + kSize, copy);
  typename TILE::PerRow row_values;
  for (int i = 0; i < row_values.kCount; ++i) row_values[i] = rows[row_values.index(i)];
  copy = tile;
  apply_rows(copy, row_values, [](float x, float value) { return x - value; });
  to_memory(out + 2 * kSize, copy);
  typename TILE::PerColumn column_values;
  for (int i = 0; i < column_values.kCount; ++i) column_values[i] = columns[column_values.index(i)];
  copy = tile;
  apply_columns(copy, column_values, [](float x, float value) { return x * value; });
  scale_strip(copy, 0, 3.f);
  to_memory(out + 3 * kSize, copy);
}
""" + "".join(f"""
extern "C" __global__ void {name}(const float* matrix, const float* rows, const float* columns, float* out) {{
  all_maps<{tile}>(matrix, rows, columns, out);
}}""" for name, tile in SHAPES.items()))


@pytest.mark.parametrize("name, shape, strip", (("product", (64, 32), 16), ("stepped", (32, 16), 16),
                                                ("wide", (64, 32), 32), ("by_row", (32, 64), 16)))
def test_against_torch(name, shape, strip):
    x, rows, columns = (torch.randint(-50, 50, size).float() for size in (shape, shape[:1], shape[1:]))  # all exact
    out = torch.zeros(4, *shape)
    program(name, x, rows, columns, out)
    scaled = x * columns
    (scaled[:strip] if name == "by_row" else scaled[:, :strip]).mul_(3)
    indices = 100.0 * torch.arange(shape[0])[:, None] + torch.arange(shape[1])
    for got, expected in zip(out, (x * x, x + indices, x - rows[:, None], scaled)):
        assert torch.equal(got, expected)
