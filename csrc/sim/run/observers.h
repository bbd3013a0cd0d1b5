// SPDX-License-Identifier: MIT
// The observers of a launch, joined into one.
#pragma once
#include <memory>

#include "run/observer.h"

namespace sim {

// `make` is asked at every launch of the process from now on, or no longer. A library that brings an observer of its
// own calls these through hip/control.cpp.
void add_observer(MakeObserver make);
void remove_observer(MakeObserver make);

// The checkers in `checks` (bits of Check) together with the observers that have been added; null when nobody watches.
std::unique_ptr<LaunchObserver> observers_of(const Launch& launch, u32 checks);

}  // namespace sim
