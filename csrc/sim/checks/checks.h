// SPDX-License-Identifier: MIT
// The checkers as the rest of the simulator sees them: an observer of a launch.
#pragma once
#include <memory>

#include "run/observer.h"
#include "settings.h"

namespace sim {

// Those in `checks` (bits of Check). What they find becomes reports; lanes with a bad access are stopped.
std::unique_ptr<LaunchObserver> make_checkers(const Launch& launch, u32 checks);

}  // namespace sim
