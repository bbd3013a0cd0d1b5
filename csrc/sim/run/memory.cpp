// SPDX-License-Identifier: MIT
// The table of known device memory and the allocator behind hipMalloc: poisoned, with guard pages on both sides, and
// quarantined after free so that a late access is seen.
#include "run/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace sim {
namespace {

constexpr u64 kPage = 4096;
constexpr u64 kAlign = 256;                    // hipMalloc guarantees this
constexpr u64 kQuarantineBytes = u64{256} << 20;
constexpr u8 kPoisonByte = 0xCD;

u64 round_up(u64 x, u64 to) { return (x + to - 1) / to * to; }

}  // namespace

Memory& memory() {
  static Memory* instance = new Memory;        // never destroyed: modules unregister at exit
  return *instance;
}

void Memory::add(Range range) {
  const std::unique_lock lock(mutex_);
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), range.base,
                                   [](const Entry& e, u64 base) { return e.range.base < base; });
  for (auto it = at; it != entries_.end() && it->range.base == range.base; ++it) {
    if (it->range.bytes == range.bytes && !it->range.freed && !it->mapping) {
      ++it->uses;
      it->range.writable |= range.writable;
      return;
    }
  }
  entries_.insert(at, Entry{std::move(range)});
}

void Memory::remove(u64 base) {
  const std::unique_lock lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->range.base != base || it->mapping) continue;
    if (--it->uses == 0) entries_.erase(it);
    return;
  }
}

void Memory::remove_within(u64 base, u64 bytes) {
  const std::unique_lock lock(mutex_);
  std::erase_if(entries_, [&](const Entry& e) {
    return !e.mapping && e.range.base >= base && e.range.base + e.range.bytes <= base + bytes;
  });
}

u64 Memory::allocate(u64 bytes, const std::string& name) {
  // The block ends at a page boundary as far as alignment allows, so that an overrun meets the guard page.
  const u64 body = round_up(std::max<u64>(bytes, 1), kPage), total = body + 2 * kPage;
  if (total < bytes) return 0;
  void* mapping = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return 0;
  u8* first = static_cast<u8*>(mapping) + kPage;
  const u64 shadow_bytes = round_up(bytes, kPage);
  void* shadow = mmap(nullptr, std::max(shadow_bytes, kPage), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mprotect(first, body, PROT_READ | PROT_WRITE) != 0 || shadow == MAP_FAILED) {
    munmap(mapping, total);
    return 0;
  }
  u8* block = first + (body - round_up(std::max<u64>(bytes, 1), kAlign));
  std::memset(first, kPoisonByte, body);
  Range range{reinterpret_cast<u64>(block), bytes, name, true, false, static_cast<u8*>(shadow)};
  const std::unique_lock lock(mutex_);
  in_use_bytes_ += bytes;
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), range.base,
                                   [](const Entry& e, u64 base) { return e.range.base < base; });
  entries_.insert(at, Entry{range, 1, static_cast<u8*>(mapping), total});
  return range.base;
}

bool Memory::release(u64 base) {
  const std::unique_lock lock(mutex_);
  for (Entry& e : entries_) {
    if (e.range.base != base || !e.mapping || e.range.freed) continue;
    e.range.freed = true;
    if (e.file >= 0) {                         // others keep what they have mapped
      close(e.file);
      e.file = -1;
      mmap(e.mapping, e.mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
    mprotect(e.mapping, e.mapping_bytes, PROT_NONE);
    madvise(e.mapping, e.mapping_bytes, MADV_DONTNEED);
    munmap(e.range.defined, std::max(round_up(e.range.bytes, kPage), kPage));
    e.range.defined = nullptr;
    in_use_bytes_ -= e.range.bytes;
    freed_.push_back(base);
    freed_bytes_ += e.mapping_bytes;
    while (freed_bytes_ > kQuarantineBytes || freed_.size() > 1024) drop_oldest_freed();
    return true;
  }
  return false;
}

std::optional<Memory::Shared> Memory::share(u64 base) {
  const std::unique_lock lock(mutex_);
  for (Entry& e : entries_) {
    if (e.range.base != base || !e.mapping || e.range.freed) continue;
    u8* first = e.mapping + kPage;
    const u64 body = e.mapping_bytes - 2 * kPage;
    const Shared shared{e.file, base - reinterpret_cast<u64>(first), e.range.bytes, body};
    if (e.file >= 0) return shared;
    const int file = memfd_create("device memory", MFD_CLOEXEC);
    if (file < 0) return std::nullopt;
    bool copied = ftruncate(file, static_cast<off_t>(body)) == 0;
    for (u64 done = 0; copied && done < body;) {
      const ssize_t n = pwrite(file, first + done, body - done, static_cast<off_t>(done));
      copied = n > 0;
      if (copied) done += static_cast<u64>(n);
    }
    if (!copied || mmap(first, body, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
      close(file);
      return std::nullopt;
    }
    std::memset(e.range.defined, 1, e.range.bytes);
    e.file = file;
    return Shared{file, shared.offset, shared.bytes, body};
  }
  return std::nullopt;
}

void Memory::drop_oldest_freed() {
  const u64 base = freed_.front();
  freed_.erase(freed_.begin());
  std::erase_if(entries_, [&](const Entry& e) {
    if (e.range.base != base || !e.range.freed) return false;
    freed_bytes_ -= e.mapping_bytes;
    munmap(e.mapping, e.mapping_bytes);
    return true;
  });
}

std::optional<Range> Memory::find(u64 address) const {
  const std::shared_lock lock(mutex_);
  const Range* best = nullptr;
  for (const Entry& e : entries_) {
    const Range& r = e.range;
    if (r.base > address) break;
    if (address - r.base >= r.bytes) continue;
    const bool better = !best || (best->freed && !r.freed) || (best->freed == r.freed && r.bytes < best->bytes);
    if (better) best = &r;
  }
  if (!best) return std::nullopt;
  return *best;
}

void Memory::set_defined(u64 address, u64 bytes) {
  const std::optional<Range> range = find(address);
  if (!range || range->freed || !range->defined) return;
  const u64 at = address - range->base;
  std::memset(range->defined + at, 1, std::min(bytes, range->bytes - at));
}

void Memory::copy_defined(u64 to, u64 from, u64 bytes) {
  const std::optional<Range> source = find(from), target = find(to);
  if (!source || source->freed || !source->defined) return set_defined(to, bytes);
  if (!target || target->freed || !target->defined) return;
  const u64 to_at = to - target->base, from_at = from - source->base;
  const u64 n = std::min({bytes, target->bytes - to_at, source->bytes - from_at});
  std::memmove(target->defined + to_at, source->defined + from_at, n);
}

std::vector<Range> Memory::snapshot() const {
  const std::shared_lock lock(mutex_);
  std::vector<Range> ranges;
  ranges.reserve(entries_.size());
  for (const Entry& e : entries_) ranges.push_back(e.range);
  return ranges;
}

u64 Memory::in_use_bytes() const {
  const std::shared_lock lock(mutex_);
  return in_use_bytes_;
}

}  // namespace sim
