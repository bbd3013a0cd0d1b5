// SPDX-License-Identifier: MIT
// The control point of a debugger: an observer that stops a launch before an instruction, after an access or a report,
// and asks whoever debugs, on the thread that runs the launch. Everything runs on that thread, in the simulator's own
// order, so that a session repeats. What stops, and how it goes on, is decided outside; here are the comparisons that
// each instruction needs.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "debug/core.h"

namespace sim::debug {

inline constexpr u64 kAnyGroup = ~u64{0};
inline constexpr u32 kAnyWave = ~u32{0};

enum class Reason : u32 { launch, breakpoint, watch, step, report, failure, interrupt, ended, finished };

// A comparison of a register with a number: in one lane, or in any lane that is active.
struct Term {
  enum class Source : u32 { vector, scalar, workgroup, wave, lane };
  enum class Type : u32 { u32, i32, f32, u64, i64, f64, u16, i16, f16, bf16, u8, i8 };
  enum class Compare : u32 { eq, ne, lt, le, gt, ge };
  Source source = Source::vector;
  u32 first = 0;                               // a row of the wave's file, or a place of the scalar file
  Type type = Type::u32;
  Compare compare = Compare::eq;
  i32 lane = -1;                               // -1: any that is active
  double number = 0;                           // constant of a comparison of floats
  i64 integer = 0;                             // … or of integers; u64 as its bits
};

struct Breakpoint {
  u64 number = 0;
  u64 group = kAnyGroup;                       // its place in the grid
  u32 wave = kAnyWave;
  i32 lane = -1;                               // must be active; -1: none is asked for
  std::vector<Term> terms;                     // all in one lane
};

enum class Space : u32 { global, lds, scratch, vector, scalar };

// A place that is watched.
struct Watch {
  static constexpr u32 kReads = 1, kWrites = 2;
  u64 number = 0;
  Space space = Space::global;
  u32 kinds = kWrites;                         // registers: writes that change it
  u64 begin = 0, bytes = 4;                    // an address, an offset; or a register row, or scalar, and 4
  u64 group = kAnyGroup;                       // for LDS, scratch and registers
  u32 wave = kAnyWave;                         // for scratch and registers
  u64 lanes = kAllLanes;                       // for vector registers and scratch
};

enum class Go : u32 { on, instruction, line, over, out, quit };

// How one wave goes on until it stops again.
struct Step {
  Go go = Go::on;
  u64 group = 0;
  u32 wave = 0;
  u32 line = 0;                                // the line that is left
  u64 most_depth = 0;                          // calls, or inlined functions, deeper than this are passed over
};

// The last stop.
struct Stop {
  Reason reason = Reason::launch;
  u64 number = 0;                              // the breakpoint's or watch's
  u64 group = 0;
  u32 wave = 0;
  u32 index = 0;                               // the instruction
  bool executed = false;                       // it has run: w.ip is the next one
  u64 lanes = 0;                               // the access's, or those that the condition holds in
  bool is_write = false;
  u64 address = 0;                             // the access's first lane's
  std::string text;                            // text of a failure or report
  std::vector<u8> before, after;               // contents of a watched place
};

class WatchedGroup;

// The settings of the debugger for the running launch. One thread uses them.
struct Control {
  using OnStop = void (*)(u32 reason);
  OnStop on_stop = nullptr;                    // null: nobody debugs
  bool stops_at_reports = false, stops_at_failures = true, stops_at_signals = false;
  const Launch* launch = nullptr;
  std::vector<u8> flags;                       // per instruction: kBreak, kCall, kReturn
  std::vector<u32> lines;                      // … the line of the statement that begins there, 0 = none
  std::vector<u32> depths;                     // … how many inlined functions it is in; empty: not known
  std::vector<std::pair<u32, Breakpoint>> breakpoints;       // an instruction, and what stops there
  std::vector<Watch> watches;
  Step step;
  Stop stop;
  std::vector<WatchedGroup*> groups;           // that run or wait to go on, oldest first
  u64 executed = 0;                            // wave instructions of the launch so far
  u64 seen_reports = 0;
};

inline constexpr u8 kBreak = 1, kCall = 2, kReturn = 4;

Control& control();

// One workgroup under the debugger.
class WatchedGroup final : public Observer {
 public:
  explicit WatchedGroup(Workgroup& group);
  ~WatchedGroup() override;

  void before(Wave& w, const Inst& i) override;
  void after(Wave& w, const Inst& i) override;
  void failed(Wave& w, const char* why) override;
  u64 global(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch) override;
  u64 lds(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) override;
  u64 scratch(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) override;
  bool scalar(Wave& w, const Inst& i, u64 address, u32 bytes) override;

  Workgroup& group() { return group_; }
  // The instructions that called the functions that the wave is in, the outermost first.
  const std::vector<u32>& calls(u32 wave) const { return calls_[wave]; }
  u64 executed(u32 wave) const { return executed_[wave]; }

 private:
  // An access to a watched place, between the call that tells of it and the instruction's end.
  struct Hit {
    Watch watch;                               // a copy: whoever debugs may remove it
    u64 lanes, address;
    bool is_write;
    std::vector<u8> before;
  };
  template <class Place>
  void meet(Wave& w, Space space, const Place* at, u64 lanes, const Touch& touch);
  void note_registers(Wave& w);
  void stop(Wave& w, const Inst& i, Reason reason, bool executed);
  bool steps_here(const Wave& w, const Inst& i) const;
  void meet_breakpoints(Wave& w, const Inst& i);
  void follow_calls(const Wave& w, const Inst& i);
  std::vector<u8> contents(const Wave& w, const Watch& watch) const;

  Workgroup& group_;
  std::vector<std::vector<u32>> calls_;        // per wave
  std::vector<u64> executed_;                  // … instructions
  std::vector<Hit> hits_;
};

// Lanes in which all terms hold, among those of EXEC or the one that a term names; 0: the condition does not hold.
u64 lanes_where(const Wave& w, const std::vector<Term>& terms);

// Copies bytes of this process, and says how many: an address that is not mapped is no fault.
u64 read_memory(u64 address, u8* out, u64 bytes);
u64 write_memory(u64 address, const u8* data, u64 bytes);

void interrupt();                              // the next instruction stops
void attach(Control::OnStop on_stop);          // null: detaches

}  // namespace sim::debug
