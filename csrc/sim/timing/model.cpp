// SPDX-License-Identifier: MIT
// The workgroups of one XCD stand for those of all eight: numbers 0, 8, 16, … of the grid. When they are many, some
// windows of neighbouring ones are recorded, each as many as the modelled CUs hold, spread over the grid; the first one
// tells how long a workgroup is and with it how many windows there can be. What the caches and the paths beyond them
// give is cut down to the share of the modelled CUs.
#include "timing/model.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "isa/mfma_shape.h"
#include "run/occupancy.h"
#include "timing/core.h"

namespace sim::timing {
namespace {

constexpr u32 kFewestCus = 8;
constexpr u64 kMostRounds = 24;                // of workgroups on all CUs

struct State {
  std::mutex mutex;
  ModelSettings settings;
  std::vector<ModelledLaunch> ended;
};

State& state() {
  static State* instance = new State;
  return *instance;
}

class LaunchModel final : public LaunchObserver {
 public:
  LaunchModel(const Launch& launch, const ModelSettings& settings)
      : launch_(launch), settings_(settings), recorder_(launch),
        occupancy_(occupancy(*launch.kernel, u64{launch.block[0]} * launch.block[1] * launch.block[2],
                             launch.lds_bytes)) {
    parameters_.clock_mhz = settings.clock_mhz;
    const u64 total = u64{launch.grid[0]} * launch.grid[1] * launch.grid[2];
    of_xcd_ = (total + parameters_.xcds - 1) / parameters_.xcds;
    // A grid that does not fill the CUs is spread over them.
    const u64 per_cu = std::max<u64>((of_xcd_ + parameters_.cus - 1) / parameters_.cus, 1);
    slots_ = static_cast<u32>(std::min<u64>(std::max(occupancy_.groups, 1u), per_cu));
    window_ = std::min<u64>(of_xcd_, u64{kFewestCus} * slots_);
    from_ = of_xcd_ <= u64{parameters_.cus} * slots_ ? 0 : of_xcd_ / 4;
    until_ = of_xcd_ <= 2 * window_ ? of_xcd_ : from_ + window_;
  }

  ~LaunchModel() override {
    ModelledLaunch result = summary();
    const std::lock_guard lock(state().mutex);
    state().ended.push_back(std::move(result));
  }

  std::unique_ptr<Observer> begin(Workgroup& group) override {
    return wanted(group.number()) ? recorder_.record(group) : nullptr;
  }
  bool skips(u64 number) override { return settings_.sample && !wanted(number); }
  bool needs_one_thread() const override { return true; }      // the windows follow from what came before

 private:
  // Workgroups are asked about in the order of their numbers.
  bool wanted(u64 number) {
    if (number % parameters_.xcds) return false;
    const u64 at = number / parameters_.xcds;
    while (at >= until_ && next_window()) {}
    return at >= from_ && at < until_;
  }

  // The next window behind the last one. False when there is none.
  bool next_window() {
    if (until_ >= of_xcd_) return false;
    if (step_ == 0) {
      // What the first window has taught: the length of a workgroup.
      const u64 length = std::max<u64>(recorder_.instructions() / std::max<u64>(recorder_.groups(), 1), 1);
      const u64 affordable = settings_.budget / length, left = of_xcd_ - until_;
      const u64 wide = u64{parameters_.cus} * slots_;
      const u64 wanted = std::min(std::clamp<u64>(affordable, window_, kMostRounds * wide), left);
      if (wanted >= 2 * wide) window_ = wide;
      step_ = std::max(left * window_ / wanted, window_);
      from_ = until_;
      until_ = std::min(from_ + window_, of_xcd_);
      return true;
    }
    from_ += step_;
    if (from_ >= of_xcd_) return false;
    until_ = std::min(from_ + window_, of_xcd_);
    return true;
  }

  ModelledLaunch summary() {
    const std::vector<WorkgroupTrace> traces = recorder_.take();
    ModelledLaunch m;
    m.kernel = launch_.kernel->name;
    std::copy_n(launch_.grid, 3, m.grid);
    std::copy_n(launch_.block, 3, m.block);
    m.lds_bytes = launch_.lds_bytes;
    m.occupancy = occupancy_;
    m.workgroups = of_xcd_;
    m.recorded = traces.size();
    m.clock_mhz = parameters_.clock_mhz;
    if (traces.empty()) return m;
    const bool all = m.recorded == of_xcd_;
    m.cus = all ? parameters_.cus
                : static_cast<u32>(std::clamp<u64>(m.recorded / (2 * u64{slots_}), 1, parameters_.cus));
    const std::vector<IssueFacts> facts = issue_facts(*launch_.code, parameters_);
    m.replayed = replay(share_of(m.cus), {m.cus, slots_, settings_.timeline_events}, *launch_.code, facts, traces);
    m.clk = extrapolated(m);
    const double groups = static_cast<double>(launch_.grid[0]) * launch_.grid[1] * launch_.grid[2];
    for (const Inst& i : launch_.code->insts) {
      const InstTime& time = m.replayed.insts[i.index];
      if (!time.issued) continue;
      if (i.op && i.op->spec.cls == Class::mfma) {
        m.mfma_flops += static_cast<double>(time.issued * mfma_shape(i.op->name).flops()) * groups /
                        static_cast<double>(m.recorded);
      }
      m.lines.push_back({i.pc - launch_.kernel->entry, i.text, source_of(*launch_.code, i.pc), time});
    }
    return m;
  }

  // What `cus` of an XCD's CUs have of what they share.
  Parameters share_of(u32 cus) const {
    Parameters p = parameters_;
    const double share = static_cast<double>(cus) / p.cus;
    p.l2_bytes = static_cast<u32>(p.l2_bytes * share);
    p.mall_bytes = static_cast<u64>(static_cast<double>(p.mall_bytes) * share);
    p.l2_channels = std::max(static_cast<u32>(p.l2_channels * share + 0.5), 1u);
    p.memory_channels = std::max(static_cast<u32>(p.memory_channels * share + 0.5), 1u);
    p.mall_tb_per_s *= share;
    p.hbm_read_tb_per_s *= share;
    p.hbm_write_tb_per_s *= share;
    p.cus = cus;
    return p;
  }

  // Places that workgroups take one after the other: each has its share of their time, and at the end some wait for the
  // last ones.
  double extrapolated(const ModelledLaunch& m) const {
    double spent = 0;
    for (const GroupTime& group : m.replayed.groups) spent += group.end - group.begin + parameters_.dispatch_clk;
    const double places = static_cast<double>(m.cus) * slots_;
    if (m.recorded == of_xcd_) return m.replayed.clk;
    const double idle = std::max(m.replayed.clk - spent / places, 0.0);
    // How much more each modelled CU would have to do.
    const double more = static_cast<double>(of_xcd_) / parameters_.cus / (static_cast<double>(m.recorded) / m.cus);
    const EngineResult& r = m.replayed;
    // The last workgroups run faster, on CUs that are half empty: no unit is faster than it can be for all that.
    const double simds = m.cus * parameters_.simds;
    const double busiest = std::max({r.mfma_busy / simds, r.valu_busy / simds, r.lds_busy / m.cus,
                                     r.address_busy / m.cus, r.l2_busy, r.beyond_busy});
    return std::max(idle + more * spent / places, more * busiest);
  }

  const Launch& launch_;
  const ModelSettings settings_;
  Parameters parameters_;
  Recorder recorder_;
  Occupancy occupancy_;
  u32 slots_ = 1;
  u64 of_xcd_ = 0, window_ = 0, from_ = 0, until_ = 0, step_ = 0;
};

LaunchObserver* make(const Launch& launch) {
  const std::lock_guard lock(state().mutex);
  return new LaunchModel(launch, state().settings);
}

}  // namespace

void begin_modelling(const ModelSettings& settings) {
  const std::lock_guard lock(state().mutex);
  state().settings = settings;
  aiter_like_sim_observe(make, 1);
}

void end_modelling() { aiter_like_sim_observe(make, 0); }

std::vector<ModelledLaunch> take_modelled() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().ended, {});
}

}  // namespace sim::timing
