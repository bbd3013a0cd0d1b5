// SPDX-License-Identifier: MIT
// The observers of a launch, joined into one.
#pragma once
#include <memory>

#include "run/observer.h"

namespace sim {

// From now on, or no longer, every launch of the process is offered to `make`. A library that brings an observer of its
// own calls these through hip/control.cpp.
void add_observer(MakeObserver make);
void remove_observer(MakeObserver make);

// The checkers in `checks` (bits of Check) and whatever has been added. Null when nobody watches.
std::unique_ptr<LaunchObserver> observers_of(const Launch& launch, u32 checks);

}  // namespace sim
