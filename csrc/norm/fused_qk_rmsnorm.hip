// SPDX-License-Identifier: MIT
// fused_qk_rmsnorm of PyTorch tensors; fused_qk_rmsnorm_body.h has the kernel. One build per combination of the macros.
#include "aiter_like/ffi.h"
#include "fused_qk_rmsnorm_body.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC)
#error "fused_qk_rmsnorm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DLANES -DVECTORS -DVEC"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Weight = WEIGHT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_fused_qk_rmsnorm(QkRmsNormArgs<Config>, bool, Stream);

#if AITER_LIKE_HOST_PASS

Side<Config> side_of(ffi::Match& match, const ffi::Tensor& out, const ffi::Tensor& input, const ffi::Tensor& weight,
                     double epsilon) {
  ffi::Size rows{"rows", 1 << 24}, hidden{"hidden"};
  Side<Config> side{match.rows<Config::Element>(out, rows, hidden, "out"),
                    match.rows<const Config::Element>(input, rows, hidden, "input"),
                    match.elements<const Config::Weight>(weight, hidden, "weight"), rows, static_cast<int>(hidden),
                    static_cast<float>(epsilon)};
  match.built(hidden <= Config::Layout<true>::kCapacity, "row lengths");
  return side;
}

void fused_qk_rmsnorm(ffi::Tensor q_out, ffi::Tensor k_out, ffi::Tensor q, ffi::Tensor q_weight, double q_eps,
                      ffi::Tensor k, ffi::Tensor k_weight, double k_eps) {
  ffi::Match match("fused_qk_rmsnorm");
  QkRmsNormArgs<Config> args{};
  args.q = side_of(match, q_out, q, q_weight, q_eps);
  args.k = side_of(match, k_out, k, k_weight, k_eps);
  match.require(args.q.rows + args.k.rows < (1 << 24), "q and k must have at most 2^24 - 1 rows together");
  if (args.q.rows + args.k.rows == 0) return;
  const bool is_aligned = ffi::takes_vectors(Config::Layout<true>::kVec, q_out, q, q_weight, k_out, k, k_weight);
  launch_fused_qk_rmsnorm(args, is_aligned, ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(fused_qk_rmsnorm, aiter_like::fused_qk_rmsnorm);
#endif
