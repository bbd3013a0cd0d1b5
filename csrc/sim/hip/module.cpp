// SPDX-License-Identifier: MIT
// Modules loaded by the program: from a file or from memory, functions and variables by name, function attributes.
#include <algorithm>
#include <deque>
#include <fstream>
#include <iterator>

#include "hip/defer.h"

namespace sim::hip {
namespace {

// A module of hipModuleLoad*. It owns its code; handles of functions stay valid until it is unloaded.
struct Loaded {
  std::string file;                              // contents, when it came from a file
  std::unique_ptr<Code> code;
  std::mutex mutex;
  std::deque<Function> functions;
  ~Loaded() {
    for (const Function& f : functions) live<Function>().drop(&f);
  }
};

Loaded& loaded(void* handle) { return live_one<Loaded>(handle, "module"); }

void* keep(std::unique_ptr<Loaded> loaded) {
  live<Loaded>().add(loaded.get());
  return loaded.release();
}

struct FuncAttributes {                          // hipFuncAttributes
  int binary_version, cache_mode;
  size_t const_bytes, local_bytes;
  int max_dynamic_shared_bytes, max_threads, num_regs, carveout, ptx_version;
  size_t shared_bytes;
};

// Numbers of hipFunction_attribute.
int attribute(const Kernel& k, int which) {
  switch (which) {
    case 0: return static_cast<int>(k.max_block);
    case 1: return static_cast<int>(k.lds_bytes);
    case 2: return 0;                            // constant memory
    case 3: return static_cast<int>(k.private_bytes);
    case 4: return static_cast<int>(k.vgprs);
    case 5: case 6: return 94;                   // HIP reports this for gfx94x
    case 7: return 0;                            // global loads are cached as ever
    case 8: return static_cast<int>(kLdsPerCu - std::min(kLdsPerCu, k.lds_bytes));
    case 9: return 0;
    default: throw Fault("function attribute " + std::to_string(which) + " is not known");
  }
}

}  // namespace

const Function& function_of(const void* handle) { return live_one<Function>(handle, "function"); }

Function kernel_of(const void* f) { return live<Function>().has(f) ? function_of(f) : registered_function(f); }

HIP_API int hipModuleLoadData(void** module, const void* image) {
  return guarded(kInvalidImage, [&] {
    if (!module || !image) return set_error(kInvalidValue, "the module or its image is null");
    auto loaded = std::make_unique<Loaded>();
    loaded->code = load_code(image, 0, "module");
    bind_managed(*loaded->code);
    *module = keep(std::move(loaded));
    return kSuccess;
  });
}

HIP_API int hipModuleLoadDataEx(void** module, const void* image, u32, void*, void**) {
  return hipModuleLoadData(module, image);
}

HIP_API int hipModuleLoad(void** module, const char* path) {
  return guarded(kInvalidImage, [&] {
    if (!module || !path) return set_error(kInvalidValue, "the module or its path is null");
    std::ifstream stream(path, std::ios::binary);
    if (!stream) return set_error(kFileNotFound, std::string("cannot read ") + path);
    auto loaded = std::make_unique<Loaded>();
    loaded->file.assign(std::istreambuf_iterator<char>(stream), {});
    if (loaded->file.empty()) throw Fault(std::string(path) + " is empty");
    loaded->code = load_code(loaded->file.data(), loaded->file.size(), path);
    bind_managed(*loaded->code);
    *module = keep(std::move(loaded));
    return kSuccess;
  });
}

HIP_API int hipModuleUnload(void* module) {
  const Error error = deferring() ? finish_all() : kSuccess;
  if (!live<Loaded>().drop(module)) return set_error(kInvalidHandle, "this is not a live module");
  delete static_cast<Loaded*>(module);
  return error;
}

HIP_API int hipModuleGetFunction(void** f, void* module, const char* name) {
  return guarded(kInvalidHandle, [&] {
    if (!f || !name) return set_error(kInvalidValue, "the kernel's name or the result's address is null");
    Loaded& m = loaded(module);
    const Kernel* kernel = m.code->find(name);
    if (!kernel) return set_error(kNotFound, m.code->name + " has no kernel " + name);
    const std::lock_guard lock(m.mutex);
    auto it = std::find_if(m.functions.begin(), m.functions.end(),
                           [&](const Function& x) { return x.kernel == kernel; });
    if (it == m.functions.end()) {
      it = m.functions.insert(m.functions.end(), {m.code.get(), kernel});
      live<Function>().add(&*it);
    }
    *f = &*it;
    return kSuccess;
  });
}

HIP_API int hipModuleGetGlobal(void** address, size_t* bytes, void* module, const char* name) {
  return guarded(kInvalidHandle, [&] {
    if (!name) return set_error(kInvalidValue, "the variable's name is null");
    Loaded& m = loaded(module);
    for (const Variable& v : m.code->variables) {
      if (v.name != name) continue;
      if (address) *address = reinterpret_cast<void*>(v.address);
      if (bytes) *bytes = v.bytes;
      return kSuccess;
    }
    return set_error(kNotFound, m.code->name + " has no variable " + name);
  });
}

HIP_API int hipFuncGetAttribute(int* value, int which, void* f) {
  return guarded(kInvalidValue, [&] {
    if (!value) return set_error(kInvalidValue, "the result's address is null");
    *value = attribute(*kernel_of(f).kernel, which);
    return kSuccess;
  });
}

HIP_API int hipFuncGetAttributes(FuncAttributes* out, const void* stub) {
  return guarded(kInvalidDeviceFunction, [&] {
    if (!out) return set_error(kInvalidValue, "the result's address is null");
    const Kernel& k = *kernel_of(stub).kernel;
    *out = {94, 0, 0, k.private_bytes, attribute(k, 8), attribute(k, 0), attribute(k, 4), 0, 94, k.lds_bytes};
    return kSuccess;
  });
}

// Names for tracers. A stub is the host function of a kernel that the program is linked with.
HIP_API const char* hipKernelNameRef(void* function) {
  return live<Function>().has(function) ? function_of(function).kernel->name.c_str() : nullptr;
}
HIP_API const char* hipKernelNameRefByPtr(const void* stub, void*) {
  const char* name = nullptr;
  guarded(kInvalidDeviceFunction, [&] {
    name = kernel_of(stub).kernel->name.c_str();
    return kSuccess;
  });
  return name;
}

// There is one division of LDS and cache.
HIP_API int hipFuncSetCacheConfig(const void*, int) { return kSuccess; }

// Both attributes that can be set (dynamic LDS limit, LDS carve-out) change nothing on this hardware.
HIP_API int hipFuncSetAttribute(const void*, int which, int) {
  return which == 8 || which == 9 ? kSuccess : set_error(kInvalidValue, "this function attribute cannot be set");
}

}  // namespace sim::hip
