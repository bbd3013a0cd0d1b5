# SPDX-License-Identifier: MIT
"""tile/order.h: every tile once, neighbours on one XCD, groups of rows."""

import pytest
import torch
from tile_program import Program

program = Program("tile/order.h", """
extern "C" __global__ void places(int64_t rows, int64_t columns, int* out) {
  const TileOrder order{static_cast<uint32_t>(rows), static_cast<uint32_t>(columns)};
  for (uint32_t i = lane_index(); i < order.rows * order.columns; i += kWaveSize) {
    const TilePlace place = order.at(i);
    out[2 * i] = static_cast<int>(place.row);
    out[2 * i + 1] = static_cast<int>(place.column);
  }
}
""")


def places(rows: int, columns: int) -> list[tuple[int, int]]:
    out = torch.full((rows * columns, 2), -1, dtype=torch.int32)
    program("places", rows, columns, out)
    return [tuple(place) for place in out.tolist()]


@pytest.mark.parametrize("rows, columns", ((1, 1), (1, 9), (9, 1), (3, 5), (8, 8), (17, 13), (64, 3)))
def test_every_tile_once(rows, columns):
    assert sorted(places(rows, columns)) == [(row, column) for row in range(rows) for column in range(columns)]


def test_an_xcd_has_neighbours():
    """Of 32 × 32 tiles each XCD gets 128 one after another: a group of 8 rows and 16 columns, from the left edge or
    from the middle."""
    found = places(32, 32)
    for xcd in range(8):
        of_xcd = found[xcd::8]
        assert len(set(of_xcd)) == 128
        assert {row for row, _ in of_xcd} == set(range(xcd // 2 * 8, xcd // 2 * 8 + 8))
        assert {column for _, column in of_xcd} == set(range(xcd % 2 * 16, xcd % 2 * 16 + 16))
