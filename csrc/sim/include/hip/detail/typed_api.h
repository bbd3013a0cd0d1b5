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

#if defined(__HIP__)
// A launch as a function; kernel<<<grid, block, lds_bytes, stream>>>(...) is the same.
#define hipLaunchKernelGGL(kernel, grid, block, lds_bytes, stream, ...)         \
  do {                                                                          \
    kernel<<<dim3(grid), dim3(block), lds_bytes, stream>>>(__VA_ARGS__);        \
  } while (0)
#endif
