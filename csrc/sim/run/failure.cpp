// SPDX-License-Identifier: MIT
// The texts that name kernel, workgroup, wave and instruction.
#include "run/failure.h"

#include <algorithm>
#include <cstdio>

#include "load/loader.h"
#include "names.h"

namespace sim {
namespace {

// ip is one past the instruction that runs. A jump to a bad place leaves it there too.
const Inst* running_inst(const Wave& w) {
  const Inst* first = w.group->launch->code->insts.data();
  return w.ip > first ? w.ip - 1 : first;
}

std::string name_of(const Workgroup& g) {
  char text[48];
  std::snprintf(text, sizeof text, "wg(%u,%u,%u)", g.id[0], g.id[1], g.id[2]);
  return text;
}

}  // namespace

Report refusal(const Kernel& kernel, const std::string& why) {
  Report r;
  r.check = "launch";
  r.kernel = kernel.name;
  r.message = "kernel " + short_name(r.kernel) + ": " + why;
  return r;
}

Report failure(const Slot& slot, const std::string& why) {
  const Workgroup& g = slot.group;
  const Launch& launch = *g.launch;
  Report r;
  r.check = "launch";
  r.kernel = launch.kernel->name;
  std::copy(std::begin(g.id), std::end(g.id), r.workgroup);
  r.message = "kernel " + short_name(r.kernel) + " " + name_of(g);
  if (const Wave* current = slot.current) {
    const Inst* inst = running_inst(*current);
    r.wave = current->id;
    r.lanes = current->exec();
    r.pc = inst->pc - launch.kernel->entry;
    r.text = inst->text;
    r.source = launch.code->source_of(inst->pc);
    r.caller = launch.code->caller_of(inst->pc);
    r.message += " wave " + std::to_string(r.wave) + " " + place_text(launch, *inst);
  }
  r.message += ": " + why;
  return r;
}

void WaitingWaves::add(const Workgroup& group) {
  for (const Wave& w : group.waves) {
    if (w.stop == Stop::ended) continue;
    const bool at_barrier = w.stop == Stop::barrier;
    waves_[{running_inst(w)->pc, at_barrier}].push_back(name_of(group) + " wave " + std::to_string(w.id));
  }
}

Report WaitingWaves::report(const Launch& launch) const {
  constexpr size_t kNamed = 8;
  Report r = refusal(*launch.kernel, "deadlock, or an endless loop: no wave can go on. Waiting:");
  for (const auto& [place, waves] : waves_) {
    const Inst* inst = launch.code->at(place.first);
    if (r.text.empty()) {
      r.pc = inst->pc - launch.kernel->entry;
      r.text = inst->text;
      r.source = launch.code->source_of(inst->pc);
      r.caller = launch.code->caller_of(inst->pc);
    }
    r.message += std::string("\n  ") + (place.second ? "at the barrier" : "in the loop") + " at " +
                 place_text(launch, *inst) + ": ";
    for (size_t i = 0; i < std::min(waves.size(), kNamed); ++i) r.message += (i ? ", " : "") + waves[i];
    if (waves.size() > kNamed) r.message += " and " + std::to_string(waves.size() - kNamed) + " more";
  }
  return r;
}

}  // namespace sim
