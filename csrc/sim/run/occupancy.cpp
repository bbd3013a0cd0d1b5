// SPDX-License-Identifier: MIT
// CDNA3 ISA guide, 3.6 and 4: per SIMD 512 vector registers of each lane, allocated by 8, and 8 waves; 4 SIMDs per CU,
// and 64 KiB of LDS, allocated by 512 bytes. 800 scalar registers per SIMD, allocated by 16, and 16 workgroups of
// several waves per CU: LLVM's AMDGPUBaseInfo.
#include "run/occupancy.h"

#include <algorithm>
#include <utility>

namespace sim {

Occupancy occupancy(const Kernel& kernel, u64 block, u64 lds_bytes) {
  constexpr u32 kVectors = 512, kScalars = 800, kWavesPerSimd = 8, kSimds = 4, kLds = 65536;
  constexpr u32 kMaxGroups = 16, kMaxSingleWaveGroups = 32, kUnlimited = ~0u;
  Occupancy o{};
  o.waves_per_group = static_cast<u32>(std::max<u64>((block + kLanes - 1) / kLanes, 1));
  const auto groups = [&](u32 waves_per_simd) { return kSimds * waves_per_simd / o.waves_per_group; };
  o.by_registers = groups(kVectors / kernel.rows());
  o.by_scalars = groups(kScalars / kernel.scalars());
  o.by_waves = groups(kWavesPerSimd);
  o.by_groups = o.waves_per_group > 1 ? kMaxGroups : kMaxSingleWaveGroups;
  const u64 lds = (lds_bytes + 511) / 512 * 512;
  o.by_lds = lds ? static_cast<u32>(kLds / lds) : kUnlimited;
  // The first of equal limits is named: an author can do something about it.
  const std::pair<u32, const char*> limits[] = {{o.by_registers, "vector registers"}, {o.by_lds, "LDS"},
                                                {o.by_scalars, "scalar registers"}, {o.by_waves, "waves"},
                                                {o.by_groups, "workgroups"}};
  const auto least = std::min_element(std::begin(limits), std::end(limits),
                                      [](const auto& a, const auto& b) { return a.first < b.first; });
  o.groups = least->first;
  o.limiter = o.groups == o.by_waves ? "waves" : least->second;
  return o;
}

}  // namespace sim
