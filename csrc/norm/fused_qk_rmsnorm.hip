// SPDX-License-Identifier: MIT
// fused_qk_rmsnorm of PyTorch tensors; fused_qk_rmsnorm_body.h has the kernel. One build per combination of the macros.
#include "aiter_like/rows/operands.h"
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

Side<Config> side_of(const ffi::Tensor& out, const ffi::Tensor& input, const ffi::Tensor& weight, double epsilon,
             const char* name, bool& is_aligned) {
  using Layout = Config::Layout<true>;
  ffi::RowOperands<Layout::kVec> operands(name, input);
  Side<Config> side{operands.matrix<Config::Element>(out, "out"),
                    operands.matrix<const Config::Element>(input, "input"),
                    operands.vector<const Config::Weight>(weight, "weight"),
                    operands.rows(), static_cast<int>(operands.size()), static_cast<float>(epsilon)};
  ffi::check_value(side.hidden <= Layout::kCapacity,
                   "fused_qk_rmsnorm: this module was built for other row lengths");
  is_aligned = is_aligned && operands.is_aligned();
  return side;
}

void fused_qk_rmsnorm(ffi::Tensor q_out, ffi::Tensor k_out, ffi::Tensor q, ffi::Tensor q_weight, double q_eps,
                      ffi::Tensor k, ffi::Tensor k_weight, double k_eps) {
  bool is_aligned = true;
  QkRmsNormArgs<Config> args{};
  args.q = side_of(q_out, q, q_weight, q_eps, "fused_qk_rmsnorm: q", is_aligned);
  args.k = side_of(k_out, k, k_weight, k_eps, "fused_qk_rmsnorm: k", is_aligned);
  ffi::check_value(args.q.rows + args.k.rows < (int64_t{1} << 24),
                   "fused_qk_rmsnorm: q and k must have at most 2^24 - 1 rows together");
  if (args.q.rows + args.k.rows > 0) launch_fused_qk_rmsnorm(args, is_aligned, ffi::stream_of(q));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(fused_qk_rmsnorm, aiter_like::fused_qk_rmsnorm);
#endif
