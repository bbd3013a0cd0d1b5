// SPDX-License-Identifier: MIT
// The process's list of reports, and their text.
#include "report.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "load/loader.h"
#include "names.h"

namespace sim {
namespace {

constexpr size_t kMaxReports = 256;            // distinct ones; repeats of a known report are counted beyond it
constexpr size_t kMaxKinds = 6;                // a text names at most so many other instructions

struct Reports {
  std::mutex mutex;
  std::vector<Report> list;
  size_t newest = 0;                           // the error that was added or counted last
  std::atomic<u64> count{0};                   // errors, those included that have been taken
};

Reports& reports() {
  static Reports* instance = new Reports;      // never destroyed: used from modules' exit handlers
  return *instance;
}

// Those of one cause as the terminal shows them, like reports.py: the first, and which other instructions have it.
std::string text_of(const std::vector<Report>& group) {
  std::vector<std::pair<std::string, u64>> kinds;  // the others: mnemonic, how many
  u64 count = group.front().count;
  for (size_t k = 1; k < group.size(); ++k) {
    const std::string name = group[k].text.substr(0, group[k].text.find(' '));
    const auto known = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.first == name; });
    known == kinds.end() ? void(kinds.emplace_back(name, 1)) : void(++known->second);
    count += group[k].count;
  }
  std::stable_sort(kinds.begin(), kinds.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text = summary(group.front());
  if (count > 1) text += " (" + std::to_string(count) + " times)";
  if (kinds.empty()) return text;
  text += "\n    the same cause at " + std::to_string(group.size() - 1) + " more instruction";
  text += group.size() > 2 ? "s: " : ": ";
  for (size_t k = 0; k < std::min(kinds.size(), kMaxKinds); ++k) {
    text += (k ? ", " : "") + kinds[k].first;
    if (kinds[k].second > 1) text += " (" + std::to_string(kinds[k].second) + ")";
  }
  return text + (kinds.size() > kMaxKinds ? ", …" : "");
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
  std::map<std::tuple<std::string, bool, std::string, std::string>, size_t> places;  // each cause's, in `groups`
  std::vector<std::vector<Report>> groups;
  u64 errors = 0;
  for (Report& r : take_reports()) {
    const auto [known, is_new] = places.try_emplace({r.check, r.note, r.kernel, cause(r)}, groups.size());
    if (is_new) groups.emplace_back();
    errors += !r.note;
    groups[known->second].push_back(std::move(r));
  }
  for (const std::vector<Report>& group : groups) std::fprintf(stderr, "%s\n", text_of(group).c_str());
  return errors;
}

std::string cause(const Report& r) {
  std::string place = r.caller.empty() ? r.source : r.caller;
  if (place.empty()) place = r.other.text.empty() ? std::to_string(r.pc) : "by " + std::to_string(r.other.pc);
  const size_t name = r.message.find('`') + 1;     // 0: the message begins with its verb
  return place + "; " + r.message.substr(name, r.message.find(name ? '`' : ' ', name) - name);
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
