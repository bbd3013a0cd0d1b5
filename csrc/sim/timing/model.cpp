// SPDX-License-Identifier: MIT
// Where workgroups can wait for one another or write one place, all are recorded and all eight XCDs replayed, as far as
// the budget goes. Else the workgroups of one XCD stand for those of all eight: those of the XCD whose waves execute
// the most, or when that is too much to record, numbers 0, 8, 16, … of the grid. When these are many, a few of its CUs
// stand for all of them: windows of neighbouring workgroups are recorded, spread over the grid, each as many as
// these CUs hold, and the last one, at the grid's end, as full as the launch's last round of workgroups. The first one
// tells how long a workgroup is, and with it how many CUs and rounds there can be. What the caches and the paths beyond
// them give is cut down to the share of the modelled CUs.
#include "timing/model.h"

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

#include "isa/mfma_shape.h"
#include "run/occupancy.h"
#include "timing/core.h"

namespace sim::timing {
namespace {

constexpr u32 kFirstCus = 8;                   // whose workgroups are recorded before any length is known
constexpr u64 kMostRounds = 24;                // rounds of workgroups on all CUs
constexpr u64 kMostOfAll = 12'000'000;         // wave instructions to record, to find the XCD with the most work
constexpr u64 kMostBytes = u64{2} << 30;       // of recordings of all XCDs

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
      : launch_(launch), settings_(settings), facts_(issue_facts(*launch.code, parameters_)), meets_(can_meet()),
        recorder_(launch, facts_, meets_),
        occupancy_(occupancy(*launch.kernel, u64{launch.block[0]} * launch.block[1] * launch.block[2],
                             launch.lds_bytes)) {
    parameters_.clock_mhz = settings.clock_mhz;
    const u64 total = u64{launch.grid[0]} * launch.grid[1] * launch.grid[2];
    of_xcd_ = (total + parameters_.xcds - 1) / parameters_.xcds;
    active_ = static_cast<u32>(std::min<u64>(total, parameters_.xcds));
    // A grid that does not fill the CUs is spread over them.
    const u64 per_cu = std::max<u64>((of_xcd_ + parameters_.cus - 1) / parameters_.cus, 1);
    slots_ = static_cast<u32>(std::min<u64>(std::max(occupancy_.groups, 1u), per_cu));
    wide_ = u64{parameters_.cus} * slots_;
    last_ = of_xcd_ % wide_;
    cus_ = parameters_.cus;
    const u64 first = u64{kFirstCus} * slots_;
    from_ = of_xcd_ <= wide_ ? 0 : of_xcd_ / 4;
    until_ = from_ + first;
    if (of_xcd_ <= 2 * first || settings.budget == 0) from_ = 0, until_ = of_xcd_;
    takes_all_ = meets_ || !settings.sample;
    most_ = settings.budget ? settings.budget : meets_ ? ~u64{0} : kMostOfAll;
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
    if (takes_all_ && recorder_.instructions() < most_ && recorder_.bytes() < kMostBytes) return true;
    if (std::exchange(takes_all_, false)) leave_first_xcd();
    if (number % parameters_.xcds) return false;
    const u64 at = number / parameters_.xcds;
    while (at >= until_ && next_window()) {}
    return at >= from_ && at < until_;
  }

  // One XCD stands for all: with all of its workgroups where the budget has room for so many as were recorded so far,
  // since their lengths may differ; else with windows of them.
  void leave_first_xcd() {
    const u64 groups = std::max<u64>(recorder_.groups(), 1), length = recorder_.instructions() / groups;
    recorder_.leave_first_xcd(parameters_.xcds);
    if (length * of_xcd_ <= settings_.budget) from_ = 0, until_ = of_xcd_;
  }

  // Whether the kernel has an instruction that reads what other workgroups may write while it runs, or an atomic.
  bool can_meet() const {
    return launch_.code->any_of(*launch_.kernel, [&](const Inst& i) {
      const IssueFacts& f = facts_[i.index];
      return f.meets || (f.atomic && i.op->spec.cls != Class::ds);
    });
  }

  // Leaves the workgroups of one XCD: the one whose waves execute the most, if all were recorded.
  void leave_one_xcd(std::vector<WorkgroupTrace>& traces) const {
    std::vector<u64> work(parameters_.xcds);
    for (const WorkgroupTrace& group : traces) {
      for (const WaveTrace& wave : group.waves) work[group.number % work.size()] += wave.code.size();
    }
    const u64 chosen = takes_all_ ? static_cast<u64>(std::max_element(work.begin(), work.end()) - work.begin()) : 0;
    std::erase_if(traces, [&](const WorkgroupTrace& group) { return group.number % work.size() != chosen; });
  }

  // The next window behind the last one. False when there is none.
  bool next_window() {
    if (until_ >= of_xcd_) return false;
    if (window_ == 0) {
      plan();
      return true;
    }
    if (left_ == 0) return false;
    from_ = until_ + apart_;
    until_ = from_ + std::min(window_, left_);
    left_ -= until_ - from_;
    return true;
  }

  // Plans with the length of a workgroup, which the first window has shown: as many CUs as can be; rounds of workgroups
  // on them, at least two if the launch has two; and the first window, made as wide as a round.
  void plan() {
    const u64 length = std::max<u64>(recorder_.instructions() / std::max<u64>(recorder_.groups(), 1), 1);
    const u64 first = until_ - from_, rounds = of_xcd_ / wide_;
    const u64 affordable = std::clamp<u64>(settings_.budget / length, first, kMostRounds * wide_);
    const u64 most = first + std::min(affordable, of_xcd_ - until_);
    const u64 on_all_cus = std::min<u64>(rounds, 2) * wide_ + last_;
    cus_ = static_cast<u32>(std::min<u64>(most * parameters_.cus / on_all_cus, parameters_.cus));
    window_ = u64{cus_} * slots_;
    const u64 wanted = std::min((most - last_of(cus_)) / window_, rounds) * window_ + last_of(cus_);
    until_ = std::max(until_, from_ + std::min(window_, wanted));
    left_ = wanted - (until_ - from_);
    if (left_) apart_ = (of_xcd_ - until_ - left_) / ((left_ + window_ - 1) / window_);
  }

  // The workgroups that the launch's last round, unless it is full, has on `cus` of the CUs; a part of one counts.
  u64 last_of(u32 cus) const { return (last_ * cus + parameters_.cus - 1) / parameters_.cus; }

  ModelledLaunch summary() {
    std::vector<WorkgroupTrace> traces = recorder_.take();
    const bool is_whole_chip = meets_ && takes_all_ && active_ > 1;
    if (!is_whole_chip) leave_one_xcd(traces);
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
    m.cus = cus_;
    m.workgroups_of_cu = is_whole_chip ? static_cast<double>(traces.size()) / (parameters_.xcds * parameters_.cus)
                                       : static_cast<double>(of_xcd_) / parameters_.cus;
    m.xcds = is_whole_chip ? parameters_.xcds : 1;
    const std::vector<std::vector<u32>> meetings = recorder_.ends();
    EngineShape shape{m.cus, m.xcds, active_, slots_, settings_.timeline_events};
    if (meets_ && takes_all_) shape.meetings = &meetings;
    m.replayed = replay(share_of(m.cus), shape, *launch_.code, facts_, traces);
    m.clk = is_whole_chip ? m.replayed.clk : extrapolated(m);
    const double groups = static_cast<double>(launch_.grid[0]) * launch_.grid[1] * launch_.grid[2];
    for (const Inst& i : launch_.code->insts) {
      const InstTime& time = m.replayed.insts[i.index];
      if (!time.issued) continue;
      if (i.op && i.op->spec.cls == Class::mfma) {
        m.mfma_flops += static_cast<double>(time.issued * mfma_shape(i.op->name).flops()) * groups /
                        static_cast<double>(m.recorded);
      }
      m.lines.push_back({i.pc - launch_.kernel->entry, i.text, source_of(*launch_.code, i.pc),
                         caller_of(*launch_.code, i.pc), time});
    }
    return m;
  }

  // The parameters of `cus` of an XCD's CUs: their part of what they all share.
  Parameters share_of(u32 cus) const {
    Parameters p = parameters_;
    const double share = static_cast<double>(cus) / p.cus;
    p.l2_bytes = static_cast<u32>(p.l2_bytes * share);
    p.mall_bytes = static_cast<u64>(static_cast<double>(p.mall_bytes) * share);
    // Channels are whole: together they have the rate of the share all the same.
    const u32 channels = std::max(static_cast<u32>(p.l2_channels * share + 0.5), 1u);
    const double slower = channels / (p.l2_channels * share);
    p.channel_clk *= slower;
    p.channel_again_clk *= slower;
    p.store_clk *= slower;
    p.atomic_clk *= slower;
    p.l2_channels = channels;
    p.memory_channels = std::max(static_cast<u32>(p.memory_channels * share + 0.5), 1u);
    p.mall_tb_per_s *= share;
    p.hbm_read_tb_per_s *= share;
    p.hbm_write_tb_per_s *= share;
    p.cus = cus;
    return p;
  }

  // A launch of more rounds than were replayed has so many more of the later ones: the first begins with empty caches.
  double extrapolated(ModelledLaunch& m) const {
    const EngineResult& r = m.replayed;
    const u64 places = u64{m.cus} * slots_, rounds = of_xcd_ / wide_;
    const u64 replayed = (m.recorded - std::min(last_of(m.cus), m.recorded)) / places;
    if (rounds <= replayed || replayed < 2) return r.clk;
    std::vector<double> lengths(replayed);
    for (u64 n = 0; n < replayed * places; ++n) {
      const double length = r.groups[n].end - r.groups[n].begin + parameters_.dispatch_clk;
      lengths[n / places] += length / static_cast<double>(places);
    }
    const auto later = lengths.begin() + 1;
    const double round = std::accumulate(later, lengths.end(), 0.0) / static_cast<double>(replayed - 1);
    // Of one later round nothing tells how much it repeats but the first.
    const auto [least, most] = std::minmax_element(replayed > 2 ? later : lengths.begin(), lengths.end());
    const double spread = (*most - *least) / 2 * static_cast<double>(rounds - replayed);
    // How much more each modelled CU would have to do. The last workgroups run faster, on CUs that are half empty: no
    // unit is faster than it can be for all that.
    const double more = static_cast<double>(of_xcd_) / parameters_.cus / (static_cast<double>(m.recorded) / m.cus);
    const double simds = m.cus * parameters_.simds;
    const double busiest = std::max({r.mfma_busy / simds, r.valu_busy / simds, r.lds_busy / m.cus,
                                     r.address_busy / m.cus, r.l2_busy, r.beyond_busy});
    const double clk = std::max(r.clk + static_cast<double>(rounds - replayed) * round, more * busiest);
    m.sample_error = spread / clk;
    return clk;
  }

  const Launch& launch_;
  const ModelSettings settings_;
  Parameters parameters_;
  const std::vector<IssueFacts> facts_;        // by Inst::index
  const bool meets_;                           // workgroups can wait for one another, or write one place
  bool takes_all_ = false;                     // the workgroups of all XCDs are recorded, so far
  u64 most_ = 0;                               // wave instructions for which they are
  Recorder recorder_;
  Occupancy occupancy_;
  u32 slots_ = 1, cus_ = 0, active_ = 1;       // places of a CU; CUs that are modelled; XCDs that have workgroups
  u64 of_xcd_ = 0, wide_ = 0, last_ = 0;       // workgroups: all; of a round on all CUs; of a last one that is not full
  u64 from_ = 0, until_ = 0;                   // the window that is recorded
  u64 window_ = 0, apart_ = 0, left_ = 0;      // windows after the first: size, distance, how many
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
