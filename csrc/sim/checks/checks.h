// SPDX-License-Identifier: MIT
// The checkers as the rest of the simulator sees them: an observer of a launch.
#pragma once
#include <memory>

#include "run/observer.h"
#include "settings.h"

namespace sim {

// The checkers in `checks` (bits of Check). They turn what they find into reports and stop lanes with a bad access.
std::unique_ptr<LaunchObserver> make_checkers(const Launch& launch, u32 checks);

}  // namespace sim
