// SPDX-License-Identifier: MIT
// Functions of the runtime that know the type of what they are given: a pointer to a pointer, a symbol, a kernel.
#pragma once

template <class T>
inline hipError_t hipMalloc(T** out, size_t bytes) {
  return hipMalloc(reinterpret_cast<void**>(out), bytes);
}
template <class T>
inline hipError_t hipMallocManaged(T** out, size_t bytes, unsigned flags = hipMemAttachGlobal) {
  return hipMallocManaged(reinterpret_cast<void**>(out), bytes, flags);
}
template <class T>
inline hipError_t hipHostMalloc(T** out, size_t bytes, unsigned flags = hipHostMallocDefault) {
  return hipHostMalloc(reinterpret_cast<void**>(out), bytes, flags);
}
template <class T>
inline hipError_t hipHostAlloc(T** out, size_t bytes, unsigned flags) {
  return hipHostAlloc(reinterpret_cast<void**>(out), bytes, flags);
}
template <class T>
inline hipError_t hipMallocHost(T** out, size_t bytes) {
  return hipMallocHost(reinterpret_cast<void**>(out), bytes);
}
template <class T>
inline hipError_t hipExtMallocWithFlags(T** out, size_t bytes, unsigned flags) {
  return hipExtMallocWithFlags(reinterpret_cast<void**>(out), bytes, flags);
}
template <class T>
inline hipError_t hipMallocPitch(T** out, size_t* pitch, size_t width, size_t height) {
  return hipMallocPitch(reinterpret_cast<void**>(out), pitch, width, height);
}
template <class T>
inline hipError_t hipMallocAsync(T** out, size_t bytes, hipStream_t stream) {
  return hipMallocAsync(reinterpret_cast<void**>(out), bytes, stream);
}
template <class T>
inline hipError_t hipMallocFromPoolAsync(T** out, size_t bytes, hipMemPool_t pool, hipStream_t stream) {
  return hipMallocFromPoolAsync(reinterpret_cast<void**>(out), bytes, pool, stream);
}
template <class T>
inline hipError_t hipMallocAsync(T** out, size_t bytes, hipMemPool_t pool, hipStream_t stream) {
  return hipMallocFromPoolAsync(reinterpret_cast<void**>(out), bytes, pool, stream);
}

template <class T>
inline hipError_t hipGetSymbolAddress(void** address, const T& symbol) {
  return hipGetSymbolAddress(address, static_cast<const void*>(&symbol));
}
template <class T>
inline hipError_t hipGetSymbolSize(size_t* bytes, const T& symbol) {
  return hipGetSymbolSize(bytes, static_cast<const void*>(&symbol));
}
template <class T>
inline hipError_t hipMemcpyToSymbol(const T& symbol, const void* from, size_t bytes, size_t offset = 0,
                                    hipMemcpyKind kind = hipMemcpyHostToDevice) {
  return hipMemcpyToSymbol(static_cast<const void*>(&symbol), from, bytes, offset, kind);
}
template <class T>
inline hipError_t hipMemcpyFromSymbol(void* to, const T& symbol, size_t bytes, size_t offset = 0,
                                      hipMemcpyKind kind = hipMemcpyDeviceToHost) {
  return hipMemcpyFromSymbol(to, static_cast<const void*>(&symbol), bytes, offset, kind);
}
template <class T>
inline hipError_t hipMemcpyToSymbolAsync(const T& symbol, const void* from, size_t bytes, size_t offset,
                                         hipMemcpyKind kind, hipStream_t stream = nullptr) {
  return hipMemcpyToSymbolAsync(static_cast<const void*>(&symbol), from, bytes, offset, kind, stream);
}
template <class T>
inline hipError_t hipMemcpyFromSymbolAsync(void* to, const T& symbol, size_t bytes, size_t offset, hipMemcpyKind kind,
                                           hipStream_t stream = nullptr) {
  return hipMemcpyFromSymbolAsync(to, static_cast<const void*>(&symbol), bytes, offset, kind, stream);
}

template <class Kernel>
inline hipError_t hipLaunchCooperativeKernel(Kernel kernel, dim3 grid, dim3 block, void** arguments, unsigned lds_bytes,
                                             hipStream_t stream) {
  return hipLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, lds_bytes, stream);
}
template <class Kernel>
inline hipError_t hipFuncGetAttributes(hipFuncAttributes* attributes, Kernel kernel) {
  return hipFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class Kernel>
inline hipError_t hipFuncSetAttribute(Kernel kernel, hipFuncAttribute attribute, int value) {
  return hipFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class Kernel>
inline hipError_t hipFuncSetCacheConfig(Kernel kernel, hipFuncCache_t config) {
  return hipFuncSetCacheConfig(reinterpret_cast<const void*>(kernel), config);
}
template <class Kernel>
inline hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel kernel, int block,
                                                               size_t lds_bytes) {
  return hipOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void*>(kernel), block, lds_bytes);
}
template <class Kernel>
inline hipError_t hipOccupancyMaxPotentialBlockSize(int* grid, int* block, Kernel kernel, size_t lds_bytes = 0,
                                                    int most = 0) {
  return hipOccupancyMaxPotentialBlockSize(grid, block, reinterpret_cast<const void*>(kernel), lds_bytes, most);
}
template <class Kernel>
inline hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, Kernel kernel, int block,
                                                                        size_t lds_bytes, unsigned flags) {
  return hipOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, reinterpret_cast<const void*>(kernel), block,
                                                               lds_bytes, flags);
}
template <class Kernel>
inline hipError_t hipOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, Kernel kernel,
                                                             size_t lds_bytes = 0, int most = 0,
                                                             unsigned flags = 0) {
  if (flags > hipOccupancyDisableCachingOverride) return hipErrorInvalidValue;
  return hipOccupancyMaxPotentialBlockSize(grid, block, reinterpret_cast<const void*>(kernel), lds_bytes, most);
}
// The bytes of dynamic LDS depend on the block: of the blocks of whole waves, that of which most work-items fit on a
// compute unit, the largest of such.
template <class Bytes, class Kernel>
inline hipError_t hipOccupancyMaxPotentialBlockSizeVariableSMemWithFlags(int* grid, int* block, Kernel kernel,
                                                                         Bytes bytes_of_block, int most = 0,
                                                                         unsigned flags = 0) {
  if (grid == nullptr || block == nullptr || reinterpret_cast<const void*>(kernel) == nullptr ||
      flags > hipOccupancyDisableCachingOverride) {
    return hipErrorInvalidValue;
  }
  int device = 0, units = 0, threads = 0;
  hipFuncAttributes attributes;
  hipError_t error = hipGetDevice(&device);
  if (error == hipSuccess) error = hipDeviceGetAttribute(&units, hipDeviceAttributeMultiprocessorCount, device);
  if (error == hipSuccess) {
    error = hipDeviceGetAttribute(&threads, hipDeviceAttributeMaxThreadsPerMultiProcessor, device);
  }
  if (error == hipSuccess) error = hipFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  int limit = error == hipSuccess ? attributes.maxThreadsPerBlock : 0, most_items = 0;
  if (most > 0 && most < limit) limit = most;
  for (int tried = limit; error == hipSuccess && tried > 0 && most_items < threads; tried = (tried - 1) / 64 * 64) {
    int blocks = 0;
    error = hipOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, tried, bytes_of_block(tried));
    if (error != hipSuccess || blocks * tried <= most_items) continue;
    most_items = blocks * tried;
    *grid = blocks * units;
    *block = tried;
  }
  return error;
}
template <class Bytes, class Kernel>
inline hipError_t hipOccupancyMaxPotentialBlockSizeVariableSMem(int* grid, int* block, Kernel kernel,
                                                                Bytes bytes_of_block, int most = 0) {
  return hipOccupancyMaxPotentialBlockSizeVariableSMemWithFlags(grid, block, kernel, bytes_of_block, most, 0);
}

template <class... Parameters, class... Arguments>
inline hipError_t hipLaunchKernelEx(const hipLaunchConfig_t* config, void (*kernel)(Parameters...),
                                    Arguments&&... arguments) {
  return [&](Parameters... values) {
    void* places[sizeof...(Parameters) + 1] = {
        const_cast<void*>(static_cast<const volatile void*>(__builtin_addressof(values)))..., nullptr};
    return hipLaunchKernelExC(config, reinterpret_cast<const void*>(kernel), places);
  }(static_cast<Arguments&&>(arguments)...);
}

#if defined(__HIP__)
// A launch as a function; kernel<<<grid, block, lds_bytes, stream>>>(...) is the same.
#define hipLaunchKernelGGL(kernel, grid, block, lds_bytes, stream, ...)         \
  do {                                                                          \
    kernel<<<dim3(grid), dim3(block), lds_bytes, stream>>>(__VA_ARGS__);        \
  } while (0)
#endif
