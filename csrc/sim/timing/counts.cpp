// SPDX-License-Identifier: MIT
// Every worker thread counts into a table of its own; they are added up when the launch ends.
#include "timing/counts.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "isa/mfma_shape.h"
#include "timing/core.h"
#include "timing/trace.h"

namespace sim::timing {
namespace {

struct Ended {
  std::mutex mutex;
  std::vector<LaunchCounts> launches;
  int users = 0;                               // blocks of the caller that count
  CountSettings settings;
  u64 begun = 0;                               // launches since the first of them began
};

Ended& ended() {
  static Ended* instance = new Ended;          // never destroyed: launches may end while the process does
  return *instance;
}

// Per Inst::index.
struct Table {
  explicit Table(const Launch& launch)
      : counts(launch.code->insts.size()), banks(launch.code->insts.size()), place(launch) {}

  std::vector<InstCounts> counts;
  std::vector<std::unique_ptr<BankUse>> banks; // for instructions that access LDS
  Relocation place;
};

class Counter final : public Observer {
 public:
  explicit Counter(Table& table) : table_(table) {}

  void before(Wave& w, const Inst& i) override {
    InstCounts& c = table_.counts[i.index];
    ++c.executed;
    if (!i.op || !is_vector(i.op->spec.cls)) return;
    const bool all = i.op->spec.flags & kIgnoresExec && i.op->spec.cls == Class::mfma;
    c.active_lanes += static_cast<u64>(all ? kLanes : std::popcount(w.exec()));
  }

  u64 global(Wave&, const Inst& i, const u64* address, u64 lanes, const Touch& touch) override {
    InstCounts& c = table_.counts[i.index];
    u64 placed[kLanes];
    table_.place(address, lanes, placed);
    add_segments(c, segment_shape(placed, lanes, touch.bytes));
    if (touch.access == Access::atomic) add_atomic(c, address, lanes);
    return lanes;
  }

  u64 lds(Wave&, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) override {
    InstCounts& c = table_.counts[i.index];
    std::unique_ptr<BankUse>& banks = table_.banks[i.index];
    if (!banks) banks = std::make_unique<BankUse>();
    const LdsShape shape = lds_shape(offset, lanes, touch.bytes, touch.access == Access::load, banks.get());
    c.lds_bytes += static_cast<u64>(std::popcount(lanes)) * touch.bytes;
    c.lds_clk += shape.clk;
    c.lds_conflict_clk += shape.conflict_clk;
    if (touch.access == Access::atomic) {
      u64 address[kLanes];
      std::copy_n(offset, kLanes, address);
      add_atomic(c, address, lanes);
    }
    return lanes;
  }

  u64 scratch(Wave&, const Inst& i, const u32*, u64 lanes, const Touch& touch) override {
    table_.counts[i.index].scratch_bytes += static_cast<u64>(std::popcount(lanes)) * touch.bytes;
    return lanes;
  }

  bool scalar(Wave&, const Inst& i, u64 at, u32 bytes) override {
    const u64 address = table_.place(at);
    add_segments(table_.counts[i.index], segment_shape(&address, 1, bytes));
    return true;
  }

 private:
  static void add_segments(InstCounts& c, const SegmentShape& shape) {
    c.global_bytes += shape.asked;
    c.segments64 += shape.segments64;
    c.segments128 += shape.segments128;
  }
  static void add_atomic(InstCounts& c, const u64* address, u64 lanes) {
    c.atomic_lanes += static_cast<u64>(std::popcount(lanes));
    c.atomic_collisions += collisions(address, lanes);
  }

  Table& table_;
};

// Places in the golden section's sequence, which meets no period of a grid: rows of tiles, heads, XCDs. Each launch
// goes on with it where the one before ended, so that a workgroup of one is not that of the other.
std::vector<u64> spread(u64 total, u32 count, u64 launch) {
  constexpr u64 kGoldenSection = 0x9E3779B97F4A7C15;         // golden section of 2^64
  std::vector<u64> places;
  for (u64 k = launch * count + 1; k <= (launch + 1) * count; ++k) {
    places.push_back(static_cast<u64>(static_cast<unsigned __int128>(k * kGoldenSection) * total >> 64));
  }
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

// A hash of all that can run, in whatever kernel of the code object (FNV-1a).
u64 hash_of(const Code& code) {
  u64 hash = 0xCBF29CE484222325;
  for (const Inst& i : code.insts) {
    for (char c : i.text) hash = (hash ^ static_cast<u8>(c)) * 0x100000001B3;
  }
  return hash;
}

class LaunchCounter final : public LaunchObserver {
 public:
  LaunchCounter(const Launch& launch, const CountSettings& settings, u64 begun) : launch_(launch), settings_(settings) {
    const u64 total = u64{launch.grid[0]} * launch.grid[1] * launch.grid[2];
    if (settings.sample && settings.sample < total) counted_ = spread(total, settings.sample, begun);
  }
  ~LaunchCounter() override {
    LaunchCounts result = summary();
    const std::lock_guard lock(ended().mutex);
    ended().launches.push_back(std::move(result));
  }

  std::unique_ptr<Observer> begin(Workgroup& group) override {
    if (!is_counted(group.number())) return nullptr;
    const std::lock_guard lock(mutex_);
    ++workgroups_;
    waves_ += group.waves.size();
    std::unique_ptr<Table>& table = tables_[std::this_thread::get_id()];
    if (!table) table = std::make_unique<Table>(launch_);
    return std::make_unique<Counter>(*table);
  }
  bool skips(u64 number) override { return settings_.leaves_out && !is_counted(number); }

 private:
  bool is_counted(u64 number) const {
    return counted_.empty() || std::binary_search(counted_.begin(), counted_.end(), number);
  }

  LaunchCounts summary() const {
    const Kernel& k = *launch_.kernel;
    LaunchCounts result;
    result.kernel = k.name;
    std::copy_n(launch_.grid, 3, result.grid);
    std::copy_n(launch_.block, 3, result.block);
    result.lds_bytes = launch_.lds_bytes;
    result.vgprs = k.vgprs, result.agprs = k.agprs, result.sgprs = k.sgprs;
    result.private_bytes = launch_.private_bytes;
    result.vgpr_spills = k.vgpr_spills, result.sgpr_spills = k.sgpr_spills;
    result.occupancy = occupancy(k, u64{launch_.block[0]} * launch_.block[1] * launch_.block[2], launch_.lds_bytes);
    result.workgroups = workgroups_;
    result.waves = waves_;
    result.code = hash_of(*launch_.code);
    const std::vector<Inst>& insts = launch_.code->insts;
    for (size_t n = 0; n < insts.size(); ++n) {
      InstCounts sum;
      for (const auto& [thread, table] : tables_) sum.add(table->counts[n]);
      if (sum.executed) result.lines.push_back(line(insts[n], sum));
    }
    return result;
  }

  BankUse banks(u32 index) const {
    BankUse sum;
    for (const auto& [thread, table] : tables_) {
      for (u32 bank = 0; table->banks[index] && bank < kBanks; ++bank) {
        sum.clk[bank] += table->banks[index]->clk[bank];
        sum.extra_clk[bank] += table->banks[index]->extra_clk[bank];
      }
    }
    return sum;
  }

  LaunchCounts::Line line(const Inst& i, const InstCounts& counts) const {
    const Class cls = i.op ? i.op->spec.cls : Class::other;
    LaunchCounts::Line line{i.pc - launch_.kernel->entry, i.text, source_of(*launch_.code, i.pc),
                            caller_of(*launch_.code, i.pc), cls, i.size == 8 && i.pc % 8 != 0, i.vmcnt,
                            i.lgkmcnt, 0, 0, "", counts, banks(i.index)};
    if (cls == Class::mfma) {
      const MfmaShape shape = mfma_shape(i.op->name);
      line.flops = shape.flops();
      line.passes = passes_of(i.op->name);
      line.type = shape.type;
    }
    return line;
  }

  const Launch& launch_;
  const CountSettings settings_;
  std::vector<u64> counted_;                   // workgroups, in order; none: all
  std::mutex mutex_;
  std::map<std::thread::id, std::unique_ptr<Table>> tables_;
  u64 workgroups_ = 0, waves_ = 0;
};

LaunchObserver* make(const Launch& launch) {
  const std::lock_guard lock(ended().mutex);
  return new LaunchCounter(launch, ended().settings, ended().begun++);
}

}  // namespace

void InstCounts::add(const InstCounts& other) {
  executed += other.executed, active_lanes += other.active_lanes;
  global_bytes += other.global_bytes, segments64 += other.segments64, segments128 += other.segments128;
  lds_bytes += other.lds_bytes, lds_clk += other.lds_clk, lds_conflict_clk += other.lds_conflict_clk;
  scratch_bytes += other.scratch_bytes;
  atomic_lanes += other.atomic_lanes, atomic_collisions += other.atomic_collisions;
}

void begin_counting(const CountSettings& settings) {
  const std::lock_guard lock(ended().mutex);
  if (ended().users++) return;
  ended().settings = settings;
  ended().begun = 0;
  aiter_like_sim_observe(make, 1);
}

void end_counting() {
  const std::lock_guard lock(ended().mutex);
  if (--ended().users == 0) aiter_like_sim_observe(make, 0);
}

std::vector<LaunchCounts> take_counts() {
  const std::lock_guard lock(ended().mutex);
  return std::exchange(ended().launches, {});
}

}  // namespace sim::timing
