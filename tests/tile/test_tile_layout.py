# SPDX-License-Identifier: MIT
"""tile/layout.h: every element of a tile is in one place, and the maps are those that attention needs."""

import numpy as np
import pytest
import torch
from tile_program import Program

# name → (layout, strips, elements per lane)
LAYOUTS = {
    "by_row_8": ("OperandByRow<8>", 4, 16),
    "by_row_16": ("OperandByRow<16>", 2, 32),
    "by_column_4": ("OperandByColumn<4>", 2, 16),
    "by_column_4_step_2": ("OperandByColumn<4, 2>", 4, 16),
    "by_column_4_step_4": ("OperandByColumn<4, 4>", 4, 16),
    "product": ("Product<>", 2, 16),
    "product_step_2": ("Product<2>", 2, 16),
    "product_step_4": ("Product<4>", 1, 32),
    "wide_by_row_8": ("OperandByRow<8, 32>", 2, 16),
    "wide_product": ("Product<1, 32>", 2, 32),
}
program = Program("tile/layout.h", """
template <class LAYOUT>
__device__ void maps(int* owned, int* depth, int* places, int strips, int elements) {
  for (int s = 0; s < strips; ++s) owned[s * 64 + lane_index()] = LAYOUT::owned(s);
  for (int e = 0; e < elements; ++e) {
    depth[e * 64 + lane_index()] = LAYOUT::depth(e);
    places[e] = LAYOUT::element_at(e / LAYOUT::kSpan, e % LAYOUT::kSpan);
  }
}
""" + "".join(f"""
extern "C" __global__ void {name}(int* owned, int* depth, int* places) {{
  maps<{layout}>(owned, depth, places, {strips}, {elements});
}}""" for name, (layout, strips, elements) in LAYOUTS.items()))


def maps(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """owned [strips, 64], depth [elements, 64], the element at each place of each span [elements]."""
    _, strips, elements = LAYOUTS[name]
    owned, depth = torch.zeros(strips, 64, dtype=torch.int32), torch.zeros(elements, 64, dtype=torch.int32)
    places = torch.zeros(elements, dtype=torch.int32)
    program(name, owned, depth, places)
    return owned.numpy(), depth.numpy(), places.numpy()


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_element_is_in_one_place(name):
    owned, depth, places = maps(name)
    width = 32 if name.startswith("wide") else 16
    held = {(o, d) for lane in range(64) for o in owned[:, lane] for d in depth[:, lane]}
    assert held == {(o, d) for o in range(len(owned) * width) for d in range(len(depth) * 64 // width)}
    assert sorted(places) == list(range(len(places)))


@pytest.mark.parametrize("name, span", (("product", 4), ("product_step_2", 8), ("product_step_4", 16), ("by_row_8", 8)))
def test_a_span_is_consecutive(name, span):
    _, depth, places = maps(name)
    ordered = depth[places].reshape(-1, span, 64)
    assert (ordered == ordered[:, :1] + np.arange(span)[:, None]).all()


def test_maps_of_attention():
    """S^T = K Q^T and O^T = V^T P for 16-bit elements: what a lane (quad, col) holds."""
    quad, col = np.divmod(np.arange(64), 16)
    i, e = np.arange(4)[:, None], np.arange(8)[:, None]
    owned, depth, _ = maps("by_row_8")  # K, Q: [row][32 j + 8 quad + 4 h + i], row = 16 kk + col
    assert (owned == 16 * np.arange(4)[:, None] + col).all()
    assert (depth[:8] == 8 * quad + e).all() and (depth[8:] == 32 + 8 * quad + e).all()
    owned, depth, _ = maps("product")  # S^T: query col, key 16 kk + 4 quad + i
    assert (owned == 16 * np.arange(2)[:, None] + col).all()
    assert all((depth[4 * kk:4 * kk + 4] == 16 * kk + 4 * quad + i).all() for kk in range(4))
    right = maps("by_column_4")  # P is S^T rounded
    assert (right[0] == owned).all() and (right[1] == depth).all()
    owned, depth, _ = maps("by_column_4_step_2")  # V: [16 kk + 4 quad + i][32 g + 2 col + e]
    assert all((owned[2 * g + odd] == 32 * g + 2 * col + odd).all() for g in range(2) for odd in range(2))
    assert (depth == maps("product")[1]).all()
    _, depth, _ = maps("product_step_2")  # O: [col][32 g + 8 quad + 2 i + e]
    assert all((depth[8 * g + 4 * odd:8 * g + 4 * odd + 4] == 32 * g + 8 * quad + 2 * i + odd).all()
               for g in range(2) for odd in range(2))
