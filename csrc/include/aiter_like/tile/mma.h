// SPDX-License-Identifier: MIT
// Products of register tiles, c += a · b, by the matrix instruction that element and width choose. The form names how
// the operands are stored; the types say the same, and must.
#pragma once

#include "aiter_like/tile/reg_tile.h"

namespace aiter_like::tile {

enum class Form {
  AB,   // a [M, K], b [K, N]
  ABt,  // a [M, K], b [N, K]
  AtB   // a [K, M], b [K, N]
};

template <Form FORM, class C, class A, class B>
__device__ inline void mma(C& c, const A& a, const B& b) {
  using T = typename A::Element;
  using LeftLayout = typename A::Layout;
  using RightLayout = typename B::Layout;
  static_assert(std::is_same_v<T, typename B::Element>, "one type of element");
  static_assert(A::kOwnsRows == (FORM != Form::AtB) && B::kOwnsRows == (FORM == Form::ABt), "layouts of another form");
  static_assert(A::kOwned == C::kRows && B::kOwned == C::kColumns && A::kDepth == B::kDepth, "shapes");
  static_assert(LeftLayout::kRun == RightLayout::kRun && LeftLayout::kDepthStep == 1 && RightLayout::kDepthStep == 1,
                "both operands must hold the contraction in the same order");
  static_assert(std::is_same_v<typename C::Layout, Layout<Axis::kColumn, 4, LeftLayout::kOwnedStep,
                                                          RightLayout::kOwnedStep, LeftLayout::kWidth>>,
                "the product's layout follows from its operands'");
  // The innermost loops change the accumulator: an instruction never waits for the one before it.
#pragma unroll
  for (int p = 0; p < A::kPieces; ++p) {
#pragma unroll
    for (int m = 0; m < A::kStrips; ++m) {
#pragma unroll
      for (int n = 0; n < B::kStrips; ++n)
        c.pieces[n][m] = Mfma<T, LeftLayout::kWidth>::multiply(a.pieces[m][p], b.pieces[n][p], c.pieces[n][m]);
    }
  }
}

}  // namespace aiter_like::tile
