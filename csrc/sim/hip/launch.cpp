// SPDX-License-Identifier: MIT
// Launches, by host stub (<<<>>>) or by module function. A launch has finished when the call returns.
#include <algorithm>
#include <cstring>
#include <vector>

#include "hip/hip.h"
#include "settings.h"

namespace sim::hip {
namespace {

struct Configuration {
  Dim3 grid, block;
  size_t lds_bytes;
  void* stream;
};
thread_local std::vector<Configuration> configurations;

// Markers of the `extra` argument list.
const auto kParamBuffer = reinterpret_cast<void*>(1), kParamSize = reinterpret_cast<void*>(2),
           kParamEnd = reinterpret_cast<void*>(3);

Error launch_with_params(const Function& f, Dim3 grid, Dim3 block, u64 lds_bytes, void* const* params,
                         void* const* extra) {
  if (params) {
    const std::string kernarg = pack_arguments(*f.kernel, params);
    return launch(f, grid, block, lds_bytes, kernarg.data(), kernarg.size());
  }
  const void* buffer = nullptr;
  u64 bytes = 0;
  for (; extra && *extra != kParamEnd; extra += 2) {
    if (*extra == kParamBuffer) buffer = extra[1];
    else if (*extra == kParamSize) bytes = *static_cast<const size_t*>(extra[1]);
    else throw Fault("the list of extra launch parameters has an unknown marker");
  }
  return launch(f, grid, block, lds_bytes, buffer, bytes);
}

const Function& function(void* handle) {
  if (!handle) throw Fault("the function handle is null");
  return *static_cast<const Function*>(handle);
}

// Occupancy of one CU in workgroups: waves by registers, LDS, and the limits of 32 waves and 16 multi-wave workgroups.
int max_groups_per_cu(const Kernel& k, int block, u64 dynamic_lds) {
  const u32 waves = (static_cast<u32>(block) + kLanes - 1) / kLanes;
  const u32 registers = ((k.rsrc1 & 0x3f) + 1) * 8;
  const u32 waves_per_cu = 4 * std::min<u32>(8, 512 / registers);
  u64 groups = std::min<u64>(waves_per_cu / std::max<u32>(waves, 1), waves > 1 ? 16 : 32);
  const u64 lds = k.lds_bytes + dynamic_lds;
  if (lds) groups = std::min<u64>(groups, 65536 / lds);
  return static_cast<int>(groups);
}

}  // namespace

std::string pack_arguments(const Kernel& kernel, void* const* params) {
  std::string kernarg(kernel.kernarg_bytes, '\0');
  for (size_t i = 0; i < kernel.args.size(); ++i) {
    const Arg& arg = kernel.args[i];
    if (!params[i]) throw Fault("argument " + std::to_string(i) + " of kernel " + kernel.name + " is null");
    std::memcpy(kernarg.data() + arg.offset, params[i], arg.size);
  }
  return kernarg;
}

Error launch(const Function& f, Dim3 grid, Dim3 block, u64 dynamic_lds_bytes, const void* kernarg, u64 kernarg_bytes) {
  LaunchRequest r;
  r.code = f.code;
  r.kernel = f.kernel;
  const u32 grids[] = {grid.x, grid.y, grid.z}, blocks[] = {block.x, block.y, block.z};
  std::copy_n(grids, 3, r.grid);
  std::copy_n(blocks, 3, r.block);
  r.dynamic_lds_bytes = static_cast<u32>(std::min<u64>(dynamic_lds_bytes, ~0u));
  r.kernarg = static_cast<const u8*>(kernarg);
  r.kernarg_bytes = kernarg_bytes;
  run_kernel(r);
  return kSuccess;
}

HIP_API int __hipPushCallConfiguration(Dim3 grid, Dim3 block, size_t lds_bytes, void* stream) {
  configurations.push_back({grid, block, lds_bytes, stream});
  return kSuccess;
}

HIP_API int __hipPopCallConfiguration(Dim3* grid, Dim3* block, size_t* lds_bytes, void** stream) {
  if (configurations.empty()) return set_error(kMissingConfiguration);
  const Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *lds_bytes = c.lds_bytes;
  *stream = c.stream;
  return kSuccess;
}

HIP_API int hipLaunchKernel(const void* stub, Dim3 grid, Dim3 block, void** params, size_t lds_bytes, void*) {
  return guarded(kLaunchFailure, [&] {
    const Function f = registered_function(stub);
    const std::string kernarg = pack_arguments(*f.kernel, params);
    return launch(f, grid, block, lds_bytes, kernarg.data(), kernarg.size());
  });
}


HIP_API int hipModuleLaunchKernel(void* f, u32 grid_x, u32 grid_y, u32 grid_z, u32 block_x, u32 block_y, u32 block_z,
                                  u32 lds_bytes, void*, void** params, void** extra) {
  return guarded(kLaunchFailure, [&] {
    return launch_with_params(function(f), {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, lds_bytes, params,
                              extra);
  });
}

// The grid is in work-items here. Partial workgroups are refused: HIP code objects are compiled without them.
HIP_API int hipExtModuleLaunchKernel(void* f, u32 size_x, u32 size_y, u32 size_z, u32 block_x, u32 block_y,
                                     u32 block_z, size_t lds_bytes, void*, void** params, void** extra, void*, void*,
                                     u32) {
  return guarded(kLaunchFailure, [&] {
    if (!block_x || !block_y || !block_z || size_x % block_x || size_y % block_y || size_z % block_z) {
      throw Fault("the grid is not a multiple of the block");
    }
    return launch_with_params(function(f), {size_x / block_x, size_y / block_y, size_z / block_z},
                              {block_x, block_y, block_z}, lds_bytes, params, extra);
  });
}

HIP_API int hipOccupancyMaxActiveBlocksPerMultiprocessor(int* groups, const void* stub, int block, size_t lds_bytes) {
  return guarded(kInvalidDeviceFunction, [&] {
    *groups = max_groups_per_cu(*registered_function(stub).kernel, block, lds_bytes);
    return kSuccess;
  });
}

HIP_API int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* groups, void* f, int block, size_t lds_bytes) {
  return guarded(kInvalidHandle, [&] {
    *groups = max_groups_per_cu(*function(f).kernel, block, lds_bytes);
    return kSuccess;
  });
}

}  // namespace sim::hip
