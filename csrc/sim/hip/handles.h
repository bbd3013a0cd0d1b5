// SPDX-License-Identifier: MIT
// The handles of one kind that are live. A program may pass one that it has destroyed, or that it never got: such a
// call is refused as the runtime refuses it, and what is no longer there is not read.
#pragma once
#include <mutex>
#include <unordered_set>

#include "../types.h"  // hipRTC, a library of its own, has this header too

namespace sim::hip {

class Handles {
 public:
  void add(const void* handle) {
    const std::lock_guard lock(mutex_);
    live_.insert(handle);
  }
  bool drop(const void* handle) {                // false: it was not live
    const std::lock_guard lock(mutex_);
    return live_.erase(handle) != 0;
  }
  bool has(const void* handle) const {
    const std::lock_guard lock(mutex_);
    return live_.count(handle) != 0;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_set<const void*> live_;
};

// One that is never destroyed: libraries destroy their handles in exit handlers.
template <class Kind>
Handles& live() {
  static auto* instance = new Handles;
  return *instance;
}

// The object behind a handle; throws Fault when it is not live.
template <class Kind>
Kind& live_one(const void* handle, const char* what) {
  if (!live<Kind>().has(handle)) throw Fault(std::string("this is not a live ") + what);
  return *static_cast<Kind*>(const_cast<void*>(handle));
}

}  // namespace sim::hip
