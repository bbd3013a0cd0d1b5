// SPDX-License-Identifier: MIT
// The tensors of rope.hip, rope_2d.hip and rope_rounded.hip at the boundary. Host pass only.
#pragma once

#include "aiter_like/ffi.h"
#include "rope_body.h"

#if AITER_LIKE_HOST_PASS
namespace aiter_like {

/// Collects the kernel's arguments from tensors; `is_aligned` says whether every access may take kVec elements.
template <class Config>
struct RopeCall {
  using Element = typename Config::Element;
  using Table = typename Config::Table;
  static constexpr int kVec = kRopeVec<Config>;

  ffi::Match match;
  ffi::Size s{"s"}, b{"b"}, head_dim{"head_dim"}, width{"elements of a table's row"};
  RopeArgs<Config> args{};
  bool is_aligned = true, is_in_place = true;

  explicit RopeCall(const char* op) : match(op) {}

  /// Heads of `input` and `out`: [s, b, heads, head_dim], or [s, heads, head_dim].
  RopeHeads<Element> heads(const ffi::Tensor& input, const ffi::Tensor& out) {
    ffi::Size heads{"heads"};
    const bool has_batch = input.ndim() == 4;
    const int head = has_batch ? 2 : 1;
    const ffi::Shape shape = has_batch ? ffi::Shape{s, b, heads, head_dim} : ffi::Shape{s, heads, head_dim};
    const auto x = match.take<const Element>(input, shape, "input");
    const auto y = match.take<Element>(out, shape, "out");
    const auto strides_of = [&](const int64_t* strides) {
      return RopeStrides{strides[0], has_batch ? strides[1] : 0, strides[head]};
    };
    is_in_place = is_in_place && x == y;
    for (int d = 0; d <= head; ++d) is_in_place = is_in_place && x.step(d) == y.step(d);
    is_aligned = is_aligned && ffi::are_rows_aligned(input, 16) && ffi::are_rows_aligned(out, 16);
    return {x, y, strides_of(x.strides), strides_of(y.strides), static_cast<int>(heads)};
  }

  /// Two tables of the same size, or one of angles.
  RopeTable<Table> table(const ffi::Tensor& cosines, const ffi::OptionalTensor& sines) {
    ffi::Size rows{"rows of a table"};
    match.built(sines.has_value() != Config::kIsAngle, "kinds of tables");
    const ffi::Tensor others = sines.has_value() ? *sines : cosines;
    const auto c = match.rows<const Table>(cosines, rows, width, "cos");
    const auto s = match.rows<const Table>(others, rows, width, "sin");
    constexpr int64_t kBytes = kVec * sizeof(Table) < 16 ? kVec * sizeof(Table) : 16;
    is_aligned = is_aligned && ffi::are_rows_aligned(cosines, kBytes) && ffi::are_rows_aligned(others, kBytes);
    return {c.data, s.data, c.stride, s.stride, static_cast<uint32_t>(rows)};
  }

  /// Sets the parts of a head, or of half of one, that are rotated and copied.
  void parts(int64_t elements, bool is_shared, bool nope_first) {
    args.rotary_dim = static_cast<int>(width * (is_shared ? 2 : 1));
    match.require(args.rotary_dim % 2 == 0 && args.rotary_dim <= elements,
                  "the table's rows must fit the head and make whole pairs");
    const int rest = static_cast<int>(elements) - args.rotary_dim;
    args.rotary_begin = nope_first ? rest : 0;
    args.copied_begin = nope_first ? 0 : args.rotary_dim;
    args.copied = is_in_place ? 0 : rest;
    is_aligned = is_aligned && ((args.rotary_dim / 2) | rest) % kVec == 0;
    match.require(elements <= 2 * kRopeThreads, "heads of at most 512 elements");
  }
};

}  // namespace aiter_like
#endif
