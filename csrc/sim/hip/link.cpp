// SPDX-License-Identifier: MIT
// The runtime's names for the linker of bitcode, which hipRTC has too.
#include "../rtc/compiler.h"
#include "../rtc/linker.h"
#include "hip/handles.h"
#include "hip/hip.h"

namespace sim::hip {
namespace {

rtc::Linker& linker(void* handle) { return live_one<rtc::Linker>(handle, "state of a link"); }

// The data are read when the handle is known to be one.
Error add(void* handle, int kind, const char* data, size_t bytes, const char* what) {
  return guarded(kInvalidHandle, [&] {
    rtc::Linker& link = linker(handle);
    switch (link.add(kind, std::string(data, bytes))) {
      case rtc::Linker::Added::kYes: return kSuccess;
      case rtc::Linker::Added::kUnknownKind:
        return set_error(kInvalidValue, "kind " + std::to_string(kind) + " of what is to be linked: LLVM's bitcode "
                         "(100), bundles (101) and archives (102) of it are known");
      default: return set_error(kInvalidImage, std::string(what) + ": this is no LLVM bitcode for gfx942");
    }
  });
}

}  // namespace

HIP_API int hipLinkCreate(u32 count, const int* options, void** values, void** out) {
  if (!out) return set_error(kInvalidValue, "the result's address is null");
  auto link = std::make_unique<rtc::Linker>();
  if (!link->configure(count, options, values)) {
    return set_error(kInvalidValue, "options of a link: a value is missing, or the level of optimisation is none");
  }
  live<rtc::Linker>().add(link.get());
  *out = link.release();
  return kSuccess;
}

HIP_API int hipLinkAddData(void* handle, int kind, void* image, size_t bytes, const char* name, u32, void*, void**) {
  if (!image || bytes == 0) return set_error(kInvalidImage, "there is nothing to link");
  return add(handle, kind, static_cast<const char*>(image), bytes, name ? name : "data");
}

HIP_API int hipLinkAddFile(void* handle, int kind, const char* path, u32, void*, void**) {
  if (!path) return set_error(kInvalidValue, "the file's path is null");
  const std::string data = rtc::read(path);
  if (data.empty()) return set_error(kFileNotFound, std::string("cannot read ") + path);
  return add(handle, kind, data.data(), data.size(), path);
}

// The code object stays the link's until that is destroyed.
HIP_API int hipLinkComplete(void* handle, void** out, size_t* bytes) {
  return guarded(kInvalidHandle, [&] {
    if (!out || !bytes) return set_error(kInvalidValue, "the result's address is null");
    rtc::Linker& link = linker(handle);
    if (link.is_empty()) return set_error(kInvalidValue, "there is nothing to link");
    std::string log;
    if (!link.complete(log)) return set_error(kInvalidImage, "it does not link: " + log);
    *out = link.code().data();
    *bytes = link.code().size();
    return kSuccess;
  });
}

HIP_API int hipLinkDestroy(void* handle) {
  if (!live<rtc::Linker>().drop(handle)) return set_error(kInvalidHandle, "this is not a live state of a link");
  delete static_cast<rtc::Linker*>(handle);
  return kSuccess;
}

}  // namespace sim::hip
