// SPDX-License-Identifier: MIT
// Shapes in the words of a call, and what is left of tensors that have them. Host pass only; match.h reads it.
#pragma once

#include <initializer_list>
#include <string>

namespace aiter_like::ffi {

/// A size that tensors share, less than `limit`: by default what an int of a kernel's arguments holds.
struct Size {
  const char* name;
  int64_t limit = int64_t{1} << 31;
  int64_t value = -1;  // until the first tensor that has it
  operator int64_t() const { return value; }
};
constexpr int64_t kNoLimit = INT64_MAX;

/// The demand on a dimension: a size, a number, or at least a number.
struct Dim {
  Dim(Size& size) : size(&size) {}
  Dim(int64_t number = 0, bool is_least = false) : number(number), is_least(is_least) {}

  Size* size = nullptr;
  int64_t number = 0;
  bool is_least = false;
};
inline Dim at_least(int64_t number) { return {number, true}; }

struct Shape {
  Shape(std::initializer_list<Dim> list) {
    for (const Dim& dim : list) dims[rank++] = dim;
  }
  /// "(tokens, 128) = (5, 128)", with * for a size that no tensor has set.
  std::string text() const {
    std::string names, values;
    for (int d = 0; d < rank; ++d) {
      const Dim& dim = dims[d];
      const std::string number = (dim.is_least ? "at least " : "") + std::to_string(dim.number), comma = d ? ", " : "";
      names += comma + (dim.size ? dim.size->name : number);
      values += comma + (!dim.size ? number : dim.size->value < 0 ? "*" : std::to_string(dim.size->value));
    }
    return "(" + names + (names == values ? "" : ") = (" + values) + ")";
  }

  Dim dims[6];
  int rank = 0;
};

enum Layout { kRows, kDense, kStrided };  // contiguous in the last dimension, in all of them, or anyhow

/// A tensor that was taken; for none null, with strides of 0.
template <class T>
struct View {
  T* data = nullptr;
  const int64_t *sizes = nullptr, *strides = nullptr;
  operator T*() const { return data; }
  int64_t stride(int d) const { return strides ? strides[d] : 0; }
  int64_t step(int d) const { return strides && sizes[d] > 1 ? strides[d] : 0; }  // 0 where nothing follows
};

/// A matrix of rows: the last dimension contiguous, those before it evenly spaced, as if they were one.
template <class T>
struct RowView {
  T* data = nullptr;
  int64_t count = 0, size = 0;  // rows, and elements of each
  int64_t stride = 0;           // elements from row to row; 0 for a single row
  template <class Matrix>
  operator Matrix() const {  // a kernel knows so much of them
    return {data, stride};
  }
};

}  // namespace aiter_like::ffi
