// SPDX-License-Identifier: MIT
// Shadow state of the checkers, the observer that they are together, and what the files of this folder call in one
// another. Nothing outside includes it.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "checks/checks.h"
#include "checks/waitstate.h"
#include "load/loader.h"
#include "report.h"
#include "run/memory.h"
#include "run/wave.h"

namespace sim {

// ---- wait: operations in flight -------------------------------------------------------------------------------------

// One memory instruction that its wave has not waited for yet.
struct Pending {
  const Inst* inst = nullptr;
  u64 issued = 0;                              // w.checks->executed at issue
  u32 first_record = 0, end_record = 0;        // its LDS records (lds_race)
  u8 num_dsts = 0;                             // inst->writes() with data still to arrive
  bool on_vm = false, on_lgkm = false;         // counters that must retire it
};

// A hardware counter: operations in issue order, as slots of WaitState::ops.
struct Counter {
  u8 slot[128];
  u32 head = 0, tail = 0;
  u32 size() const { return tail - head; }
  void push(u8 s) { slot[tail++ % 128] = s; }
  u8 pop() { return slot[head++ % 128]; }
  u8 at(u32 index) const { return slot[(head + index) % 128]; }
};

struct WaitState {
  Pending ops[128];
  u32 next = 0;                                // the search for a free one starts here; under 128 are in flight
  Counter vm, lgkm;
  u32 num_pending = 0;                         // operations with registers in flight
  u64 vector[kNumRows / 64] = {}, scalar[kNumScalars / 64] = {};   // registers with data in flight
  u8 vector_owner[kNumRows], scalar_owner[kNumScalars];            // slot of the last operation that will write it
};

// ---- waitstate: instructions issued lately --------------------------------------------------------------------------

struct Issued {
  const Inst* inst;
  u64 term;                                    // its part of the hash
};

struct WaitStates {
  Issued recent[32] = {};                      // more than the largest distance
  u64 next = 0;
  u64 hash = 0;                                // hash of the instructions that rows can compare with one another
  u64 hash_from = 0;                           // the hash says all when `next` is not below
};

// ---- lds_race: who touched each dword of LDS ------------------------------------------------------------------------

struct LdsRecord {                             // one executed LDS access
  const Inst* inst;
  u64 lanes;
  u8 wave;
  bool atomic, dma, read;
  bool retired = false;                        // its wave has waited for it
  bool published = false;                      // … and a barrier has opened since: every wave may rely on it
};

// A shadow word: stamp of the last access, its wave, bytes of the dword it touched.
inline constexpr u32 kMaskBits = 15, kMany = 1 << 4, kWaveShift = 5, kWaveBits = 15 << kWaveShift, kDma = 1 << 9;
inline constexpr u32 kStampShift = 10, kMaxStamp = (1u << 22) - 2;

struct LdsShadow {
  std::vector<u32> writer, reader;             // per dword; 0 = never
  std::vector<LdsRecord> records;              // record k has the stamp base + k
  u32 base = 1;                                // stamps persist over workgroups so that the shadow need not be cleared
  u32 safe = 1;                                // every write with a smaller stamp is published
  u32 epoch = 1;                               // first stamp after the last barrier
  u32 next() const { return base + static_cast<u32>(records.size()); }
  LdsRecord& record(u32 stamp) { return records[stamp - base]; }
  bool known(u32 stamp) const { return stamp >= base && stamp - base < records.size(); }
};

// ---- uninit: which bits were never written --------------------------------------------------------------------------

struct Origin {                                // an undefined value's; inst null = a register never written
  const Inst* inst = nullptr;
  u64 address = 0;                             // the undefined byte's
};

struct Undefined {
  u64 lanes[kNumRows];                         // lanes with an undefined bit
  u64 partial[kNumRows];                       // … and those among them with some defined bits: see `bits`
  u32 (*bits)[kLanes] = nullptr;
  Origin origin[kNumRows];
  u32 scalar[kNumScalars];
  Origin scalar_origin[kNumScalars];
  bool scc = false;
  Origin scc_origin;
};

// ---- sanity: barriers -----------------------------------------------------------------------------------------------

struct BarrierSplit {                          // the first barrier that not all waves came to, if there is one
  const Inst *inst = nullptr, *other = nullptr;      // a second one, at which others wait
  int wave = 0;                                // one that waits at `inst`
  std::string text;                            // who waits where
};

// ---- the three levels -----------------------------------------------------------------------------------------------

struct WaveChecks {
  u64 executed = 0;
  u8 flat_spaces = 0;                          // the running FLAT instruction touched: 1 memory, 2 LDS
  bool used_lds = false;
  u32 barriers = 0;                            // that have opened for it
  u32 first_record = 0;                        // LDS stamps before the running instruction
  u32 range_cache[32] = {};                    // last hit per instruction (index mod 32)
  WaitState wait;
  WaitStates wait_states;
  Undefined undefined;
  u8 dma_undefined[kLanes] = {};                // running LDS-DMA: undefined bytes of each lane's dword
  std::vector<u8> scratch;                     // per byte as WorkgroupChecks::lds
};

struct RaceGroup;                              // global_race.cpp
struct RaceShadow;

struct LaunchChecks;

struct WorkgroupChecks {
  LaunchChecks* launch = nullptr;
  std::vector<std::unique_ptr<WaveChecks>> waves;
  LdsShadow lds_shadow;
  std::vector<u8> lds;                         // per byte of LDS: 1 = written
  std::vector<u32> bits;                       // Undefined::bits of all waves
  BarrierSplit split;
  std::shared_ptr<RaceGroup> race;             // when global races are checked
};

struct LaunchChecks final : LaunchObserver {
  const Launch* launch = nullptr;
  u32 checks = 0;
  std::vector<Range> ranges;                   // sorted by base
  const IssueTable* issue = nullptr;           // when wait states are checked
  std::vector<u64> reach;                      // largest end of ranges[0..i]: bounds the search backwards
  std::shared_ptr<RaceShadow> race;            // when global races are checked

  ~LaunchChecks() override;
  std::unique_ptr<Observer> begin(Workgroup& group) override;
  bool needs_one_thread() const override { return on(kCheckGlobalRace); }   // it judges in the order of execution
  bool on(Check check) const { return checks & check; }
  // True the first time for this check and instruction; later times are only counted.
  bool first(const char* check, const Inst& i, bool note = false);
  // Whether what somebody demands, though it works on the hardware, is no more than a note.
  bool notes() const { return !on(kCheckStrict); }

 private:
  std::mutex mutex_;
  std::map<std::tuple<std::string, u64, bool>, u64> seen_;         // check, pc, whether a note
};

inline LaunchChecks& launch_checks(const Wave& w) { return *w.group->checks->launch; }

// All checkers of one workgroup: each call goes to those that are on.
class Checkers final : public Observer {
 public:
  Checkers(Workgroup& group, LaunchChecks& launch);      // allocates the shadow of LDS and of each wave
  ~Checkers() override;

  void before(Wave& w, const Inst& i) override;
  void after(Wave& w, const Inst& i) override;
  void barrier() override;

  u64 global(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch) override;      // bounds.cpp
  u64 lds(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) override;
  u64 scratch(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) override;
  bool scalar(Wave& w, const Inst& i, u64 address, u32 bytes) override;
  void disputed_range(Wave& w, const Inst& i, u64 lanes) override;
  void unrounded_address(Wave& w, const Inst& i, u64 address) override;                                // sanity.cpp
  void out_of_range(Wave& w, const Touch& touch, u64 lanes) override;                                  // uninit.cpp
  void shuffle(Wave& w, u16 result, u16 data, const i8* from, u64 exec) override;

 private:
  Workgroup& group_;
  LaunchChecks& launch_;
  std::unique_ptr<WorkgroupChecks> state_;
};

// ---- reports --------------------------------------------------------------------------------------------------------

std::string place_of(const Wave& w, const Inst& i);              // "pc 0x1a20: ds_read_b128 v[4:7], v12 offset:512"
std::string name_of(const Wave& w, const RegRange& r, u32 index = 0);      // "v4", "a1", "s3", "vcc_lo"
std::string hex(u64 x);
int first_lane(u64 lanes);
struct Clash {
  u64 lanes = 0;                               // the two; 0: there is none
  std::string text;
  bool rounded = false;                        // the values are fp32 numbers, a few roundings apart
};
Clash lanes_clash(const Wave& w, const u64* address, u64 lanes, const Touch& touch);                    // sanity.cpp

// The bytes that a lane of a store or an LDS-DMA writes, as dwords.
struct Stored { u32 dword[4]; };
inline Stored stored_by(const Wave& w, const Touch& touch, int lane) {
  if (touch.values) return {{touch.values[lane]}};
  Stored s{};
  for (int k = 0; k < (touch.bytes + 3) / 4; ++k) s.dword[k] = w.v[touch.data + k][lane];
  if (touch.half == Half::high) s.dword[0] >>= 16;
  return s;
}

// ---- wait.cpp -------------------------------------------------------------------------------------------------------

void wait_begin(WaveChecks& c);
void wait_before(Wave& w, const Inst& i);
void wait_after(Wave& w, const Inst& i);
std::string wait_for_record(const Wave& w, u32 stamp);           // the fix that retires an LDS record of this wave

// ---- waitstate.cpp --------------------------------------------------------------------------------------------------

void waitstate_begin(WaveChecks& c);
void waitstate_before(Wave& w, const Inst& i);

// ---- lds_race.cpp ---------------------------------------------------------------------------------------------------

void lds_begin(Workgroup& g);
void lds_access(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch);
void lds_barrier(Workgroup& g);

// ---- sanity.cpp -----------------------------------------------------------------------------------------------------

void sanity_begin(Workgroup& g);
void sanity_before(Wave& w, const Inst& i);
void sanity_barrier(Workgroup& g);
void sanity_end(Workgroup& g);
u64 sanity_memory(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch);
void sanity_lds(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch);

// ---- global_race.cpp ------------------------------------------------------------------------------------------------

void race_begin(LaunchChecks& c);
void race_begin(Workgroup& g);
void race_before(Wave& w, const Inst& i);                        // write-backs and invalidates of caches
void race_barrier(Workgroup& g);
void race_access(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch);

// ---- uninit.cpp, uninit_rules.cpp -----------------------------------------------------------------------------------

void uninit_begin(Wave& w);
void uninit_before(Wave& w, const Inst& i);
// Undefined bits of what a scalar or vector instruction writes, when a source has some.
void uninit_propagate(Wave& w, const Inst& i, u64 exec, const Origin& origin);
u32 undefined_bits(const Undefined& u, u16 row, int lane);
void set_undefined(Undefined& u, u16 row, int lane, u32 bits, const Origin& origin);
void uninit_report(Wave& w, const Inst& i, u64 lanes, const std::string& what, const Origin& origin);
// Tells which bytes of one access are defined. written[lane] points to the flags of the lane's bytes (1 = written);
// null says that all are defined. `escapes` says that other workgroups or the host can see the bytes: it is then an
// error to store undefined ones.
struct Shadow { u8* written[kLanes]; };
void uninit_memory(Wave& w, const Inst& i, u64 exec, u64 lanes, const Touch& touch, const Shadow* bytes, bool escapes);

// ---- bounds.cpp -----------------------------------------------------------------------------------------------------

void bounds_begin(LaunchChecks& c);
std::string describe(const LaunchChecks& c, u64 address);        // "`x` + 128", or "no known allocation"

}  // namespace sim
