// SPDX-License-Identifier: MIT
// What exists so that no program dies of a missing symbol: each function says once on stderr that it is not simulated,
// and returns hipErrorNotSupported. Its arguments are not read, so none is declared. The list is unsupported.def.
#include <atomic>
#include <cstdio>

#include "hip/hip.h"

namespace sim::hip {
namespace {

Error refuse(const char* function, const char* subject, std::atomic<bool>& told) {
  const std::string why = std::string(function) + " is not simulated: " + subject;
  if (!told.exchange(true)) std::fprintf(stderr, "simulated MI300X: %s\n", why.c_str());
  return set_error(kNotSupported, why);
}

}  // namespace

#define REFUSE(function)                       \
  HIP_API int function() {                     \
    static std::atomic<bool> told{false};      \
    return refuse(#function, SUBJECT, told);   \
  }
#include "hip/unsupported.def"
#undef REFUSE

// What a texture's elements are. It is a value: no error can be its answer.
struct Channels {                                // hipChannelFormatDesc
  int x, y, z, w, kind;
};
HIP_API Channels hipCreateChannelDesc(int x, int y, int z, int w, int kind) { return {x, y, z, w, kind}; }

// A name for each number of a call, for tracers: there are none here.
HIP_API const char* hipApiName(u32) { return "unknown"; }

}  // namespace sim::hip
