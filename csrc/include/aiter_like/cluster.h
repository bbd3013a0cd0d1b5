// SPDX-License-Identifier: MIT
// Workgroups that reach one another's LDS: the clusters of sm_90, up to 8 workgroups that are resident at one time.
// Where kHasClusters is false nothing here is defined, and what uses it stands in a branch that is not compiled.
#pragma once

#include "aiter_like/gpu.h"

namespace aiter_like {

constexpr int kMostOfCluster = 8;             // the size that every such device can hold
constexpr size_t kMostDynamicLds = 192 << 10;  // a workgroup's; the other 35 KB are for what a kernel declares itself

#if AITER_LIKE_OVERLAPS_LAUNCHES
constexpr bool kHasClusters = true;

/// kernel<<<(cluster, clusters), threads, lds_bytes, stream>>>(args...), as launch_overlapped.
template <class... Parameters, class... Args>
inline void launch_clusters(void (*kernel)(Parameters...), uint32_t cluster, uint32_t clusters, int threads,
                            size_t lds_bytes, Stream stream, const Args&... args) {
  // The kernel's own attribute is the same whatever another thread launches meanwhile.
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kMostDynamicLds));
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cluster, clusters);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = lds_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  cudaLaunchKernelEx(&config, kernel, args...);  // check_launch asks what came of it
}

/// The LDS that the launch asked for.
__device__ inline uint8_t* dynamic_lds() {
  extern __shared__ __align__(16) uint8_t dynamic_lds_of_launch[];
  return dynamic_lds_of_launch;
}

__device__ inline uint32_t lds_address(const void* lds) { return static_cast<uint32_t>(__cvta_generic_to_shared(lds)); }

/// Copies 16 bytes to LDS without a register in between; the work-item that asked may read them after await_copies().
__device__ inline void copy_to_lds(void* lds, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(lds_address(lds)), "l"(global) : "memory");
}
__device__ inline void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// A barrier of all work-items of the cluster, in two halves. A workgroup's LDS may be reached by others from the first
/// one on, which tells that the workgroup has begun, and until the last one that it waits for.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

/// Like cluster_arrive, where others are to see only this workgroup's own LDS: does not wait for stores to global
/// memory, nor for loads from others' LDS whose results have not been used.
__device__ inline void cluster_arrive_with_own() {
#if __CUDACC_VER_MAJOR__ >= 13
  asm volatile("fence.release.sync_restrict::shared::cta.cluster;\n\tbarrier.cluster.arrive.relaxed;" ::: "memory");
#else
  cluster_arrive();
#endif
}

/// The address, in the LDS of the cluster, of workgroup `rank`'s copy of what is at `lds` in this one's.
__device__ inline uint32_t address_of_peer(const void* lds, uint32_t rank) {
  uint32_t result;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(result) : "r"(lds_address(lds)), "r"(rank));
  return result;
}
__device__ inline uint64_t load_of_peer(const uint64_t* lds, uint32_t rank) {
  uint64_t x;
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(x) : "r"(address_of_peer(lds, rank)) : "memory");
  return x;
}
__device__ inline void store_of_peer(uint64_t* lds, uint32_t rank, uint64_t x) {
  asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(address_of_peer(lds, rank)), "l"(x) : "memory");
}
__device__ inline void store_of_peer(uint32_t* lds, uint32_t rank, uint32_t x) {
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(address_of_peer(lds, rank)), "r"(x) : "memory");
}
/// Adds to a word of another workgroup's LDS, at once for all of the cluster; the second form returns what was there.
__device__ inline void add_of_peer(uint32_t* lds, uint32_t rank, uint32_t x) {
  asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(address_of_peer(lds, rank)), "r"(x)
               : "memory");
}
__device__ inline uint32_t fetch_add_of_peer(uint32_t* lds, uint32_t rank, uint32_t x) {
  uint32_t before;
  asm volatile("atom.relaxed.cluster.shared::cluster.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(address_of_peer(lds, rank)), "r"(x)
               : "memory");
  return before;
}

#else
constexpr bool kHasClusters = false;

template <class... Parameters, class... Args>
void launch_clusters(void (*kernel)(Parameters...), uint32_t cluster, uint32_t clusters, int threads, size_t lds_bytes,
                     Stream stream, const Args&... args);
__device__ uint8_t* dynamic_lds();
__device__ void copy_to_lds(void* lds, const void* global);
__device__ void await_copies();
__device__ void cluster_arrive();
__device__ void cluster_wait();
__device__ void cluster_arrive_with_own();
__device__ uint64_t load_of_peer(const uint64_t* lds, uint32_t rank);
__device__ void store_of_peer(uint64_t* lds, uint32_t rank, uint64_t x);
__device__ void store_of_peer(uint32_t* lds, uint32_t rank, uint32_t x);
__device__ void add_of_peer(uint32_t* lds, uint32_t rank, uint32_t x);
__device__ uint32_t fetch_add_of_peer(uint32_t* lds, uint32_t rank, uint32_t x);
#endif

/// Like cluster_barrier, for what is in each workgroup's own LDS.
__device__ inline void cluster_barrier_with_own() {
  cluster_arrive_with_own();
  cluster_wait();
}

/// All work-items of the cluster, and thereby of the workgroup.
__device__ inline void cluster_barrier() {
  cluster_arrive();
  cluster_wait();
}

}  // namespace aiter_like
