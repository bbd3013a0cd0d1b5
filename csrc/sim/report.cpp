// SPDX-License-Identifier: MIT
// The process's list of reports, and its settings.
#include "report.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "loader.h"
#include "settings.h"

namespace sim {
namespace {

constexpr size_t kMaxReports = 256;            // distinct ones; further repeats of a known one are still counted

struct Reports {
  std::mutex mutex;
  std::vector<Report> list;
};

Reports& reports() {
  static Reports* instance = new Reports;      // never destroyed: used from modules' exit handlers
  return *instance;
}

}  // namespace

Settings& settings() {
  static Settings instance;
  return instance;
}

void add_report(Report report) {
  Reports& all = reports();
  const std::lock_guard lock(all.mutex);
  const auto same = [&](const Report& r) {
    return r.check == report.check && r.kernel == report.kernel && r.pc == report.pc;
  };
  const auto known = std::find_if(all.list.begin(), all.list.end(), same);
  if (known != all.list.end()) known->count += report.count;
  else if (all.list.size() < kMaxReports) all.list.push_back(std::move(report));
}

void add_report(const Wave& wave, const Inst& inst, std::string check, u64 lanes, u64 address, std::string message) {
  Report r;
  const Launch& launch = *wave.group->launch;
  r.check = std::move(check);
  r.message = std::move(message);
  r.kernel = launch.kernel->name;
  std::copy(std::begin(wave.group->id), std::end(wave.group->id), r.workgroup);
  r.wave = wave.id;
  r.lanes = lanes;
  r.pc = inst.pc - launch.kernel->entry;
  r.text = inst.text;
  r.address = address;
  add_report(std::move(r));
}

std::vector<Report> take_reports() {
  Reports& all = reports();
  const std::lock_guard lock(all.mutex);
  return std::exchange(all.list, {});
}

}  // namespace sim
