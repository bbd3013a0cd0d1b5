// SPDX-License-Identifier: MIT
// Most loops count in a scalar register, so these are compared first, and the vector registers saved and compared only
// in a second pass.
#include "run/spin.h"

#include <algorithm>

#include "load/loader.h"

namespace sim {

void SpinWatch::begin(const Wave& w) {
  state_ = State::first_pass;
  slept = false;
  steps_ = 0;
  at_ = w.ip;
  scc_ = w.scc;
  std::copy_n(w.s, kNumScalars, scalars_);
}

void SpinWatch::returned(const Wave& w) {
  const Kernel& k = *w.group->launch->kernel;
  const size_t arch = k.arch_rows() * kLanes, accum = k.accum_rows() * kLanes;
  const u32 *const v = &w.v[0][0], *const a = &w.v[kFirstAgpr][0];
  if (w.scc != scc_ || !std::equal(w.s, w.s + kNumScalars, scalars_)) {
    state_ = State::runs;
  } else if (state_ == State::first_pass) {
    vectors_.assign(v, v + arch);
    vectors_.insert(vectors_.end(), a, a + accum);
    steps_ = 0;
    state_ = State::second_pass;
  } else {
    const u32* const saved = vectors_.data();
    state_ = std::equal(v, v + arch, saved) && std::equal(a, a + accum, saved + arch) ? State::spins : State::runs;
  }
}

}  // namespace sim
