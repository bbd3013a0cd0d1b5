// SPDX-License-Identifier: MIT
// Memory of malloc and new in kernels. The device library's allocator (ockl/src/dm.cl) runs in the kernel, as on a
// device: it keeps its lists at the heap's head, which a hidden argument names, and asks the host for the rest.
#pragma once
#include <atomic>
#include <map>
#include <mutex>

#include "types.h"

namespace sim {

class DeviceHeap {
 public:
  // Address of the allocator's lists, zero at first. Throws Fault when the host has no memory.
  u64 head();
  // So many bytes, aligned as a slab of the allocator; 0: there are not so many.
  u64 allocate(u64 bytes);
  // False: nothing was allocated there.
  bool release(u64 address);
  // Whether an address is of the heap, allocated or not.
  bool holds(u64 address) const { return base_ && address - base_ < kBytes; }

 private:
  std::mutex mutex_;
  static constexpr u64 kBytes = u64{8} << 30;
  std::atomic<u64> base_ = 0;                  // 0: not reserved yet
  std::map<u64, u64> used_;                    // address → bytes, in whole slabs
};

DeviceHeap& device_heap();                     // the process's: what one kernel allocates another may free

}  // namespace sim
