// SPDX-License-Identifier: MIT
// What a clang-compiled library calls when it is loaded and unloaded: fat binary, kernels, variables.
#include <dlfcn.h>

#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "hip/hip.h"

namespace sim::hip {
namespace {

constexpr u32 kFatBinaryMagic = 0x48495046;      // "HIPF"

struct FatBinaryWrapper {
  u32 magic, version;
  const void* image;
  const void* unused;
};

struct Entry {
  Module* module;
  std::string name;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Entry> functions, variables;
  std::unordered_set<Module*> modules;
};

// Never destroyed: libraries unregister in their exit handlers.
Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

std::string library_of(const void* address) {
  Dl_info info;
  if (!dladdr(address, &info) || !info.dli_fname) return "registered code object";
  return info.dli_fname;
}

Entry find(const std::unordered_map<const void*, Entry>& table, const void* key, const char* what) {
  const std::lock_guard lock(registry().mutex);
  const auto it = table.find(key);
  if (it == table.end()) throw Fault(std::string("no ") + what + " is registered at this address");
  return it->second;
}

}  // namespace

const Code& Module::code(int device) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw Fault(failure_);
  std::unique_ptr<Code>& code = code_[device];
  if (!code) {
    try {
      code = load_code(image_, bytes_, name_);
    } catch (const Fault& fault) {
      failure_ = fault.what();
      throw;
    }
  }
  return *code;
}

Function registered_function(const void* stub, int device) {
  const Entry entry = find(registry().functions, stub, "kernel");
  const Code& code = entry.module->code(device);
  const Kernel* kernel = code.find(entry.name);
  if (!kernel) throw Fault(code.name + " has no kernel " + entry.name);
  return {&code, kernel};
}

Variable registered_variable(const void* host) {
  const Entry entry = find(registry().variables, host, "variable");
  for (const Variable& v : entry.module->code(current_device()).variables) {
    if (v.name == entry.name) return v;
  }
  throw Fault("the code object has no variable " + entry.name);
}

HIP_API void** __hipRegisterFatBinary(const void* data) {
  const auto* wrapper = static_cast<const FatBinaryWrapper*>(data);
  // A wrapper of another kind has no image that is known here; its kernels fail at launch with the loader's reason.
  const void* image = wrapper->magic == kFatBinaryMagic ? wrapper->image : data;
  auto* module = new Module(image, 0, library_of(data));
  const std::lock_guard lock(registry().mutex);
  registry().modules.insert(module);
  return reinterpret_cast<void**>(module);
}

HIP_API void __hipUnregisterFatBinary(void** handle) {
  auto* module = reinterpret_cast<Module*>(handle);
  const std::lock_guard lock(registry().mutex);
  if (registry().modules.erase(module) == 0) return;
  const auto of_module = [&](const auto& item) { return item.second.module == module; };
  std::erase_if(registry().functions, of_module);
  std::erase_if(registry().variables, of_module);
  delete module;
}

HIP_API void __hipRegisterFunction(void** handle, const void* stub, char*, const char* name, u32, void*, void*, Dim3*,
                                   Dim3*, int*) {
  const std::lock_guard lock(registry().mutex);
  registry().functions[stub] = {reinterpret_cast<Module*>(handle), name};
}

HIP_API void __hipRegisterVar(void** handle, void* host, char*, char* name, int, size_t, int, int) {
  const std::lock_guard lock(registry().mutex);
  registry().variables[host] = {reinterpret_cast<Module*>(handle), name};
}

HIP_API int hipGetSymbolAddress(void** address, const void* symbol) {
  return guarded(kInvalidSymbol, [&] {
    if (!address) return set_error(kInvalidValue, "the result's address is null");
    *address = reinterpret_cast<void*>(registered_variable(symbol).address);
    return kSuccess;
  });
}

HIP_API int hipGetSymbolSize(size_t* bytes, const void* symbol) {
  return guarded(kInvalidSymbol, [&] {
    if (!bytes) return set_error(kInvalidValue, "the result's address is null");
    *bytes = registered_variable(symbol).bytes;
    return kSuccess;
  });
}

}  // namespace sim::hip
