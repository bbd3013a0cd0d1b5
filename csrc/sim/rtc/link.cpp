// SPDX-License-Identifier: MIT
// hipRTC's names for the linker.
#include <cstddef>
#include <cstdio>

#include "../hip/handles.h"
#include "compiler.h"
#include "linker.h"
#include "rtc.h"

namespace sim::rtc {
namespace {

Linker* find(void* handle) { return hip::live<Linker>().has(handle) ? static_cast<Linker*>(handle) : nullptr; }

int add(void* handle, int kind, const std::string& data) {
  Linker* link = find(handle);
  if (!link) return kInvalidInput;
  switch (link->add(kind, data)) {
    case Linker::Added::kYes: return kSuccess;
    case Linker::Added::kUnknownKind: return kInvalidInput;
    default: return kCreationFailure;
  }
}

}  // namespace

RTC_API int hiprtcLinkCreate(unsigned count, const int* options, void** values, void** out) {
  if (!out || (count && (!options || !values))) return kInvalidInput;
  auto* link = new Linker;
  if (!link->configure(count, options, values)) {
    delete link;
    return kInvalidOption;
  }
  hip::live<Linker>().add(link);
  *out = link;
  return kSuccess;
}

RTC_API int hiprtcLinkAddData(void* handle, int kind, const void* image, std::size_t bytes, const char*, unsigned,
                              void*, void**) {
  if (!image || bytes == 0) return kInvalidInput;
  return add(handle, kind, std::string(static_cast<const char*>(image), bytes));
}

RTC_API int hiprtcLinkAddFile(void* handle, int kind, const char* path, unsigned, void*, void**) {
  return path ? add(handle, kind, read(path)) : kInvalidInput;
}

// Says on stderr what does not link: there is no call for the log.
RTC_API int hiprtcLinkComplete(void* handle, void** out, std::size_t* bytes) {
  Linker* link = find(handle);
  if (!link || !out || !bytes || link->is_empty()) return kInvalidInput;
  std::string log;
  if (!link->complete(log)) {
    std::fprintf(stderr, "simulated MI300X: hiprtcLinkComplete: %s\n", log.c_str());
    return kLinking;
  }
  *out = link->code().data();
  *bytes = link->code().size();
  return kSuccess;
}

RTC_API int hiprtcLinkDestroy(void* handle) {
  if (!hip::live<Linker>().drop(handle)) return kInvalidInput;
  delete static_cast<Linker*>(handle);
  return kSuccess;
}

}  // namespace sim::rtc
