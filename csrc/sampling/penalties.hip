// SPDX-License-Identifier: MIT
// Penalties of tokens that a request has seen, in place: a logit of the prompt's or the output's is divided by the
// repetition penalty, or multiplied if not positive; from one of the output's frequency · count + presence is taken.
// HIP (gfx9) and CUDA.
//
//   1. a workgroup counts in LDS the tokens of a row that lie in its kColumns columns
//   2. the logits of those that occur are changed: no other is read or written
//
// LDS: 32 KB. Bound: the tokens, which each workgroup of a row reads, from a cache; two accesses for each that occurs.
#include "sampling_host.h"

#if !defined(ELEMENT)
#error "penalties.hip: -DELEMENT=bf16|f16|float"
#endif

namespace aiter_like {

struct Config {
  using Element = ELEMENT;
};

constexpr int kThreads = 256, kColumns = 8192;
constexpr uint32_t kOfPrompt = 0x80000000u;

/// Tokens [rows, size] of 32 or 64 bits; those outside of the vocabulary are padding.
struct Tokens {
  const void* data;
  int64_t stride;
  int size;
  bool is_64bit;

  __device__ int64_t at(int64_t row, int index) const {
    const int64_t place = row * stride + index;
    return is_64bit ? static_cast<const int64_t*>(data)[place] : static_cast<const int32_t*>(data)[place];
  }
};

template <class Config>
struct PenaltiesArgs {
  ScanRows<typename Config::Element> logits;
  Tokens prompt, output;
  const float *presence, *frequency, *repetition;  // [rows]
  int columns;
};

__device__ inline float penalised(float x, uint32_t seen, float presence, float frequency, float repetition) {
  const float count = static_cast<float>(seen & ~kOfPrompt);
  x = x > 0.f ? x / repetition : x * repetition;
  return count > 0.f ? x - frequency * count - presence : x;
}

template <class Config>
__global__ __launch_bounds__(kThreads) void penalties_kernel(PenaltiesArgs<Config> args) {
  await_stream();
  using Element = typename Config::Element;
  __shared__ uint32_t seen[kColumns];
  const int64_t row = workgroup_index().y;
  const int begin = static_cast<int>(workgroup_index().x) * kColumns;
  const int count = args.columns - begin < kColumns ? args.columns - begin : kColumns;
  for (int i = thread_index(); i < kColumns; i += kThreads) seen[i] = 0;
  workgroup_barrier();
  for (int i = thread_index(); i < args.prompt.size; i += kThreads) {
    const int64_t place = args.prompt.at(row, i) - begin;
    if (place >= 0 && place < count) lds_max(&seen[place], kOfPrompt);
  }
  workgroup_barrier();
  for (int i = thread_index(); i < args.output.size; i += kThreads) {
    const int64_t place = args.output.at(row, i) - begin;
    if (place >= 0 && place < count) lds_add(&seen[place], 1);
  }
  workgroup_barrier();
  Element* logits = args.logits.row(row) + begin;
  for (int i = thread_index(); i < count; i += kThreads)
    if (seen[i] != 0)
      logits[i] = from_float<Element>(penalised(to_float(logits[i]), seen[i], args.presence[row], args.frequency[row],
                                                args.repetition[row]));
}

template <class Config>
void launch_penalties(const PenaltiesArgs<Config>& args, uint32_t rows, Stream stream) {
  const uint32_t groups = (static_cast<uint32_t>(args.columns) + kColumns - 1) / kColumns;
  launch_named("penalties_kernel", penalties_kernel<Config>, dim3(groups, rows), kThreads, stream, args);
}

// In both passes, since the device pass compiles only the kernels that a launch names.
template void launch_penalties(const PenaltiesArgs<Config>&, uint32_t, Stream);

#if AITER_LIKE_HOST_PASS

Tokens tokens_of(ffi::Match& match, const ffi::OptionalTensor& tensor, ffi::Size& rows, const char* name) {
  if (!tensor.has_value() || (*tensor).numel() == 0) return {};
  ffi::Size length{"tokens"};
  const bool is_64bit = match.one_of<int32_t, int64_t>(*tensor, name) == 1;
  const auto found = match.rows<const void>(tensor, rows, length, name);
  return {found.data, found.stride, static_cast<int>(length), is_64bit};
}

void penalties(ffi::Tensor logits, ffi::OptionalTensor prompt_tokens, ffi::OptionalTensor output_tokens,
               ffi::Tensor presence, ffi::Tensor frequency, ffi::Tensor repetition) {
  ffi::Match match("penalties");
  ffi::Size rows{"rows", ffi::kRowLimit}, columns{"columns", (int64_t{1} << 31) - kColumns};
  PenaltiesArgs<Config> args{};
  args.logits = match.rows<ELEMENT>(logits, rows, columns, "logits");
  if (rows == 0) return;
  args.columns = columns;
  args.prompt = tokens_of(match, prompt_tokens, rows, "prompt_tokens");
  args.output = tokens_of(match, output_tokens, rows, "output_tokens");
  args.presence = match.elements<const float>(presence, rows, "presence");
  args.frequency = match.elements<const float>(frequency, rows, "frequency");
  args.repetition = match.elements<const float>(repetition, rows, "repetition");
  launch_penalties(args, rows, ffi::stream_of(logits));
}

#endif

}  // namespace aiter_like

#if AITER_LIKE_HOST_PASS
AITER_LIKE_EXPORT(penalties, aiter_like::penalties);
#endif
