// SPDX-License-Identifier: MIT
// The memory system behind the compute units of one XCD or of all eight: caches with tags, and servers that are busy
// for the bytes that they move. A server that is busy makes a request wait; requests come in about the order of their
// times.
#pragma once
#include <algorithm>
#include <array>
#include <memory>
#include <unordered_map>
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
  void drop(u64 line);
  void clear();

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

// An access of memory: where it comes from, when, and what it touches.
struct Request {
  u32 cu;                                      // counted over all XCDs
  double at, address_clk;                      // it leaves its CU's address unit between `at` and `at + address_clk`
  const u64* lines;                            // line << 2 | which halves
  u32 count;
  bool passes_l1 = false;                      // sc1 or nt
  bool is_shared = false;                      // sc1: it sees what other XCDs have written
};

// The memory that the CUs of `xcds` XCDs share, and their caches. One XCD stands for `active` ones.
class Memory {
 public:
  Memory(const Parameters& parameters, u32 xcds, u32 active);

  // When the data of a load is in registers.
  double load(const Request& request);
  // When a store counts as done.
  double store(const Request& request);
  double atomic(const Request& request, u32 collisions);
  double scalar(u32 cu, double at, const u64* lines, u32 count);
  // When the instructions of a line of 128 bytes are there.
  double fetch(u32 cu, double at, u64 line);
  // buffer_inv: the CU's L1 forgets what it holds.
  void forget(u32 cu) { l1_[cu].clear(); }
  // buffer_wbl2: when all that was stored before `at` by the CU's XCD is beyond its L2.
  double written_back(u32 cu, double at) const;

  // Accesses are counted there from now on.
  void account(Traffic& to) { traffic_ = &to; }
  double l2_busy() const;
  double beyond_busy() const;

 private:
  // Channels of an L2, and the lines that each has given lately.
  struct L2Channel {
    Server server;
    std::array<u64, 4> lately{};
    u32 next = 0;
  };
  struct Xcd {
    Cache l2;
    std::vector<L2Channel> channels;
    double stored_until = 0;                   // when all stores so far are beyond the L2
  };
  // Pages of a CU whose translation it has.
  struct Translations {
    std::vector<std::array<u64, 2>> pages;     // page, when it was used last
    u64 time = 0;
  };
  // The path beyond the L2s.
  struct Channel {
    Server server;
    bool writes = false;
  };
  struct Owner {
    u32 xcd;
    double since, free;                        // when it has written, and when the line can move on
  };
  struct Given {
    double ready;
    bool is_far;                               // from beyond the L2
  };

  Given from_l2(u32 xcd, double at, u64 line, bool is_shared);
  double through_channel(Xcd& xcd, double at, u64 line);
  double contention() const;
  double move(double at, u64 line, double bytes_per_clk, bool writes);
  double translated(u32 cu, double at, u64 line);
  double claimed(u32 xcd, double at, u64 line, bool moves);
  double bytes_per_clk(double tb_per_s) const;
  double chase_clk() const;
  u32 xcd_of(u32 cu) const { return cu / p_.cus; }

  const Parameters& p_;
  std::vector<Cache> l1_, scalar_, fetch_;     // per CU, per two CUs
  std::vector<Server> fill_;                   // from the L2 to each CU
  std::vector<Translations> translations_;     // per CU
  std::vector<Xcd> xcds_;
  Cache mall_;
  std::vector<Channel> beyond_;
  double load_ = 0, loaded_at_ = 0;            // share of its time that the path was busy lately; until when
  std::unordered_map<u64, Owner> owners_;      // of lines that were written, where several XCDs are modelled
  Traffic* traffic_ = nullptr;
};

}  // namespace sim::timing
