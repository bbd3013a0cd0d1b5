// SPDX-License-Identifier: MIT
// Launches by host stub (<<<>>>) or by module function. A launch has finished when the call returns, unless its stream
// is capturing; in both cases the arguments have been copied by then.
#include <algorithm>
#include <cstring>
#include <vector>

#include "hip/defer.h"
#include "names.h"
#include "report.h"
#include "settings.h"

namespace sim::hip {
namespace {

struct Configuration {
  Dim3 grid, block;
  size_t lds_bytes;
  void* stream;
};
thread_local std::vector<Configuration> configurations;

struct Launch {
  Dim3 grid, block;
  u64 lds_bytes;
  void* stream;
  bool cooperative = false;
};

// Markers of the `extra` argument list.
const auto kParamBuffer = reinterpret_cast<void*>(1), kParamSize = reinterpret_cast<void*>(2),
           kParamEnd = reinterpret_cast<void*>(3);

// kernelParams (one pointer per argument) → the argument segment.
std::string pack(const Kernel& kernel, void* const* params) {
  std::string kernarg(kernel.kernarg_bytes, '\0');
  for (size_t i = 0; i < kernel.args.size(); ++i) {
    const Arg& arg = kernel.args[i];
    if (!params[i]) throw Fault("argument " + std::to_string(i) + " of kernel " + short_name(kernel.name) + " is null");
    std::memcpy(kernarg.data() + arg.offset, params[i], arg.size);
  }
  return kernarg;
}

// The argument segment as the caller built it. It may be longer than the kernel's: production launchers do that.
std::string from_buffer(void* const* extra) {
  const char* buffer = nullptr;
  size_t bytes = 0;
  for (; extra && *extra != kParamEnd; extra += 2) {
    if (*extra == kParamBuffer) buffer = static_cast<const char*>(extra[1]);
    else if (*extra == kParamSize) bytes = *static_cast<const size_t*>(extra[1]);
    else throw Fault("the list of extra launch parameters has an unknown marker");
  }
  return buffer ? std::string(buffer, bytes) : std::string();
}

LaunchRequest request_of(const Function& f, const Launch& l, const std::string& kernarg) {
  LaunchRequest r;
  r.code = f.code;
  r.kernel = f.kernel;
  const u32 grids[] = {l.grid.x, l.grid.y, l.grid.z}, blocks[] = {l.block.x, l.block.y, l.block.z};
  std::copy_n(grids, 3, r.grid);
  std::copy_n(blocks, 3, r.block);
  r.dynamic_lds_bytes = l.lds_bytes;
  r.stack_bytes = stack_limit();
  r.kernarg = reinterpret_cast<const u8*>(kernarg.data());
  r.kernarg_bytes = kernarg.size();
  r.cooperative = l.cooperative;
  return r;
}

// Prints or drops the reports of a failed launch where nobody takes them: no later launch shall show them.
void settle_reports() {
  if (!settings().prints_reports) return;
  if (settings().checks) print_reports();
  else take_reports();
}

void check(const LaunchRequest& request) {
  try {
    check_launch(request);
  } catch (const Refusal&) {
    settle_reports();
    throw;
  }
}

Error run(const Function& f, const Launch& l, const std::string& kernarg) {
  const auto lose = [](const std::string& why) {
    if (settings().prints_reports) lose_device(why);
  };
  try {
    run_kernel(request_of(f, l, kernarg));
  } catch (const Refusal&) {
    settle_reports();
    throw;
  } catch (const std::exception& failure) {
    settle_reports();
    lose(failure.what());
    throw;
  }
  if (!settings().prints_reports || print_reports() == 0) return kSuccess;
  const std::string why = "kernel " + short_name(f.kernel->name) + ": the checkers reported something (see stderr)";
  lose(why);
  throw Fault(why);
}

// Every workgroup of a cooperative launch has its place from the start.
bool fits(const Kernel& k, const Launch& l) {
  const u64 groups = u64{l.grid.x} * l.grid.y * l.grid.z, block = u64{l.block.x} * l.block.y * l.block.z;
  return groups <= static_cast<u64>(max_groups_per_cu(k, block, l.lds_bytes)) * kNumCus;
}

Work work_of(const Function& f, const Launch& l, std::string kernarg) {
  return [f, l, kernarg = std::move(kernarg)] {
    return guarded(kLaunchFailure, [&] { return run(f, l, kernarg); });
  };
}

Error check_arguments(const Kernel& kernel, void* const* params, void* const* extra) {
  if (params || extra || kernel.args.empty()) return kSuccess;
  return set_error(kInvalidValue, "kernel " + short_name(kernel.name) + " takes arguments, and is given none");
}

Error launch(const Function& f, const Launch& l, void* const* params, void* const* extra = nullptr) {
  if (const Error error = check_arguments(*f.kernel, params, extra)) return error;
  std::string kernarg = params ? pack(*f.kernel, params) : from_buffer(extra);
  if (deferring() || l.cooperative) check(request_of(f, l, kernarg));
  if (l.cooperative && !fits(*f.kernel, l)) {
    return set_error(kCooperativeTooLarge,
                     "the grid of kernel " + short_name(f.kernel->name) + " does not fit the device at once");
  }
  return submit(l.stream, NodeKind::kernel, work_of(f, l, std::move(kernarg)));
}

Error launch_stub(const void* stub, const Launch& l, void* const* params) {
  return guarded(kLaunchFailure, [&] {
    if (live<Function>().has(stub)) return launch(function_of(stub), l, params);
    return launch(registered_function(stub, device_of(l.stream)), l, params);
  });
}

Error launch_function(void* f, const Launch& l, void* const* params, void* const* extra = nullptr) {
  if (!live<Function>().has(f)) return set_error(kInvalidHandle, "this is not a live function");
  return guarded(kLaunchFailure, [&] { return launch(function_of(f), l, params, extra); });
}

Error groups_of(Dim3 size, Dim3 block, Dim3& grid) {
  if (!block.x || !block.y || !block.z || size.x % block.x || size.y % block.y || size.z % block.z) {
    return set_error(kInvalidConfiguration, "the grid is not a multiple of the block");
  }
  grid = {size.x / block.x, size.y / block.y, size.z / block.z};
  return kSuccess;
}

struct Attribute {                               // hipLaunchAttribute
  int id, padding;
  union {
    int cooperative;
    int cluster[3];
    char bytes[64];
  };
};
static_assert(sizeof(Attribute) == 72);

// The attributes that mean something here; the others are hints for scheduling and memory.
Error apply(const Attribute* attributes, u32 count, Launch& l) {
  for (u32 i = 0; i < count; ++i) {
    const Attribute& a = attributes[i];
    if (a.id == 2) l.cooperative = a.cooperative != 0;
    if (a.id == 4 && (a.cluster[0] > 1 || a.cluster[1] > 1 || a.cluster[2] > 1)) {
      return set_error(kNotSupported, "gfx942 has no clusters of workgroups");
    }
  }
  return kSuccess;
}

struct FunctionConfig {                          // HIP_LAUNCH_CONFIG
  Dim3 grid, block;
  u32 lds_bytes;
  void* stream;
  const Attribute* attributes;
  u32 num_attributes;
};

struct StubConfig {                              // hipLaunchConfig_t
  Dim3 grid, block;
  size_t lds_bytes;
  void* stream;
  const Attribute* attributes;
  u32 num_attributes;
};

template <class Config>
Error launch_of(const Config& c, Launch& l) {
  l = {c.grid, c.block, c.lds_bytes, c.stream};
  return apply(c.attributes, c.num_attributes, l);
}

// A launch between two events, either of which may be null.
template <class Body>
Error between(void* start, void* stop, void* stream, Body&& body) {
  if (const Error error = start ? record_event(start, stream) : kSuccess) return error;
  if (const Error error = body()) return error;
  return stop ? record_event(stop, stream) : kSuccess;
}

}  // namespace

HIP_API int __hipPushCallConfiguration(Dim3 grid, Dim3 block, size_t lds_bytes, void* stream) {
  configurations.push_back({grid, block, lds_bytes, stream});
  return kSuccess;
}

HIP_API int __hipPopCallConfiguration(Dim3* grid, Dim3* block, size_t* lds_bytes, void** stream) {
  if (configurations.empty()) return set_error(kMissingConfiguration);
  if (!grid || !block || !lds_bytes || !stream) return set_error(kInvalidValue, "a result's address is null");
  const Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *lds_bytes = c.lds_bytes;
  *stream = c.stream;
  return kSuccess;
}

HIP_API int hipLaunchKernel(const void* stub, Dim3 grid, Dim3 block, void** params, size_t lds_bytes, void* stream) {
  return launch_stub(stub, {grid, block, lds_bytes, stream}, params);
}

HIP_API int hipLaunchCooperativeKernel(const void* stub, Dim3 grid, Dim3 block, void** params, u32 lds_bytes,
                                       void* stream) {
  return launch_stub(stub, {grid, block, lds_bytes, stream, true}, params);
}

HIP_API int hipExtLaunchKernel(const void* stub, Dim3 grid, Dim3 block, void** params, size_t lds_bytes, void* stream,
                               void* start, void* stop, int) {
  return between(start, stop, stream, [&] { return launch_stub(stub, {grid, block, lds_bytes, stream}, params); });
}

HIP_API int hipLaunchKernelExC(const StubConfig* config, const void* stub, void** params) {
  if (!config) return set_error(kInvalidValue, "the launch configuration is null");
  Launch l;
  if (const Error error = launch_of(*config, l)) return error;
  return launch_stub(stub, l, params);
}

HIP_API int hipModuleLaunchKernel(void* f, u32 grid_x, u32 grid_y, u32 grid_z, u32 block_x, u32 block_y, u32 block_z,
                                  u32 lds_bytes, void* stream, void** params, void** extra) {
  return launch_function(f, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, lds_bytes, stream}, params, extra);
}

HIP_API int hipModuleLaunchCooperativeKernel(void* f, u32 grid_x, u32 grid_y, u32 grid_z, u32 block_x, u32 block_y,
                                             u32 block_z, u32 lds_bytes, void* stream, void** params) {
  return launch_function(f, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, lds_bytes, stream, true}, params);
}

// The grid is in work-items here. Partial workgroups are refused: HIP code objects are compiled without them.
HIP_API int hipExtModuleLaunchKernel(void* f, u32 size_x, u32 size_y, u32 size_z, u32 block_x, u32 block_y,
                                     u32 block_z, size_t lds_bytes, void* stream, void** params, void** extra,
                                     void* start, void* stop, u32) {
  const Dim3 block{block_x, block_y, block_z};
  Dim3 grid;
  if (const Error error = groups_of({size_x, size_y, size_z}, block, grid)) return error;
  return between(start, stop, stream,
                 [&] { return launch_function(f, {grid, block, lds_bytes, stream}, params, extra); });
}

HIP_API int hipDrvLaunchKernelEx(const FunctionConfig* config, void* f, void** params, void** extra) {
  if (!config) return set_error(kInvalidValue, "the launch configuration is null");
  Launch l;
  if (const Error error = launch_of(*config, l)) return error;
  return launch_function(f, l, params, extra);
}

}  // namespace sim::hip
