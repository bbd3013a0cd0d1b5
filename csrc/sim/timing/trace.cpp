// SPDX-License-Identifier: MIT
#include "timing/trace.h"

#include <algorithm>
#include <array>
#include <bit>
#include <unordered_map>
#include <utility>

#include "run/hostcall.h"
#include "timing/access_shape.h"
#include "timing/core.h"

namespace sim::timing {

constexpr u64 kPageBytes = 2 << 20;            // as the device's translation has them
constexpr u32 kMostPasses = 1024;              // of a loop that reads what nobody has written, that are kept

class WorkgroupRecorder final : public Observer {
 public:
  WorkgroupRecorder(Workgroup& group, Recorder& to)
      : group_(group), to_(to), place_(to.place_), polls_(group.waves.size()) {
    trace_.number = group.number();
    trace_.waves.resize(group.waves.size());
  }
  ~WorkgroupRecorder() override { to_.add(std::move(trace_)); }

  void before(Wave& w, const Inst& i) override {
    WaveTrace& trace = trace_.waves[static_cast<size_t>(w.id)];
    trace.code.push_back(i.index);
    payload_begin_ = trace.payload.size();
    read_.clear();
    written_.clear();
    lds_clk_ = lds_bytes_ = 0;
    num_lines_ = address_clk_ = asked_ = collisions_ = 0;
    touches_global_ = touches_lds_ = false;
  }

  void after(Wave& w, const Inst& i) override {
    WaveTrace& trace = trace_.waves[static_cast<size_t>(w.id)];
    if (w.ip != group_.launch->code->insts.data() + i.index + 1) trace.code.back() |= kTaken;
    if (touches_global_) {
      trace.code.back() |= kHasGlobal;
      trace.payload.push_back(std::bit_cast<u64>(GlobalHeader{
          static_cast<u16>(num_lines_), static_cast<u16>(address_clk_), static_cast<u16>(asked_ / 4),
          static_cast<u16>(collisions_)}));
      trace.payload.insert(trace.payload.end(), lines_, lines_ + num_lines_);
    }
    if (to_.meets_) meet(w, i, trace);
    if (touches_lds_) {
      trace.code.back() |= kHasLds;
      trace.payload.push_back(u64{lds_bytes_} << 32 | lds_clk_);
    }
  }

  u64 global(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch) override {
    touches_global_ = true;
    u64 placed[kLanes];
    place_(address, lanes, placed);
    const LineShape shape = line_shape(placed, lanes, touch.bytes, lines_);
    num_lines_ = shape.lines;
    address_clk_ = shape.address_clk;
    asked_ = static_cast<u32>(std::popcount(lanes)) * touch.bytes;
    if (touch.access == Access::atomic) collisions_ = collisions(address, lanes);
    if (to_.meets_ && to_.facts_[i.index].meets) note(w, address, lanes, touch);
    return lanes;
  }

  u64 lds(Wave&, const Inst&, const u32* offset, u64 lanes, const Touch& touch) override {
    touches_lds_ = true;
    lds_clk_ += lds_shape(offset, lanes, touch.bytes, touch.access == Access::load).clk;
    lds_bytes_ += static_cast<u32>(std::popcount(lanes)) * touch.bytes;
    return lanes;
  }

  // Scratch memory is global memory in which the lanes' dwords lie side by side.
  u64 scratch(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) override {
    constexpr u64 kScratch = u64{1} << 46;
    u64 address[kLanes];
    const u64 of_wave = (u64{group_.launch->private_bytes} * kLanes + 4095) / 4096 * 4096;
    const u64 first = kScratch + (u64{group_.number()} * 16 + static_cast<u64>(w.id)) * of_wave;
    for (u64 lane = 0; lane < kLanes; ++lane) {
      address[lane] = first + u64{offset[lane]} / 4 * 256 + lane * 4 + offset[lane] % 4;
    }
    global(w, i, address, lanes, {.access = touch.access, .bytes = 4});
    return lanes;
  }

  bool scalar(Wave&, const Inst&, u64 at, u32 bytes) override {
    touches_global_ = true;
    const u64 address = place_(at);
    num_lines_ = line_shape(&address, 1, bytes, lines_).lines;
    asked_ = bytes;
    return true;
  }

 private:
  // A load that was executed and that nothing followed but what can be left out: the wave polls when it comes again.
  struct Poll {
    u32 inst;
    u64 first_line;
    size_t code, payload;                      // its place in the trace
    u32 clk = 0;                               // of the loop, known when it has come again
    u32 passes = 0;                            // that saw nobody's write
    size_t last_code = 0, last_payload = 0;    // the place of the latest of them
  };

  u64 writer(const Wave& w) const { return trace_.number << 8 | static_cast<u64>(w.id); }

  // Notes the dwords of an access through which workgroups meet.
  void note(const Wave& w, const u64* address, u64 lanes, const Touch& touch) {
    for (u64 left = lanes; left; left &= left - 1) {
      const u64 from = address[std::countr_zero(left)] & ~u64{3};
      for (u64 at = from; at < from + std::max<u64>(touch.bytes, 4); at += 4) note_dword(w, at, touch);
    }
  }

  void note_dword(const Wave& w, u64 at, const Touch& touch) {
    if (touch.access == Access::load) {
      const Meetings::Place* const place = to_.meetings_.find(at);
      if (place && place->writer != writer(w)) read_.push_back(seen(place->number, place->writes));
      return;
    }
    const bool returns = touch.access == Access::atomic && touch.result != kNoRow;
    const Meetings::Place& place = to_.meetings_.write(at, writer(w), touch.access == Access::store);
    written_.push_back(seen(place.number, place.writes, returns));
  }

  // Adds what the instruction has read and written of others, and leaves out the passes of a loop that polls which this
  // one repeats: the replay makes its own.
  void meet(const Wave& w, const Inst& i, WaveTrace& trace) {
    std::vector<Poll>& polls = polls_[static_cast<size_t>(w.id)];
    const IssueFacts& f = to_.facts_[i.index];
    u32 clk = 0;
    if (f.has_effects) polls.clear();
    else if (f.meets && num_lines_) clk = poll(polls, i, trace);
    if (!read_.empty()) {
      trace.code.back() |= kWaits;
      trace.payload.push_back(u64{read_.size()} << 32 | clk);
      trace.payload.insert(trace.payload.end(), read_.begin(), read_.end());
    }
    if (!written_.empty()) {
      trace.code.back() |= kTells;
      trace.payload.push_back(written_.size());
      trace.payload.insert(trace.payload.end(), written_.begin(), written_.end());
    }
  }

  u32 poll(std::vector<Poll>& polls, const Inst& i, WaveTrace& trace) {
    const size_t at = trace.code.size() - 1;
    const auto before = std::find_if(polls.begin(), polls.end(), [&](const Poll& p) {
      return p.inst == i.index && p.first_line == lines_[0];
    });
    if (before == polls.end()) {
      polls.push_back({i.index, lines_[0], at, payload_begin_});
      return 0;
    }
    if (before->clk == 0) {
      for (size_t k = before->code; k < at; ++k) before->clk += to_.facts_[trace.code[k] & kIndexBits].wave_clk;
    }
    // Where nobody has written it may be data, and passes stay; but a wait may be long, and its first write late.
    if (read_.empty() && ++before->passes <= kMostPasses) {
      before->last_code = at, before->last_payload = payload_begin_;
      return 0;
    }
    const Poll found = *before;
    const size_t from = read_.empty() ? found.last_code : found.code;
    const size_t payload_from = read_.empty() ? found.last_payload : found.payload;
    const auto code = trace.code.begin();
    const auto payload = trace.payload.begin();
    trace.code.erase(code + static_cast<long>(from), code + static_cast<long>(at));
    trace.payload.erase(payload + static_cast<long>(payload_from), payload + static_cast<long>(payload_begin_));
    std::erase_if(polls, [&](const Poll& p) { return p.code > from; });
    return read_.empty() ? 0 : found.clk;
  }

  Workgroup& group_;
  Recorder& to_;
  Relocation place_;
  WorkgroupTrace trace_;
  std::vector<std::vector<Poll>> polls_;       // of each wave
  // The running instruction:
  bool touches_global_ = false, touches_lds_ = false;
  u32 lds_clk_ = 0, lds_bytes_ = 0, num_lines_ = 0, address_clk_ = 0, asked_ = 0, collisions_ = 0;
  u64 lines_[2 * kLanes];
  size_t payload_begin_ = 0;                   // in its wave's payload
  std::vector<u64> read_, written_;            // Seen of the places where workgroups meet
};

const Meetings::Place* Meetings::find(u64 address) const {
  const auto place = places_.find(address);
  return place == places_.end() ? nullptr : &place->second;
}

const Meetings::Place& Meetings::write(u64 address, u64 writer, bool is_store) {
  const auto [at, is_new] = places_.try_emplace(address);
  Place& place = at->second;
  if (is_new) {
    place.number = static_cast<u32>(ends_.size());
    ends_.emplace_back();
  } else if (is_store && place.writer == writer) {
    ends_[place.number].push_back(place.writes);
  }
  ++place.writes;
  place.writer = writer;
  return place;
}

std::vector<std::vector<u32>> Meetings::ends() const {
  std::vector<std::vector<u32>> all = ends_;
  for (const auto& [_, place] : places_) all[place.number].push_back(place.writes);
  return all;
}

Relocation::Relocation(const Launch& launch) {
  constexpr u64 kPacketBytes = 64;
  std::vector<std::array<u64, 2>> known(aiter_like_sim_ranges(nullptr, 0));
  if (!known.empty()) known.resize(std::min<u64>(aiter_like_sim_ranges(known[0].data(), known.size()), known.size()));
  known.push_back({reinterpret_cast<u64>(launch.kernarg), launch.kernel->kernarg_bytes});
  known.push_back({reinterpret_cast<u64>(launch.packet), kPacketBytes});
  if (launch.host) {
    const HostCalls::Place arguments = launch.host->arguments(), buffers = launch.host->buffers();
    known.push_back({arguments.base, arguments.bytes});
    known.push_back({buffers.base, buffers.bytes});
  }
  std::sort(known.begin(), known.end());
  constexpr u64 kFirst = u64{1} << 44;         // no address of the host
  u64 to = kFirst;
  for (const auto& [base, bytes] : known) {
    const u64 end = base + bytes;
    if (!pieces_.empty() && base < pieces_.back().end) continue;       // a part of the one before
    pieces_.push_back({base, end, to});
    to += (end - base + 2 * kPageBytes - 1) / kPageBytes * kPageBytes;
  }
}

u64 Relocation::operator()(u64 address) {
  if (last_ < pieces_.size() && address >= pieces_[last_].base && address < pieces_[last_].end) {
    return pieces_[last_].to + (address - pieces_[last_].base);
  }
  const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), address,
                                      [](u64 at, const Piece& piece) { return at < piece.base; });
  if (after == pieces_.begin() || address >= std::prev(after)->end) return address;
  last_ = static_cast<size_t>(std::prev(after) - pieces_.begin());
  return pieces_[last_].to + (address - pieces_[last_].base);
}

void Relocation::operator()(const u64* address, u64 lanes, u64* placed) {
  for (u64 left = lanes; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    placed[lane] = (*this)(address[lane]);
  }
}

namespace {

// Pages of 2 MiB get numbers in the order of their first use, so that the same launch has the same lines wherever the
// process has its memory.
void number_pages(std::vector<WorkgroupTrace>& traces) {
  constexpr u64 kLinesPerPage = kPageBytes / 128;
  std::unordered_map<u64, u64> pages;
  u64 last = ~u64{0}, number = 0;
  const auto renumber = [&](u64& word) {
    const u64 line = word >> 2, page = line / kLinesPerPage;
    if (page != last) number = pages.try_emplace(page, pages.size()).first->second;
    last = page;
    word = (number * kLinesPerPage + line % kLinesPerPage) << 2 | (word & 3);
  };
  for (WorkgroupTrace& group : traces) {
    for (WaveTrace& wave : group.waves) {
      u64* at = wave.payload.data();
      for (const u32 word : wave.code) {
        if (word & kHasGlobal) {
          const auto lines = std::bit_cast<GlobalHeader>(*at++).lines;
          for (u32 k = 0; k < lines; ++k) renumber(*at++);
        }
        if (word & kWaits) at += 1 + (*at >> 32);
        if (word & kTells) at += 1 + *at;
        if (word & kHasLds) ++at;
      }
    }
  }
}

}  // namespace

std::unique_ptr<Observer> Recorder::record(Workgroup& group) {
  return std::make_unique<WorkgroupRecorder>(group, *this);
}

std::vector<WorkgroupTrace> Recorder::take() {
  const std::lock_guard lock(mutex_);
  std::sort(done_.begin(), done_.end(), [](const auto& a, const auto& b) { return a.number < b.number; });
  number_pages(done_);
  return std::exchange(done_, {});
}

void Recorder::add(WorkgroupTrace trace) {
  const std::lock_guard lock(mutex_);
  ++groups_;
  for (WaveTrace& wave : trace.waves) {
    wave.code.shrink_to_fit();
    wave.payload.shrink_to_fit();
    instructions_ += wave.code.size();
    bytes_ += wave.code.size() * sizeof wave.code[0] + wave.payload.size() * sizeof wave.payload[0];
  }
  done_.push_back(std::move(trace));
}

void Recorder::leave_first_xcd(u32 xcds) {
  const std::lock_guard lock(mutex_);
  std::erase_if(done_, [&](const WorkgroupTrace& group) { return group.number % xcds != 0; });
}

}  // namespace sim::timing
