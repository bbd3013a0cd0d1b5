// SPDX-License-Identifier: MIT
// What an array's element is made of: hipCreateChannelDesc of bits, and of a type.
#pragma once

hipChannelFormatDesc hipCreateChannelDesc(int x, int y, int z, int w, hipChannelFormatKind kind);

#if defined(__cplusplus)
}  // extern "C"

namespace hip_detail {

template <class T>
struct Channels {
  static constexpr bool kIsFloat = static_cast<T>(0.5) != static_cast<T>(0);
  static constexpr int kBits = 8 * sizeof(T), kCount = 1;
  static constexpr hipChannelFormatKind kKind =
      kIsFloat ? hipChannelFormatKindFloat
               : static_cast<T>(-1) < static_cast<T>(0) ? hipChannelFormatKindSigned : hipChannelFormatKindUnsigned;
};
template <class T, unsigned kElements>
struct Channels<HIP_vector_type<T, kElements>> {
  static constexpr int kBits = 8 * sizeof(T), kCount = kElements;
  static constexpr hipChannelFormatKind kKind = Channels<T>::kKind;
};

}  // namespace hip_detail

template <class T>
inline hipChannelFormatDesc hipCreateChannelDesc() {
  using Of = hip_detail::Channels<T>;
  return {Of::kBits, Of::kCount > 1 ? Of::kBits : 0, Of::kCount > 2 ? Of::kBits : 0, Of::kCount > 3 ? Of::kBits : 0,
          Of::kKind};
}
static inline hipChannelFormatDesc hipCreateChannelDescHalf() { return {16, 0, 0, 0, hipChannelFormatKindFloat}; }
static inline hipChannelFormatDesc hipCreateChannelDescHalf1() { return {16, 0, 0, 0, hipChannelFormatKindFloat}; }
static inline hipChannelFormatDesc hipCreateChannelDescHalf2() { return {16, 16, 0, 0, hipChannelFormatKindFloat}; }
static inline hipChannelFormatDesc hipCreateChannelDescHalf4() { return {16, 16, 16, 16, hipChannelFormatKindFloat}; }
extern "C" {
#endif
