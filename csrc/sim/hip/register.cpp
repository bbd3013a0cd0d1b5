// SPDX-License-Identifier: MIT
// What a clang-compiled library calls when it is loaded and unloaded: fat binary, kernels, variables.
#include <dlfcn.h>

#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "hip/hip.h"

extern "C" {
int hipMallocManaged(void** out, size_t bytes, unsigned flags);
int hipFree(void* pointer);
}

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

// Memory of a __managed__ variable, the same for the host and all devices; the program reaches it by a pointer.
struct Managed {
  Module* module;
  Variable variable;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Entry> functions, variables;
  std::unordered_map<const void*, Managed> managed;          // key: the memory
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

std::map<std::string, u64> managed_of(const Module* module) {
  const std::lock_guard lock(registry().mutex);
  std::map<std::string, u64> found;
  for (const auto& [memory, managed] : registry().managed) {
    if (managed.module == module) found[managed.variable.name] = managed.variable.address;
  }
  return found;
}

}  // namespace

void bind_managed(const Code& code, const std::map<std::string, u64>& at) {
  constexpr std::string_view kSuffix = ".managed";
  for (const Variable& memory : code.variables) {
    if (!memory.name.ends_with(kSuffix)) continue;
    const std::string name = memory.name.substr(0, memory.name.size() - kSuffix.size());
    const auto given = at.find(name);
    for (const Variable& pointer : code.variables) {
      if (pointer.name != name || pointer.bytes != sizeof(u64)) continue;
      *reinterpret_cast<u64*>(pointer.address) = given == at.end() ? memory.address : given->second;
    }
  }
}

const Code& Module::code(int device) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw Fault(failure_);
  std::unique_ptr<Code>& code = code_[device];
  if (!code) {
    try {
      code = load_code(image_, bytes_, name_);
      bind_managed(*code, managed_of(this));
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
  {
    const std::lock_guard lock(registry().mutex);
    const auto managed = registry().managed.find(host);
    if (managed != registry().managed.end()) return managed->second.variable;
  }
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
  const auto of_module_of_managed = [&](const auto& item) {
    if (item.second.module != module) return false;
    hipFree(const_cast<void*>(item.first));
    return true;
  };
  std::erase_if(registry().functions, of_module);
  std::erase_if(registry().variables, of_module);
  std::erase_if(registry().managed, of_module_of_managed);
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

// The memory is there before the program's main: the host's code reads `*pointer` without a call.
HIP_API void __hipRegisterManagedVar(void** handle, void** pointer, const void* initial, const char* name, size_t bytes,
                                     u32) {
  void* memory = nullptr;
  if (hipMallocManaged(&memory, bytes, 1) != kSuccess) return;
  std::memcpy(memory, initial, bytes);
  *pointer = memory;
  const std::lock_guard lock(registry().mutex);
  registry().managed[memory] = {reinterpret_cast<Module*>(handle),
                                {name, reinterpret_cast<u64>(memory), static_cast<u64>(bytes)}};
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
