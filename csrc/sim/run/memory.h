// SPDX-License-Identifier: MIT
// Known device memory: hipMalloc blocks, registered tensors, module images. Device address = host address.
#pragma once
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "types.h"

namespace sim {

struct Range {
  u64 base = 0, bytes = 0;
  std::string name;
  bool writable = true;
  bool freed = false;
  u8* defined = nullptr;                       // one byte per byte, 1 = written; null = all defined
};

class Memory {
 public:
  void add(Range range);                       // registered from outside; nested or repeated registration is counted
  void remove(u64 base);
  void remove_within(u64 base, u64 bytes);     // every range inside: a module image goes away
  u64 allocate(u64 bytes, const std::string& name);   // red-zoned, poison-filled; 0 when out of memory
  bool release(u64 base);                      // false: not an allocation
  // Moves an allocation, where it is, into memory that other processes can map; nullopt: not an allocation, or the
  // system refuses. The file descriptor stays this object's. What others write counts as written from now on.
  struct Shared { int file; u64 offset, bytes, mapping_bytes; };
  std::optional<Shared> share(u64 base);
  std::optional<Range> find(u64 address) const;       // the smallest live range that holds it, else a freed one
  void set_defined(u64 address, u64 bytes);    // written from the host
  void copy_defined(u64 to, u64 from, u64 bytes);
  std::vector<Range> snapshot() const;         // sorted by base; taken once per checked launch
  u64 in_use_bytes() const;

 private:
  struct Entry {
    Range range;
    u32 uses = 1;                              // nested registrations
    u8* mapping = nullptr;                     // allocate(): the whole mapping, red zones included
    u64 mapping_bytes = 0;
    int file = -1;                             // share(): what holds the block
  };
  void drop_oldest_freed();

  mutable std::shared_mutex mutex_;
  std::vector<Entry> entries_;                 // sorted by base
  std::vector<u64> freed_;                     // bases of quarantined allocations, oldest first
  u64 freed_bytes_ = 0, in_use_bytes_ = 0;
};

Memory& memory();                              // the process's device memory

}  // namespace sim
