// SPDX-License-Identifier: MIT
// Texture objects, as iterators of rocPRIM name them. gfx942 has no image instructions: both functions refuse when they
// are called. A part of hip_runtime_api.h.
#pragma once

typedef struct hipArray* hipArray_t;
typedef struct hipMipmappedArray* hipMipmappedArray_t;
typedef struct __hip_texture* hipTextureObject_t;
typedef enum hipChannelFormatKind {
  hipChannelFormatKindSigned, hipChannelFormatKindUnsigned, hipChannelFormatKindFloat, hipChannelFormatKindNone
} hipChannelFormatKind;
typedef struct hipChannelFormatDesc { int x, y, z, w; hipChannelFormatKind f; } hipChannelFormatDesc;
typedef enum hipTextureAddressMode {
  hipAddressModeWrap, hipAddressModeClamp, hipAddressModeMirror, hipAddressModeBorder
} hipTextureAddressMode;
typedef enum hipTextureFilterMode { hipFilterModePoint, hipFilterModeLinear } hipTextureFilterMode;
typedef enum hipTextureReadMode { hipReadModeElementType, hipReadModeNormalizedFloat } hipTextureReadMode;
typedef enum hipResourceType {
  hipResourceTypeArray, hipResourceTypeMipmappedArray, hipResourceTypeLinear, hipResourceTypePitch2D
} hipResourceType;
typedef struct hipTextureDesc {
  hipTextureAddressMode addressMode[3];
  hipTextureFilterMode filterMode;
  hipTextureReadMode readMode;
  int sRGB;
  float borderColor[4];
  int normalizedCoords;
  unsigned maxAnisotropy;
  hipTextureFilterMode mipmapFilterMode;
  float mipmapLevelBias, minMipmapLevelClamp, maxMipmapLevelClamp;
} hipTextureDesc;
typedef struct hipResourceDesc {
  hipResourceType resType;
  union {
    struct { hipArray_t array; } array;
    struct { hipMipmappedArray_t mipmap; } mipmap;
    struct { void* devPtr; hipChannelFormatDesc desc; size_t sizeInBytes; } linear;
    struct { void* devPtr; hipChannelFormatDesc desc; size_t width, height, pitchInBytes; } pitch2D;
  } res;
} hipResourceDesc;
struct hipResourceViewDesc;

hipChannelFormatDesc hipCreateChannelDesc(int x, int y, int z, int w, hipChannelFormatKind kind);
hipError_t hipCreateTextureObject(hipTextureObject_t* texture, const hipResourceDesc* resource,
                                  const hipTextureDesc* description, const struct hipResourceViewDesc* view);
hipError_t hipDestroyTextureObject(hipTextureObject_t texture);

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
extern "C" {
#endif
