// SPDX-License-Identifier: MIT
// One reservation of addresses, whose pages exist when they are touched, so that it is known before a launch starts.
#include "run/device_heap.h"

#include <sys/mman.h>

#include "run/memory.h"

namespace sim {
namespace {

constexpr u64 kSlab = 2 << 20;                 // the allocator finds a slab's head from any address in it

}  // namespace

u64 DeviceHeap::head() {
  const std::lock_guard lock(mutex_);
  if (base_) return base_;
  void* mapping = mmap(nullptr, kBytes + kSlab, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                       -1, 0);
  if (mapping == MAP_FAILED) throw Fault("out of memory for the heap of malloc in kernels");
  base_ = (reinterpret_cast<u64>(mapping) + kSlab - 1) / kSlab * kSlab;
  used_[base_] = kSlab;
  memory().add({base_, kBytes, "malloc in kernels"});
  return base_;
}

u64 DeviceHeap::allocate(u64 bytes) {
  const u64 start = head();
  if (bytes == 0 || bytes > kBytes) return 0;
  const u64 size = (bytes + kSlab - 1) / kSlab * kSlab;
  const std::lock_guard lock(mutex_);
  u64 place = start;
  for (const auto& [address, taken] : used_) {
    if (address - place >= size) break;
    place = address + taken;
  }
  if (start + kBytes - place < size) return 0;
  used_[place] = size;
  return place;
}

bool DeviceHeap::release(u64 address) {
  const std::lock_guard lock(mutex_);
  const auto found = used_.find(address);
  if (found == used_.end() || address == base_) return false;
  madvise(reinterpret_cast<void*>(address), found->second, MADV_DONTNEED);
  used_.erase(found);
  return true;
}

DeviceHeap& device_heap() {
  static DeviceHeap heap;
  return heap;
}

}  // namespace sim
