// SPDX-License-Identifier: MIT
// The rows that norms have at the boundary. Host pass only.
#pragma once

#include "aiter_like/ffi.h"

#if AITER_LIKE_HOST_PASS
namespace aiter_like::ffi {

/// Rows of input and out, and of the sum with a residual where there is one, into a kernel's arguments.
template <class Args>
void take_rows(Match& match, Args& args, Size& rows, Size& hidden, const Tensor& input, const Tensor& out,
               const OptionalTensor& residual_in, const OptionalTensor& residual_out, double epsilon) {
  using Input = std::remove_pointer_t<decltype(args.input.data)>;
  using Out = std::remove_pointer_t<decltype(args.out.data)>;
  args.input = match.rows<Input>(input, rows, hidden, "input");
  args.out = match.rows<Out>(out, rows, hidden, "out");
  args.residual_in = match.rows<Input>(residual_in, rows, hidden, "residual_in");
  args.residual_out = match.rows<std::remove_const_t<Input>>(residual_out, rows, hidden, "residual_out");
  args.rows = rows, args.hidden = hidden, args.epsilon = epsilon;
}

}  // namespace aiter_like::ffi
#endif
