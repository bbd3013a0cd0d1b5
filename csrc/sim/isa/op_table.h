// SPDX-License-Identifier: MIT
// Tables whose rows are named by parts that several instructions share.
#pragma once
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "inst.h"

namespace sim {

class OpTable {
 public:
  void add(std::string name, const Spec& spec) { ops_.push_back({names_.emplace_back(std::move(name)), spec}); }
  operator std::span<const Op>() const { return ops_; }

 private:
  std::deque<std::string> names_;              // what the names of ops_ point to
  std::vector<Op> ops_;
};

// Calls add.operator()<k>() for each k below `count`.
template <size_t count, class Add>
void for_each_index(Add add) {
  [&]<size_t... k>(std::index_sequence<k...>) {
    (add.template operator()<k>(), ...);
  }(std::make_index_sequence<count>());
}

}  // namespace sim
