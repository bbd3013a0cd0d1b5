// SPDX-License-Identifier: MIT
// What the parameters allow at most: the lines of a roofline.
#pragma once
#include <string>
#include <vector>

#include "timing/parameters.h"

namespace sim::timing {

struct Roof {
  std::string name;                            // a type of matrix operations, "vector f32", or a level of memory
  bool is_flops;                               // else bytes
  double per_second;                           // the whole chip's
};

std::vector<Roof> roofs(const Parameters& parameters);

}  // namespace sim::timing
