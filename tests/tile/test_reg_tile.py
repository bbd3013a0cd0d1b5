# SPDX-License-Identifier: MIT
"""tile/reg_tile.h: shapes follow from the layout, elements are where it says, `clear` clears."""

import torch
from tile_program import Program

program = Program("tile/reg_tile.h", """
using Keys = RegTile<bf16, 64, 32, OperandByRow<8>>;
static_assert(Keys::kStrips == 4 && Keys::kPerStrip == 8 && Keys::kPieces == 2 && sizeof(Keys) == 4 * 16);
using Values = RegTile<fp8, 64, 64, OperandByColumn<4, 4>>;
static_assert(Values::kStrips == 4 && Values::kPerStrip == 16 && Values::kPieces == 2 && sizeof(Values) == 64);
using Scores = RegTile<float, 64, 32, Product<>>;
static_assert(Scores::kStrips == 2 && Scores::kPieces == 4 && Scores::PerColumn::kCount == 2 &&
              Scores::PerRow::kCount == 16 && sizeof(Scores) == 128);
using Counts = RegTile<int32_t, 64, 32, Product<>>;
static_assert(Counts::kPieces == 4 && Counts::kPieceElements == 4 && sizeof(Counts) == 128);
using Wide = RegTile<float, 64, 32, Product<1, 32>>;
static_assert(Wide::kStrips == 1 && Wide::kPieces == 2 && Wide::kPieceElements == 16 && sizeof(Wide) == 128);

template <class TILE, class T>
__device__ void places(T* matrix, T* cleared) {
  TILE tile = from_memory<TILE>(matrix);
  for (int s = 0; s < TILE::kStrips; ++s)
    for (int e = 0; e < TILE::kPerStrip; ++e)
      tile.set(s, e, 2 * tile.get(s, e) + (TILE::row(s, e) == TILE::column(s, e)));
  to_memory(matrix, tile);
  clear(tile);
  to_memory(cleared, tile);
}
extern "C" __global__ void places_16(float* matrix, float* cleared) { places<Scores>(matrix, cleared); }
extern "C" __global__ void places_32(float* matrix, float* cleared) { places<Wide>(matrix, cleared); }
extern "C" __global__ void places_int32(int32_t* matrix, int32_t* cleared) { places<Counts>(matrix, cleared); }
extern "C" __global__ void indices(int* rows, int* columns) {
  for (int i = 0; i < Scores::PerRow::kCount; ++i) rows[64 * i + lane_index()] = Scores::PerRow::index(i);
  for (int i = 0; i < Scores::PerColumn::kCount; ++i) columns[64 * i + lane_index()] = Scores::PerColumn::index(i);
}
""")


def test_elements_are_where_the_layout_says():
    for kernel in ("places_16", "places_32"):
        matrix, cleared = torch.randn(64, 32), torch.ones(64, 32)
        expected = 2 * matrix + torch.eye(64, 32)
        program(kernel, matrix, cleared)
        assert torch.equal(matrix, expected) and not cleared.any()


def test_sums_of_integers():
    matrix = torch.randint(-2**30, 2**30, (64, 32), dtype=torch.int32)
    cleared, expected = torch.ones(64, 32, dtype=torch.int32), 2 * matrix + torch.eye(64, 32, dtype=torch.int32)
    program("places_int32", matrix, cleared)
    assert torch.equal(matrix, expected) and not cleared.any()


def test_vectors_know_their_indices():
    rows, columns = torch.zeros(16, 64, dtype=torch.int32), torch.zeros(2, 64, dtype=torch.int32)
    program("indices", rows, columns)
    quad, col = torch.arange(64) // 16, torch.arange(64) % 16
    element = torch.arange(16)[:, None]
    assert torch.equal(rows, (16 * (element // 4) + 4 * quad + element % 4).int())
    assert torch.equal(columns, (16 * torch.arange(2)[:, None] + col).int())
