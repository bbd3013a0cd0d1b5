// SPDX-License-Identifier: MIT
#include "timing/caches.h"

#include <bit>

namespace sim::timing {
namespace {

// One of `places` for a line. Any number of them is filled evenly, as a share of a cache or of channels needs.
u64 place_of(u64 line, u64 places) {
  return ((line ^ line >> 7 ^ line >> 13) * 0x9e3779b97f4a7c15 >> 40) * places >> 24;
}

constexpr double kChaseAddressClk = 4;

u32 half_count(u64 request) { return static_cast<u32>(std::popcount(request & 3)); }

}  // namespace

void Traffic::add(const Traffic& other) {
  l1_lines += other.l1_lines, l1_hits += other.l1_hits;
  scalar_lines += other.scalar_lines, scalar_hits += other.scalar_hits;
  l2_lines += other.l2_lines, l2_hits += other.l2_hits;
  stored_lines += other.stored_lines, stored_hits += other.stored_hits;
  l2_read_bytes += other.l2_read_bytes, l2_written_bytes += other.l2_written_bytes;
  mall_hits += other.mall_hits, hbm_lines += other.hbm_lines, written_lines += other.written_lines;
}

Cache::Cache(u64 bytes, u32 ways, u32 line_bytes)
    : sets_(static_cast<u32>(std::max<u64>(bytes / line_bytes / ways, 1))), ways_(ways),
      entries_(static_cast<size_t>(sets_) * ways) {}

Cache::Entry* Cache::find(u64 line) {
  Entry* const set = &entries_[place_of(line, sets_) * ways_];
  for (u32 way = 0; way < ways_; ++way) {
    if (set[way].line != line) continue;
    set[way].used = ++time_;
    return &set[way];
  }
  return nullptr;
}

void Cache::insert(u64 line, double ready) {
  Entry* const set = &entries_[place_of(line, sets_) * ways_];
  Entry* const oldest = std::min_element(set, set + ways_, [](auto& a, auto& b) { return a.used < b.used; });
  *oldest = {line, ready, ++time_};
}

Memory::Memory(const Parameters& p)
    : p_(p), fill_(p.cus), channels_(p.l2_channels), l2_(p.l2_bytes, p.l2_ways),
      mall_(p.mall_bytes / p.xcds, 16), beyond_(p.memory_channels) {
  l1_.assign(p.cus, Cache(p.l1_bytes, p.l1_ways));
  scalar_.assign((p.cus + 1) / 2, Cache(p.scalar_bytes, p.scalar_ways, 64));
  fetch_.assign((p.cus + 1) / 2, Cache(p.fetch_bytes, p.fetch_ways));
}

// The latencies of the levels are those of a whole pointer chase. What its load spends in the address unit, a channel
// and the path to its CU is in them.
double Memory::chase_clk() const { return p_.channel_clk + 64 / p_.l1_fill_bytes; }

double Memory::from_l2(double at, u64 line) {
  ++traffic_->l2_lines;
  const double start = through_channel(at, line);
  const double here = p_.l2_latency_clk - p_.l1_latency_clk - chase_clk();
  if (Cache::Entry* hit = l2_.find(line)) {
    ++traffic_->l2_hits;
    return std::max(start + here, hit->ready);
  }
  const bool in_mall = mall_.find(line) != nullptr;
  const double bytes_per_clk = p_.xcd_bytes_per_clk(in_mall ? p_.mall_tb_per_s : p_.hbm_read_tb_per_s);
  const double through = move(start, line, bytes_per_clk, false);
  const double latency = in_mall ? p_.mall_latency_clk : p_.hbm_latency_clk;
  const double ready = through + latency - p_.l1_latency_clk - chase_clk() - 128 * p_.memory_channels / bytes_per_clk;
  in_mall ? ++traffic_->mall_hits : ++traffic_->hbm_lines;
  if (!in_mall) mall_.insert(line, 0);
  l2_.insert(line, ready);
  return ready;
}

double Memory::through_channel(double at, u64 line) {
  L2Channel& channel = channels_[place_of(line, p_.l2_channels)];
  auto& lately = channel.lately;
  const bool again = std::find(lately.begin(), lately.end(), line) != lately.end();
  if (!again) lately[channel.next++ % lately.size()] = line;
  return channel.server.take(at, again ? p_.channel_again_clk : p_.channel_clk);
}

double Memory::load(u32 cu, double at, double address_clk, const u64* lines, u32 count) {
  const double rest = p_.l1_latency_clk - kChaseAddressClk;    // after the address unit
  double done = at + std::max(address_clk, kChaseAddressClk) + rest;
  for (u32 k = 0; k < count; ++k) {
    const u64 line = lines[k] >> 2;
    const double now = at + address_clk * k / count;
    ++traffic_->l1_lines;
    if (Cache::Entry* hit = l1_[cu].find(line)) {
      ++traffic_->l1_hits;
      done = std::max(done, hit->ready + rest);
      continue;
    }
    const double sent = from_l2(now, line);
    traffic_->l2_read_bytes += 64 * half_count(lines[k]);
    const double arrived = fill_[cu].take(sent, 64 * half_count(lines[k]) / p_.l1_fill_bytes);
    l1_[cu].insert(line, arrived);
    done = std::max(done, arrived + rest + kChaseAddressClk);
  }
  return done;
}

double Memory::store(double at, double address_clk, const u64* lines, u32 count) {
  double done = at + address_clk;
  for (u32 k = 0; k < count; ++k) {
    const u64 line = lines[k] >> 2;
    const double start = through_channel(at + address_clk * k / count, line);
    done = std::max(done, start + p_.l2_latency_clk);
    ++traffic_->stored_lines;
    traffic_->l2_written_bytes += 64 * half_count(lines[k]);
    if (l2_.find(line)) {
      ++traffic_->stored_hits;
      continue;
    }
    ++traffic_->written_lines;
    l2_.insert(line, start);
    mall_.insert(line, 0);
    // It is written back some time: the bytes are moved now, and the store does not wait for them unless they pile up.
    const double moved = move(start, line, p_.xcd_bytes_per_clk(p_.hbm_write_tb_per_s), true);
    done = std::max(done, moved);
  }
  return done;
}

double Memory::atomic(double at, double address_clk, const u64* lines, u32 count, u32 collisions) {
  double done = store(at, address_clk, lines, count);
  for (u32 k = 0; k < count; ++k) {
    Server& channel = channels_[place_of(lines[k] >> 2, p_.l2_channels)].server;
    const double clk = p_.atomic_clk * half_count(lines[k]) + p_.collision_clk * (k ? 0 : collisions);
    done = std::max(done, channel.take(at, clk) + p_.atomic_latency_clk);
  }
  return done;
}

double Memory::scalar(u32 cu, double at, const u64* lines, u32 count) {
  double done = at + p_.scalar_latency_clk;
  for (u32 k = 0; k < count; ++k) {
    Cache& cache = scalar_[cu / 2];
    ++traffic_->scalar_lines;
    if (Cache::Entry* hit = cache.find(lines[k] >> 2)) {
      ++traffic_->scalar_hits;
      done = std::max(done, std::max(hit->ready, at) + p_.scalar_latency_clk);
    } else {
      const double ready = from_l2(at, lines[k] >> 2);
      traffic_->l2_read_bytes += 64 * half_count(lines[k]);
      cache.insert(lines[k] >> 2, ready);
      done = std::max(done, ready + p_.scalar_latency_clk);
    }
  }
  return done;
}

double Memory::fetch(u32 cu, double at, u64 line) {
  Cache& cache = fetch_[cu / 2];
  if (Cache::Entry* hit = cache.find(line)) return std::max(at, hit->ready);
  const double ready = at + p_.l2_latency_clk;
  cache.insert(line, ready);
  for (u32 k = 1; k <= p_.fetch_ahead; ++k) {
    if (!cache.find(line + k)) cache.insert(line + k, ready + k * p_.fetch_clk);
  }
  return ready;
}

double Memory::move(double at, u64 line, double bytes_per_clk, bool writes) {
  Channel& channel = beyond_[place_of(line * 7, beyond_.size())];
  const double turn = channel.writes != writes ? p_.turnaround_clk : 0;
  channel.writes = writes;
  return channel.server.take(at, turn + 128 * static_cast<double>(beyond_.size()) / bytes_per_clk);
}

double Memory::beyond_busy() const {
  double busy = 0;
  for (const Channel& channel : beyond_) busy += channel.server.busy();
  return busy / static_cast<double>(beyond_.size());
}

double Memory::l2_busy() const {
  double busy = 0;
  for (const L2Channel& channel : channels_) busy += channel.server.busy();
  return busy / p_.l2_channels;
}

}  // namespace sim::timing
