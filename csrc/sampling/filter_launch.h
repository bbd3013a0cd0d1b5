// SPDX-License-Identifier: MIT
// The kernels of filter_body.h and filter_cluster.h, and their launches. HIP (gfx9) and CUDA.
#pragma once

#include "filter_cluster.h"

namespace aiter_like {

template <class Body>
__global__ __launch_bounds__(Body::kThreads, 2) void filter_kernel(typename Body::Args args) {
  await_stream();
  Body::run(args);
}
template <class Body>
__global__ __launch_bounds__(Body::kThreads, 2) void filter_cluster_kernel(typename Body::Args args) {
  await_stream();
  Body::run(args);
}
template <class Body>
__global__ __launch_bounds__(Body::kThreads, 2) void filter_level_kernel(typename Body::Args args, int number) {
  await_stream();
  Body::run_level(args, number);
}
template <class Body>
__global__ __launch_bounds__(Body::kThreads, 2) void filter_mass_kernel(typename Body::Args args) {
  await_stream();
  Body::run_mass(args);
}
template <class Body>
__global__ __launch_bounds__(Body::kThreads, 2) void filter_slice_kernel(typename Body::Args args) {
  await_stream();
  Body::run_slice(args);
}
template <class Body>
__global__ __launch_bounds__(kWaveSize) void filter_draw_kernel(typename Body::Args args) {
  await_stream();
  Body::run_draw(args);
}
template <class Body>
__global__ __launch_bounds__(256) void filter_clear_kernel(uint32_t* words, int64_t count) {
  await_stream();
  const int64_t i = (int64_t{workgroup_index().x} * 256 + thread_index()) * 4;
  if (i < count) store_vec(words + i, Vec<uint32_t, 4>{});
}

/// `is_limited`: whether any row may have a limit of top-k or top-p, `has_min_p`: of min_p. Slices have `searches` if
/// either holds, and for renorm_probs.
template <class Config>
void launch_filter(const FilterArgs<Config>& args, uint32_t rows, uint32_t slices, bool is_limited, bool has_min_p,
                   Stream stream) {
  using Body = FilterBody<Config>;
  const dim3 grid(slices, rows);
  if constexpr (kHasClusters) {
    if (args.cluster > 0) {
      const size_t lds_bytes = args.slices.length * sizeof(typename Config::Element);
      launch_clusters(filter_cluster_kernel<FilterClusterBody<Config>>, args.cluster, rows, Body::kThreads, lds_bytes,
                      stream, args);
      check_launch("filter_cluster_kernel");
      return;
    }
  }
  if (slices == 1) {
    launch_named("filter_kernel", filter_kernel<Body>, grid, Body::kThreads, stream, args);
    return;
  }
  if (args.searches) {
    constexpr int64_t kWords = sizeof(RowSearch) / 4;
    static_assert(kWords % 4 == 0, "cleared 16 bytes at a time");
    const dim3 groups(static_cast<uint32_t>((rows * kWords / 4 + 255) / 256));
    launch_named("filter_clear_kernel", filter_clear_kernel<Body>, groups, 256, stream,
                 reinterpret_cast<uint32_t*>(args.searches), rows * kWords);
    for (int number = 0; number < (is_limited ? kLevels : has_min_p ? 1 : 0); ++number) {
      launch_named("filter_level_kernel", filter_level_kernel<Body>, grid, Body::kThreads, stream, args, number);
    }
    if (Config::kIsRenorm) {
      launch_named("filter_mass_kernel", filter_mass_kernel<Body>, grid, Body::kThreads, stream, args);
    }
  }
  launch_named("filter_slice_kernel", filter_slice_kernel<Body>, grid, Body::kThreads, stream, args);
  if (Config::kIsRenorm) return;
  launch_named("filter_draw_kernel", filter_draw_kernel<Body>, dim3(1, rows), kWaveSize, stream, args);
}

}  // namespace aiter_like
