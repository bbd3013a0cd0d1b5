// SPDX-License-Identifier: MIT
// What checkers say: records kept in the process, read by sim.py as JSON.
#pragma once
#include <string>
#include <vector>

#include "run/wave.h"

namespace sim {

struct Report {
  std::string check;                           // a name of CHECKS in sim.py, or "launch"
  std::string message;                         // one sentence: what, where, which producer, which fix
  std::string kernel;
  u32 workgroup[3] = {0, 0, 0};
  int wave = 0;
  u64 lanes = 0;
  u64 pc = 0;                                  // relative to the kernel's entry
  std::string text;                            // disassembly of the offender
  std::string source, caller;                  // "file:line", when the code object has line tables; Code::caller_of
  u64 address = 0;
  bool refused = false;                        // a launch that did not start
  bool note = false;                           // its message says who demands it, though it works on the hardware
  u64 count = 1;                               // reports with the same check and instruction
  struct {                                     // the producer or the other access; no text = there is none
    u64 pc = 0;
    std::string text, source, caller;
  } other;
};

// Fills kernel, workgroup, wave, pc and text from the wave and instruction, and records it. Thread-safe.
void add_report(const Wave& wave, const Inst& inst, std::string check, u64 lanes, u64 address, std::string message,
                const Inst* other = nullptr, bool note = false);
void add_report(Report report);
std::vector<Report> take_reports();            // and forgets them
u64 report_count();                            // errors of this process, also those that have been taken
std::string newest_report();                   // the summary of the last error, "" when it has been taken
u64 print_reports();                           // to stderr, causes once; forgets them, says how many were no notes
// The same text for reports of one check, severity and kernel that have one cause: the line of the kernel's author,
// else the producer, else the instruction; and the memory that the message names, else its verb, as a line that loads
// and stores unknown memory has two causes.
std::string cause(const Report& report);
std::string summary(const Report& report);     // check, kernel, place, instruction; on the next line the message
// "pc 0x1a4c (load.h:7 in norm.hip:12): v_add_f32 v0, v1, v2"
std::string place_text(u64 pc, const std::string& source, const std::string& caller, const std::string& text);
std::string place_text(const Launch& launch, const Inst& inst);

}  // namespace sim
