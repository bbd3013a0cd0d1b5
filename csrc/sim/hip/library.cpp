// SPDX-License-Identifier: MIT
// Libraries of kernels (a module under another name), what may be asked of a kernel, and launches of older programs.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "hip/module.h"

extern "C" {
int hipFuncGetAttribute(int* value, int which, void* function);
int hipFuncSetAttribute(const void* function, int which, int value);
int hipLaunchCooperativeKernel(const void* stub, sim::hip::Dim3 grid, sim::hip::Dim3 block, void** params,
                               sim::u32 lds_bytes, void* stream);
int hipLaunchKernel(const void* stub, sim::hip::Dim3 grid, sim::hip::Dim3 block, void** params, size_t lds_bytes,
                    void* stream);
int hipModuleGetFunction(void** function, void* module, const char* name);
int hipModuleGetGlobal(void** address, size_t* bytes, void* module, const char* name);
int hipModuleLaunchCooperativeKernel(void* f, sim::u32 grid_x, sim::u32 grid_y, sim::u32 grid_z, sim::u32 block_x,
                                     sim::u32 block_y, sim::u32 block_z, sim::u32 lds_bytes, void* stream,
                                     void** params);
int hipModuleLaunchKernel(void* f, sim::u32 grid_x, sim::u32 grid_y, sim::u32 grid_z, sim::u32 block_x,
                          sim::u32 block_y, sim::u32 block_z, sim::u32 lds_bytes, void* stream, void** params,
                          void** extra);
int hipModuleLoad(void** module, const char* path);
int hipModuleLoadData(void** module, const void* image);
int hipModuleUnload(void* module);
}

namespace sim::hip {
namespace {

constexpr u64 kLdsGranule = 512;

struct Libraries {
  std::mutex mutex;
  std::vector<void*> live;
  std::map<std::pair<const void*, int>, Function> by_stub;       // handles of kernels that a program is linked with
};

Libraries& libraries() {
  static Libraries* instance = new Libraries;
  return *instance;
}

Error keep(void** out, int error) {
  if (error) return static_cast<Error>(error);
  const std::lock_guard lock(libraries().mutex);
  libraries().live.push_back(*out);
  return kSuccess;
}

struct Launch {                                  // hipLaunchParams
  void* stub;
  Dim3 grid, block;
  void** params;
  size_t lds_bytes;
  void* stream;
};

struct FunctionLaunch {                          // hipFunctionLaunchParams
  void* function;
  u32 grid[3], block[3], lds_bytes;
  void* stream;
  void** params;
};

// hipConfigureCall and hipSetupArgument, for hipLaunchByPtr.
struct Configured {
  Dim3 grid, block;
  size_t lds_bytes;
  void* stream;
  std::string arguments;
};
thread_local std::vector<Configured> configured;

}  // namespace

HIP_API int hipModuleLoadFatBinary(void** module, const void* image) { return hipModuleLoadData(module, image); }

HIP_API int hipModuleGetFunctionCount(u32* count, void* module) {
  return guarded(kInvalidHandle, [&] {
    if (!count) return set_error(kInvalidValue, "the result's address is null");
    *count = static_cast<u32>(kernel_names(module).size());
    return kSuccess;
  });
}

HIP_API int hipLibraryLoadData(void** library, const void* image, void*, void**, u32, void*, void**, u32) {
  return keep(library, hipModuleLoadData(library, image));
}
HIP_API int hipLibraryLoadFromFile(void** library, const char* path, void*, void**, u32, void*, void**, u32) {
  return keep(library, hipModuleLoad(library, path));
}
HIP_API int hipLibraryUnload(void* library) {
  {
    const std::lock_guard lock(libraries().mutex);
    if (!std::erase(libraries().live, library)) return set_error(kInvalidHandle, "this is not a live library");
  }
  return hipModuleUnload(library);
}
HIP_API int hipLibraryGetKernel(void** kernel, void* library, const char* name) {
  return hipModuleGetFunction(kernel, library, name);
}
HIP_API int hipLibraryGetKernelCount(u32* count, void* library) { return hipModuleGetFunctionCount(count, library); }
HIP_API int hipLibraryGetGlobal(void** address, size_t* bytes, void* library, const char* name) {
  return hipModuleGetGlobal(address, bytes, library, name);
}
HIP_API int hipLibraryEnumerateKernels(void** kernels, u32 count, void* library) {
  return guarded(kInvalidHandle, [&] {
    if (!kernels) return set_error(kInvalidValue, "there is no room for the kernels");
    const std::vector<std::string> names = kernel_names(library);
    for (u32 i = 0; i < std::min<size_t>(count, names.size()); ++i) {
      const int error = hipModuleGetFunction(&kernels[i], library, names[i].c_str());
      if (error) return static_cast<Error>(error);
    }
    return kSuccess;
  });
}

HIP_API int hipKernelGetLibrary(void** library, void* kernel) {
  return guarded(kInvalidHandle, [&] {
    if (!library) return set_error(kInvalidValue, "the result's address is null");
    const Function& f = function_of(kernel);
    const std::lock_guard lock(libraries().mutex);
    for (void* one : libraries().live) {
      if (&module_code(one) != f.code) continue;
      *library = one;
      return kSuccess;
    }
    throw Fault("kernel " + f.kernel->name + " is of no library");
  });
}
HIP_API int hipKernelGetName(const char** name, void* kernel) {
  return guarded(kInvalidHandle, [&] {
    if (!name) return set_error(kInvalidValue, "the result's address is null");
    *name = function_of(kernel).kernel->name.c_str();
    return kSuccess;
  });
}
// One handle for both.
HIP_API int hipKernelGetFunction(void** function, void* kernel) {
  return guarded(kInvalidHandle, [&] {
    if (!function) return set_error(kInvalidValue, "the result's address is null");
    function_of(kernel);
    *function = kernel;
    return kSuccess;
  });
}
HIP_API int hipKernelGetParamInfo(void* kernel, size_t index, size_t* offset, size_t* bytes) {
  return guarded(kInvalidHandle, [&] {
    const Kernel& k = *function_of(kernel).kernel;
    if (index >= k.args.size()) return set_error(kInvalidValue, k.name + " has no such argument");
    if (offset) *offset = k.args[index].offset;
    if (bytes) *bytes = k.args[index].size;
    return kSuccess;
  });
}
HIP_API int hipKernelGetAttribute(int* value, int which, void* kernel, int device) {
  if (const Error error = check_device(device)) return error;
  return hipFuncGetAttribute(value, which, kernel);
}
HIP_API int hipKernelSetAttribute(int which, int value, void* kernel, int device) {
  if (const Error error = check_device(device)) return error;
  return hipFuncSetAttribute(kernel, which, value);
}

HIP_API int hipGetFuncBySymbol(void** function, const void* stub) {
  return guarded(kInvalidDeviceFunction, [&] {
    if (!function) return set_error(kInvalidValue, "the result's address is null");
    const Function found = registered_function(stub);
    const std::lock_guard lock(libraries().mutex);
    Function& kept = libraries().by_stub[{stub, current_device()}];
    kept = found;
    live<Function>().add(&kept);
    *function = &kept;
    return kSuccess;
  });
}

HIP_API const char* hipKernelNameRef(void* function) {
  return live<Function>().has(function) ? static_cast<Function*>(function)->kernel->name.c_str() : nullptr;
}
HIP_API const char* hipKernelNameRefByPtr(const void* stub, void*) {
  void* function = nullptr;
  return hipGetFuncBySymbol(&function, stub) ? nullptr : hipKernelNameRef(function);
}

// The most dynamic LDS with which a compute unit still holds so many workgroups.
HIP_API int hipOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* stub, int groups, int block) {
  return guarded(kInvalidDeviceFunction, [&] {
    if (!bytes || groups <= 0 || block <= 0) return set_error(kInvalidValue, "no workgroup, or no result's address");
    const Kernel& k = *registered_function(stub).kernel;
    const u64 share = kLdsPerCu / static_cast<u64>(groups) / kLdsGranule * kLdsGranule;
    *bytes = share > k.lds_bytes ? share - k.lds_bytes : 0;
    if (max_groups_per_cu(k, static_cast<u64>(block), *bytes) < groups) {
      return set_error(kInvalidValue, "a compute unit does not hold so many workgroups of " + k.name);
    }
    return kSuccess;
  });
}

HIP_API int hipLaunchCooperativeKernelMultiDevice(Launch* launches, int count, u32) {
  if (count <= 0 || !launches) return set_error(kInvalidValue, "there are no launches");
  for (int i = 0; i < count; ++i) {
    const Launch& l = launches[i];
    const int error = hipLaunchCooperativeKernel(l.stub, l.grid, l.block, l.params, static_cast<u32>(l.lds_bytes),
                                                 l.stream);
    if (error) return error;
  }
  return kSuccess;
}
HIP_API int hipExtLaunchMultiKernelMultiDevice(Launch* launches, int count, u32) {
  if (count <= 0 || !launches) return set_error(kInvalidValue, "there are no launches");
  for (int i = 0; i < count; ++i) {
    const Launch& l = launches[i];
    if (const int error = hipLaunchKernel(l.stub, l.grid, l.block, l.params, l.lds_bytes, l.stream)) return error;
  }
  return kSuccess;
}
HIP_API int hipModuleLaunchCooperativeKernelMultiDevice(FunctionLaunch* launches, u32 count, u32) {
  if (count == 0 || !launches) return set_error(kInvalidValue, "there are no launches");
  for (u32 i = 0; i < count; ++i) {
    const FunctionLaunch& l = launches[i];
    const int error = hipModuleLaunchCooperativeKernel(l.function, l.grid[0], l.grid[1], l.grid[2], l.block[0],
                                                       l.block[1], l.block[2], l.lds_bytes, l.stream, l.params);
    if (error) return error;
  }
  return kSuccess;
}

HIP_API int hipConfigureCall(Dim3 grid, Dim3 block, size_t lds_bytes, void* stream) {
  configured.push_back({grid, block, lds_bytes, stream, {}});
  return kSuccess;
}
HIP_API int hipSetupArgument(const void* argument, size_t bytes, size_t offset) {
  if (configured.empty()) return set_error(kMissingConfiguration);
  if (!argument) return set_error(kInvalidValue, "the argument is null");
  std::string& all = configured.back().arguments;
  if (offset > SIZE_MAX - bytes) return set_error(kInvalidValue, "the argument's place is beyond all memory");
  all.resize(std::max(all.size(), offset + bytes));
  std::memcpy(all.data() + offset, argument, bytes);
  return kSuccess;
}
HIP_API int hipLaunchByPtr(const void* stub) {
  if (configured.empty()) return set_error(kMissingConfiguration);
  Configured c = std::move(configured.back());
  configured.pop_back();
  void* function = nullptr;
  if (const int error = hipGetFuncBySymbol(&function, stub)) return error;
  size_t bytes = c.arguments.size();
  void* extra[] = {reinterpret_cast<void*>(1), c.arguments.data(), reinterpret_cast<void*>(2), &bytes,
                   reinterpret_cast<void*>(3)};
  return hipModuleLaunchKernel(function, c.grid.x, c.grid.y, c.grid.z, c.block.x, c.block.y, c.block.z,
                               static_cast<u32>(c.lds_bytes), c.stream, nullptr, extra);
}

}  // namespace sim::hip
