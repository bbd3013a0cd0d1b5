// SPDX-License-Identifier: MIT
// The order of the softmax phase's instructions, beside a wave on the same SIMD that multiplies. An exponential keeps
// the port of vector and matrix instructions for 16 clk, others for 4, and a matrix instruction wants it every 16 or
// 32 clk: it comes late by what is left of the exponential that has it. Groups of an exponential and three others, or
// of three others, let it come on time at 32 clk, and at 16 clk late by the 4 that an exponential is too long.
#pragma once

#include <cstdint>

namespace aiter_like::flash_attn {

/// Steps of work on a score, in this order; `join` takes two. A fence is a place that the compiler moves nothing
/// across.
enum class SoftmaxWork : uint8_t { scale, exponential, add, round, join, fence };

/// How kScores scores, an even number, become elements of P; rounding one takes kRounding instructions.
template <int kScores, int kRounding>
struct SoftmaxOrder {
  struct Item {
    SoftmaxWork work;
    uint8_t index;
  };
  static constexpr int kGroup = 3, kAhead = 2;  // scores that are scaled before the one whose exponential is due
  static constexpr int kMost = 8 * kScores;
  Item items[kMost] = {};
  int count = 0;

  constexpr SoftmaxOrder() {
    for (Item& item : items) item = {SoftmaxWork::fence, 0};
    for (int i = 0; i < kAhead; ++i) wait({SoftmaxWork::scale, static_cast<uint8_t>(i)});
    flush(0);
    for (int i = 0; i < kScores; ++i) {
      put({SoftmaxWork::exponential, static_cast<uint8_t>(i)});
      put({SoftmaxWork::fence, 0});
      if (i + kAhead < kScores) wait({SoftmaxWork::scale, static_cast<uint8_t>(i + kAhead)});
      if (i > 0) finish(i - 1);
      flush(kGroup);
    }
    finish(kScores - 1);
    flush(0);
  }

 private:
  Item waiting[kMost] = {};
  int first = 0, end = 0;

  constexpr void put(Item item) { items[count++] = item; }
  constexpr void wait(Item item) { waiting[end++] = item; }
  constexpr void finish(int i) {
    wait({SoftmaxWork::add, static_cast<uint8_t>(i)});
    wait({SoftmaxWork::round, static_cast<uint8_t>(i)});
    if (i % 2 == 1) wait({SoftmaxWork::join, static_cast<uint8_t>(i - 1)});
  }
  static constexpr int cost(Item item) { return item.work == SoftmaxWork::round ? kRounding : 1; }
  /// Puts groups of kGroup instructions as long as enough of them wait; with `least` 0 all that wait.
  constexpr void flush(int least) {
    const int before = first;
    for (;;) {
      int costs = 0, n = first;
      for (; n < end && costs < kGroup; ++n) costs += cost(waiting[n]);
      if (costs < least || n == first) break;
      for (; first < n; ++first) put(waiting[first]);
    }
    if (first != before) put({SoftmaxWork::fence, 0});
  }
};

}  // namespace aiter_like::flash_attn
