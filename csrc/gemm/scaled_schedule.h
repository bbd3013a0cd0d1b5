// SPDX-License-Identifier: MIT
// The order in which a wave of gemm_scaled_pipeline.h issues a step: two phases, each a row of places. A place is a
// matrix instruction and what follows it. The kernel's loop reads its places from here;
// tests/ops/test_scaled_schedule.py prints them and checks that everything is there before it is used.
//
// A phase has `strips` strips of rows of the left operand. A strip is multiplied in pieces, one for each run of the
// depth, and a piece takes two matrix instructions for each strip of the right operand.
#pragma once

#include "aiter_like/tile/spread.h"

namespace aiter_like::gemm {

/// One matrix instruction, and what a wave issues with it, in the order of the members. -1: nothing of that kind.
struct ScaledPlace {
  bool is_behind_barrier = false;                          // A barrier stands before: stores can be read.
  int strip = 0, run = 0, product = 0, row = 0;            // sums, depth and number of it; `rows` that it multiplies
  int scaled_strip = 0, first_scaled = 0, end_scaled = 0;  // elements of a strip's products that are scaled
  int read_row = -1, read_phase = -1, read_piece = -1;     // a piece of the left operand, and where in `rows` it goes
  bool ends_strip = false, ends_block = false;             // The next scales of rows, of columns become current.
  bool loads_column_scales = false;
  int left_store = -1, left_load = -1;    // chunks of the left operand's other part
  int prefetch = -1;                      // one of `columns` that comes straight from memory
  int right_store = -1, right_load = -1;  // chunks of the right operand
  int first_taken = 0, taken = 0;         // The next block's weights replace so many of `columns`.
};

struct ScaledSchedule {
  int strips, right_strips;     // of a phase; of a step
  int runs;                     // of a strip along the depth
  int left_share, right_share;  // chunks that a work-item moves, of a phase and of a step
  int elements;                 // sums of a strip in a lane
  bool is_right_in_lds;

  static constexpr int kPhases = 2;
  /// Behind the last matrix instruction of a strip its sums are there two places later.
  static constexpr int kFirstScaled = 2;

  constexpr int products() const { return 2 * right_strips; }  // places of a piece
  constexpr int pieces() const { return runs * strips; }
  constexpr int columns() const { return runs * right_strips; }
  constexpr int strip_places() const { return runs * products(); }
  constexpr int places() const { return pieces() * products(); }
  /// Pieces in registers, and how many of them are read before they are multiplied.
  constexpr int ring() const { return runs; }
  constexpr int ahead() const { return strips > 1 ? ring() : ring() / 2; }
  constexpr int barrier() const { return places() - ahead() * products(); }

  constexpr tile::Spread left_stores() const { return {1, barrier(), left_share}; }
  constexpr tile::Spread right_stores() const { return {0, barrier(), right_share}; }
  constexpr tile::Spread left_loads() const { return {left_stores().from, places(), left_share}; }
  constexpr tile::Spread right_loads() const { return {right_stores().from, places(), right_share}; }
  constexpr tile::Spread prefetches() const { return {2, places() - 1, is_right_in_lds ? 0 : columns()}; }
  /// Whether there is a place for each access, and each load behind the store of what its registers hold.
  constexpr bool fits() const {
    return left_stores().fits() && right_stores().fits() && prefetches().fits() &&
           left_loads().is_behind(left_stores()) && right_loads().is_behind(right_stores());
  }
  /// The place of phase 1 at which a column is taken: behind the barrier and the last use of its registers.
  constexpr int column_place(int column) const {
    const int used = places() - strip_places() + (column / right_strips + 1) * products() - 1;
    return used > barrier() + column ? used : barrier() + column;
  }

  constexpr ScaledPlace at(int phase, int place) const {
    const int piece = place / products(), of_strip = place % strip_places(), all_strips = kPhases * strips;
    ScaledPlace now;
    now.is_behind_barrier = place == barrier();
    now.strip = phase * strips + place / strip_places();
    now.run = piece % runs, now.product = place % products(), now.row = piece % ring();
    now.scaled_strip = (now.strip + all_strips - 1) % all_strips;
    if (of_strip >= kFirstScaled) {
      const int scaling = of_strip - kFirstScaled, scalings = strip_places() - kFirstScaled;
      now.first_scaled = elements * scaling / scalings, now.end_scaled = elements * (scaling + 1) / scalings;
    }
    if (now.product == products() - 1) {
      const int later = piece + ahead();
      now.read_row = later % ring();
      now.read_phase = later < pieces() ? phase : 1 - phase, now.read_piece = later % pieces();
    }
    now.ends_strip = of_strip == strip_places() - 1;
    now.ends_block = now.ends_strip && now.strip == all_strips - 1;
    now.left_store = left_stores().at(place), now.left_load = left_loads().at(place);
    if (phase == 0) {
      now.loads_column_scales = place == 1;
      now.prefetch = prefetches().at(place);
    } else {
      now.right_store = right_stores().at(place), now.right_load = right_loads().at(place);
      for (int column = columns() - 1; column >= 0; --column) {
        if (column_place(column) == place) now.first_taken = column, ++now.taken;
      }
    }
    return now;
  }
};

}  // namespace aiter_like::gemm
