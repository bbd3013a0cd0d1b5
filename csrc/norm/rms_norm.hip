// SPDX-License-Identifier: MIT
// rms_norm of PyTorch tensors; rms_norm_body.h has the kernel. One build per combination of the macros.
#include "norm_host.h"
#include "rms_norm_body.h"

#if !defined(ELEMENT) || !defined(WEIGHT) || !defined(LANES) || !defined(VECTORS) || !defined(VEC) || \
    !defined(IS_WHOLE) || !defined(HAS_RESIDUAL) || !defined(IS_GEMMA) || !defined(IS_MODEL_SENSITIVE)
#error "rms_norm.hip: -DELEMENT=bf16|f16|float -DWEIGHT=ELEMENT|float -DLANES -DVECTORS -DVEC and four flags 0|1"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
  using Weight = WEIGHT;
  template <bool kIsAligned>
  using Layout = RowLayout<LANES, VECTORS, VEC, kIsAligned>;
  static constexpr bool kIsWhole = IS_WHOLE;  // a row fits in the lanes' registers
  static constexpr bool kHasResidual = HAS_RESIDUAL;
  static constexpr bool kIsGemma = IS_GEMMA;  // multiplies by weight + 1
  static constexpr bool kIsModelSensitive = IS_MODEL_SENSITIVE;  // rounds before it multiplies with the weight
};

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_rms_norm(const RmsNormArgs<Config>&, bool, Stream);

#if AITER_LIKE_HOST_PASS

void rms_norm(ffi::Tensor out, ffi::Tensor input, ffi::Tensor weight, double epsilon,
              int64_t use_model_sensitive_rmsnorm, ffi::OptionalTensor residual_in, ffi::OptionalTensor residual_out,
              bool gemma_norm) {
  using Layout = Config::Layout<true>;
  ffi::Match match("rms_norm");
  match.built(gemma_norm == Config::kIsGemma && (use_model_sensitive_rmsnorm != 0) == Config::kIsModelSensitive &&
              residual_in.has_value() == Config::kHasResidual && residual_out.has_value() == Config::kHasResidual);
  ffi::Size rows{"rows", 1 << 24}, hidden{"hidden"};
  RmsNormArgs<Config> args{};
  ffi::take_rows(match, args, rows, hidden, input, out, residual_in, residual_out, epsilon);
  args.weight = match.elements<const Config::Weight>(weight, hidden, "weight");
  if (rows == 0) return;
  match.built(!Config::kIsWhole || hidden <= Layout::kCapacity, "row lengths");
  const bool is_aligned = ffi::takes_vectors(Layout::kVec, input, out, residual_in, residual_out, weight);
  launch_rms_norm(args, is_aligned, ffi::stream_of(input));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(rms_norm, aiter_like::rms_norm);
#endif
