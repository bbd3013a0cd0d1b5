// SPDX-License-Identifier: MIT
#include "timing/caches.h"

#include <bit>
#include <cmath>

namespace sim::timing {
namespace {

// One of `places` for a line. Any number of them is filled evenly, as a share of a cache or of channels needs.
u64 place_of(u64 line, u64 places) {
  return ((line ^ line >> 7 ^ line >> 13) * 0x9e3779b97f4a7c15 >> 40) * places >> 24;
}

constexpr double kChaseAddressClk = 4;
constexpr double kLoadClk = 1000;              // over which the load of the path beyond the L2 is averaged
constexpr double kMostLoad = 0.9;              // above it the channels' own queues tell

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

void Cache::drop(u64 line) {
  if (Entry* entry = find(line)) *entry = {};
}

void Cache::clear() { std::fill(entries_.begin(), entries_.end(), Entry{}); }

Memory::Memory(const Parameters& p, u32 xcds, u32 active)
    : p_(p), fill_(size_t{p.cus} * xcds), translations_(size_t{p.cus} * xcds),
      mall_(p.mall_bytes * xcds / std::max(active, xcds), 16), beyond_(size_t{p.memory_channels} * xcds) {
  const u32 cus = p.cus * xcds;
  l1_.assign(cus, Cache(p.l1_bytes, p.l1_ways));
  scalar_.assign((cus + 1) / 2, Cache(p.scalar_bytes, p.scalar_ways, 64));
  fetch_.assign((cus + 1) / 2, Cache(p.fetch_bytes, p.fetch_ways));
  xcds_.assign(xcds, Xcd{Cache(p.l2_bytes, p.l2_ways), std::vector<L2Channel>(p.l2_channels)});
}

// The latencies of the levels are those of a whole pointer chase. What its load spends in the address unit, a channel
// and the path to its CU is in them.
double Memory::chase_clk() const { return p_.channel_clk + 64 / p_.l1_fill_bytes; }

// Of all modelled XCDs. One of them has its share, even where the others have nothing to do: what an XCD can get alone
// is not published.
double Memory::bytes_per_clk(double tb_per_s) const {
  return p_.xcd_bytes_per_clk(tb_per_s) * static_cast<double>(xcds_.size());
}

Memory::Given Memory::from_l2(u32 number, double at, u64 line, bool is_shared) {
  Xcd& xcd = xcds_[number];
  ++traffic_->l2_lines;
  const double start = through_channel(xcd, at, line);
  const double here = p_.l2_latency_clk - p_.l1_latency_clk - chase_clk();
  if (Cache::Entry* hit = xcd.l2.find(line)) {
    const auto owner = is_shared ? owners_.find(line) : owners_.end();
    // What another XCD has written since takes the line away.
    if (owner == owners_.end() || owner->second.xcd == number || owner->second.since <= hit->ready) {
      ++traffic_->l2_hits;
      return {std::max(start + here, hit->ready), hit->ready > start + here};
    }
  }
  const bool in_mall = mall_.find(line) != nullptr;
  const double rate = bytes_per_clk(in_mall ? p_.mall_tb_per_s : p_.hbm_read_tb_per_s);
  const double through = move(start, line, rate, false);
  const double latency = in_mall ? p_.mall_latency_clk : p_.hbm_latency_clk;
  const double own = 128 * static_cast<double>(beyond_.size()) / rate;
  const double ready = through + latency - p_.l1_latency_clk - chase_clk() - own + contention();
  in_mall ? ++traffic_->mall_hits : ++traffic_->hbm_lines;
  if (!in_mall) mall_.insert(line, 0);
  xcd.l2.insert(line, ready);
  return {ready, true};
}

double Memory::through_channel(Xcd& xcd, double at, u64 line) {
  L2Channel& channel = xcd.channels[place_of(line, p_.l2_channels)];
  auto& lately = channel.lately;
  const bool again = std::find(lately.begin(), lately.end(), line) != lately.end();
  if (!again) lately[channel.next++ % lately.size()] = line;
  return channel.server.take(at, again ? p_.channel_again_clk : p_.channel_clk);
}

// When a CU knows where a line lies.
double Memory::translated(u32 cu, double at, u64 line) {
  Translations& known = translations_[cu];
  const u64 page = line / (p_.page_bytes / 128);
  for (auto& [one, used] : known.pages) {
    if (one != page) continue;
    used = ++known.time;
    return at;
  }
  if (known.pages.size() < p_.translations) {
    known.pages.push_back({page, ++known.time});
  } else {
    *std::min_element(known.pages.begin(), known.pages.end(), [](auto& a, auto& b) { return a[1] < b[1]; }) =
        {page, ++known.time};
  }
  return at + p_.translation_clk;
}

// When an XCD may write a line: where several are modelled, after the one that wrote it before, and if `moves`, when
// the line has come from there.
double Memory::claimed(u32 xcd, double at, u64 line, bool moves) {
  if (xcds_.size() == 1) return at;
  const auto [owner, is_new] = owners_.try_emplace(line, Owner{xcd, at, at});
  if (is_new) return at;
  Owner& o = owner->second;
  if (o.xcd != xcd) {
    if (moves) at = std::max(at, o.free) + p_.mall_latency_clk - p_.l2_latency_clk;
    xcds_[o.xcd].l2.drop(line);
  }
  o = {xcd, at, at};
  return at;
}

double Memory::load(const Request& r) {
  const double rest = p_.l1_latency_clk - kChaseAddressClk;    // after the address unit
  double done = r.at + std::max(r.address_clk, kChaseAddressClk) + rest;
  for (u32 k = 0; k < r.count; ++k) {
    const u64 line = r.lines[k] >> 2;
    double now = r.at + r.address_clk * k / r.count;
    ++traffic_->l1_lines;
    if (Cache::Entry* hit = r.passes_l1 ? nullptr : l1_[r.cu].find(line)) {
      ++traffic_->l1_hits;
      done = std::max(done, hit->ready + rest);
      continue;
    }
    now = translated(r.cu, now, line);
    const Given sent = from_l2(xcd_of(r.cu), now, line, r.is_shared);
    const u32 bytes = 64 * half_count(r.lines[k]);
    traffic_->l2_read_bytes += bytes;
    const double per_clk = sent.is_far ? p_.l1_far_fill_bytes : p_.l1_fill_bytes;
    const double arrived = fill_[r.cu].take(sent.ready, bytes / per_clk);
    if (!r.passes_l1) l1_[r.cu].insert(line, arrived);
    done = std::max(done, arrived + rest + kChaseAddressClk + (r.passes_l1 ? p_.bypass_clk : 0));
  }
  return done;
}

double Memory::store(const Request& r) {
  double done = r.at + r.address_clk;
  Xcd& xcd = xcds_[xcd_of(r.cu)];
  for (u32 k = 0; k < r.count; ++k) {
    const u64 line = r.lines[k] >> 2;
    const double now = translated(r.cu, r.at + r.address_clk * k / r.count, line);
    L2Channel& channel = xcd.channels[place_of(line, p_.l2_channels)];
    const double start = claimed(xcd_of(r.cu), channel.server.take(now, p_.store_clk), line, r.is_shared);
    l1_[r.cu].drop(line);
    done = std::max(done, start + p_.l2_latency_clk);
    ++traffic_->stored_lines;
    traffic_->l2_written_bytes += 64 * half_count(r.lines[k]);
    if (xcd.l2.find(line)) {
      ++traffic_->stored_hits;
      if (!r.is_shared) continue;
    }
    ++traffic_->written_lines;
    xcd.l2.insert(line, start);
    const bool in_mall = mall_.find(line) != nullptr;
    if (!in_mall) mall_.insert(line, 0);
    // It is written back some time: the bytes are moved now, and the store does not wait for them unless they pile up.
    const double rate = bytes_per_clk(in_mall ? p_.mall_write_tb_per_s : p_.hbm_write_tb_per_s);
    const double moved = move(start, line, rate, true);
    xcd.stored_until = std::max(xcd.stored_until, moved);
    done = std::max(done, moved);
  }
  return done;
}

double Memory::atomic(const Request& r, u32 collisions) {
  double done = r.at + r.address_clk;
  Xcd& xcd = xcds_[xcd_of(r.cu)];
  for (u32 k = 0; k < r.count; ++k) {
    const u64 line = r.lines[k] >> 2;
    double now = translated(r.cu, r.at + r.address_clk * k / r.count, line);
    l1_[r.cu].drop(line);
    now = claimed(xcd_of(r.cu), now, line, true);
    const double there = xcd.l2.find(line) ? now : from_l2(xcd_of(r.cu), now, line, false).ready;
    L2Channel& channel = xcd.channels[place_of(line, p_.l2_channels)];
    const double clk = p_.atomic_clk * half_count(r.lines[k]) + p_.collision_clk * (k ? 0 : collisions);
    const double end = channel.server.take(now, clk);
    done = std::max({done, end + p_.atomic_latency_clk, there + p_.atomic_latency_clk});
    if (xcds_.size() > 1) owners_[line].free = end;
    ++traffic_->stored_lines;
    traffic_->l2_written_bytes += 64 * half_count(r.lines[k]);
  }
  return done;
}

double Memory::written_back(u32 cu, double at) const {
  return std::max(at + p_.write_back_clk, xcds_[xcd_of(cu)].stored_until);
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
      const double ready = from_l2(xcd_of(cu), at, lines[k] >> 2, false).ready;
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
  const double clk = 128 * static_cast<double>(beyond_.size()) / bytes_per_clk;
  const double turn = channel.writes != writes ? p_.turnaround_clk : 0;
  channel.writes = writes;
  const double past = std::max(at - loaded_at_, 0.0);
  load_ = load_ * std::exp(-past / kLoadClk) + clk / static_cast<double>(beyond_.size()) / kLoadClk;
  loaded_at_ += past;
  return channel.server.take(at, turn + clk);
}

// What a load waits for others on its way, beyond what the channels are busy: as in a queue, the more of the path's
// time is taken, the longer.
double Memory::contention() const {
  const double share = std::min(load_, kMostLoad);
  return p_.contention_clk * share / (1 - share);
}

double Memory::beyond_busy() const {
  double busy = 0;
  for (const Channel& channel : beyond_) busy += channel.server.busy();
  return busy / static_cast<double>(beyond_.size());
}

double Memory::l2_busy() const {
  double busy = 0;
  for (const Xcd& xcd : xcds_) {
    for (const L2Channel& channel : xcd.channels) busy += channel.server.busy();
  }
  return busy / (p_.l2_channels * static_cast<double>(xcds_.size()));
}

}  // namespace sim::timing
