// SPDX-License-Identifier: MIT
// AMD's own launch: kernels between two events.
#pragma once
#include "hip/hip_runtime.h"

template <class... Parameters, class Kernel = void (*)(Parameters...)>
inline void hipExtLaunchKernelGGL(Kernel kernel, dim3 grid, dim3 block, unsigned lds_bytes, hipStream_t stream,
                                  hipEvent_t start, hipEvent_t stop, unsigned flags, Parameters... arguments) {
  void* places[sizeof...(Parameters) + 1] = {static_cast<void*>(&arguments)..., nullptr};
  (void)hipExtLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, places, lds_bytes, stream, start, stop,
                           static_cast<int>(flags));
}
