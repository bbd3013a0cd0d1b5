// SPDX-License-Identifier: MIT
// The memory system behind the compute units of one XCD: caches with tags, and servers that are busy for the bytes that
// they move. A server that is busy makes a request wait; requests come in about the order of their times.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "timing/parameters.h"

namespace sim::timing {

// Moves bytes at a rate, one request after the other.
class Server {
 public:
  // When a request that comes at `at` is through; it takes `clk`.
  double take(double at, double clk) {
    free_ = std::max(free_, at) + clk;
    busy_ += clk;
    return free_;
  }
  // Time that is taken some time later, by a request that nobody waits behind.
  void add_later(double clk) { busy_ += clk; }
  double busy() const { return busy_; }

 private:
  double free_ = 0, busy_ = 0;
};

// Lines of 128 bytes, least recently used ones leave first.
class Cache {
 public:
  Cache(u64 bytes, u32 ways, u32 line_bytes = 128);

  struct Entry {
    u64 line = ~u64{0};
    double ready = 0;                          // when its data is there
    u64 used = 0;
  };
  // The entry of a line, or null; a hit makes it the latest.
  Entry* find(u64 line);
  // Takes the place of the line that was not used for longest.
  void insert(u64 line, double ready);

 private:
  u32 sets_, ways_;
  u64 time_ = 0;
  std::vector<Entry> entries_;
};

// Hits and misses of memory accesses in each level, in lines of 128 bytes.
struct Traffic {
  u64 l1_lines = 0, l1_hits = 0;               // vector loads
  u64 scalar_lines = 0, scalar_hits = 0;
  u64 l2_lines = 0, l2_hits = 0;               // reads of the L2
  u64 stored_lines = 0, stored_hits = 0;       // stores and atomics that reach it
  u64 l2_read_bytes = 0, l2_written_bytes = 0; // in pieces of 64
  u64 mall_hits = 0, hbm_lines = 0, written_lines = 0;

  void add(const Traffic& other);
};

// The memory that the CUs of one XCD share, and their caches.
class Memory {
 public:
  explicit Memory(const Parameters& parameters);

  // When the data of a load that leaves its CU's address unit between `at` and `at + address_clk` is in registers.
  double load(u32 cu, double at, double address_clk, const u64* lines, u32 count);
  // When a store counts as done.
  double store(double at, double address_clk, const u64* lines, u32 count);
  double atomic(double at, double address_clk, const u64* lines, u32 count, u32 collisions);
  double scalar(u32 cu, double at, const u64* lines, u32 count);
  // When the instructions of a line of 128 bytes are there.
  double fetch(u32 cu, double at, u64 line);

  // Accesses are counted there from now on.
  void account(Traffic& to) { traffic_ = &to; }
  double l2_busy() const;
  double beyond_busy() const;

 private:
  double from_l2(double at, u64 line);
  double chase_clk() const;

  const Parameters& p_;
  std::vector<Cache> l1_, scalar_, fetch_;     // per CU, per two CUs
  std::vector<Server> fill_;                   // from the L2 to each CU
  // Channels of the L2, and the lines that each has given lately.
  struct L2Channel {
    Server server;
    std::array<u64, 4> lately{};
    u32 next = 0;
  };
  double through_channel(double at, u64 line);
  std::vector<L2Channel> channels_;
  Cache l2_, mall_;
  // The path beyond the L2: this XCD's share of the memory channels.
  struct Channel {
    Server server;
    bool writes = false;
  };
  double move(double at, u64 line, double bytes_per_clk, bool writes);
  std::vector<Channel> beyond_;
  Traffic* traffic_ = nullptr;
};

}  // namespace sim::timing
