// SPDX-License-Identifier: MIT
// The process's list of reports, and their text.
#include "report.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <utility>

#include "load/loader.h"
#include "names.h"

namespace sim {
namespace {

constexpr size_t kMaxReports = 256;            // distinct ones; repeats of a known report are counted beyond it

struct Reports {
  std::mutex mutex;
  std::vector<Report> list;
  size_t newest = 0;                           // the error that was added or counted last
  std::atomic<u64> count{0};                   // of errors, also of those that have been taken
};

Reports& reports() {
  static Reports* instance = new Reports;      // never destroyed: used from modules' exit handlers
  return *instance;
}

}  // namespace

void add_report(Report report) {
  Reports& all = reports();
  const std::lock_guard lock(all.mutex);
  const auto same = [&](const Report& r) {
    return r.check == report.check && r.note == report.note && r.kernel == report.kernel && r.pc == report.pc &&
           r.source == report.source && r.caller == report.caller &&
           r.text == report.text;              // copies of a kernel have its name, not its file
  };
  const auto known = std::find_if(all.list.begin(), all.list.end(), same);
  if (!report.note) {
    all.newest = static_cast<size_t>(known - all.list.begin());
    ++all.count;
  }
  if (known != all.list.end()) known->count += report.count;
  else if (all.list.size() < kMaxReports) all.list.push_back(std::move(report));
}

void add_report(const Wave& wave, const Inst& inst, std::string check, u64 lanes, u64 address, std::string message,
                const Inst* other, bool note) {
  Report r;
  const Launch& launch = *wave.group->launch;
  r.check = std::move(check);
  r.note = note;
  r.message = std::move(message);
  r.kernel = launch.kernel->name;
  std::copy(std::begin(wave.group->id), std::end(wave.group->id), r.workgroup);
  r.wave = wave.id;
  r.lanes = lanes;
  r.pc = inst.pc - launch.kernel->entry;
  r.text = inst.text;
  r.source = launch.code->source_of(inst.pc);
  r.caller = launch.code->caller_of(inst.pc);
  if (other) {
    r.other = {other->pc - launch.kernel->entry, other->text, launch.code->source_of(other->pc),
               launch.code->caller_of(other->pc)};
  }
  r.address = address;
  add_report(std::move(r));
}

u64 report_count() { return reports().count; }

std::string newest_report() {
  Reports& all = reports();
  const std::lock_guard lock(all.mutex);
  return all.newest < all.list.size() ? summary(all.list[all.newest]) : "";
}

std::vector<Report> take_reports() {
  Reports& all = reports();
  const std::lock_guard lock(all.mutex);
  return std::exchange(all.list, {});
}

u64 print_reports() {
  const std::vector<Report> list = take_reports();
  u64 errors = 0;
  for (const Report& r : list) {
    std::string text = summary(r);
    if (r.count > 1) text += " (" + std::to_string(r.count) + " times)";
    std::fprintf(stderr, "%s\n", text.c_str());
    errors += !r.note;
  }
  return errors;
}

std::string place_text(u64 pc, const std::string& source, const std::string& caller, const std::string& text) {
  char place[32];
  std::snprintf(place, sizeof place, "pc 0x%llx", static_cast<unsigned long long>(pc));
  const std::string line = source + (source.empty() || caller.empty() ? "" : " in ") + caller;
  return place + (line.empty() ? "" : " (" + line + ")") + ": " + text;
}

std::string place_text(const Launch& launch, const Inst& i) {
  const Code& code = *launch.code;
  return place_text(i.pc - launch.kernel->entry, code.source_of(i.pc), code.caller_of(i.pc), i.text);
}

std::string summary(const Report& r) {
  if (r.check == "launch") return "[sim:launch] " + r.message;     // its message names the place
  char where[96];
  std::snprintf(where, sizeof where, " wg(%u,%u,%u) wave %d lanes 0x%llx ", r.workgroup[0], r.workgroup[1],
                r.workgroup[2], r.wave, static_cast<unsigned long long>(r.lanes));
  return "[sim:" + r.check + (r.note ? ", note] " : "] ") + short_name(r.kernel) + where +
         place_text(r.pc, r.source, r.caller, r.text) + "\n    " + r.message;
}

}  // namespace sim
