// SPDX-License-Identifier: MIT
// Finds the calls of inlined functions. It keeps the outermost call of each chain, which is a line of the launched
// function, whatever library its instructions come from.
#pragma once
#include <map>
#include <vector>

#include "load/debug_line.h"

namespace sim {

// Those that .debug_info tells of, sorted by begin; `files_of`: offset of a line table → the place of its first file.
// This never fails: a unit that is damaged, or of an unknown version, gives the calls before the damage.
std::vector<CallSite> call_sites(const DebugSections& sections, const std::map<u64, u32>& files_of, u64 text_begin);

}  // namespace sim
