// SPDX-License-Identifier: MIT
// Textures, surfaces and mipmapped arrays, as the host knows them. gfx942 has no image instructions: they refuse
// when they are called, and a program that asks the device before it uses them compiles. A part of
// hip_runtime_api.h.
#pragma once

typedef struct hipMipmappedArray {
  void* data;
  hipChannelFormatDesc desc;
  unsigned type, width, height, depth, min_mipmap_level, max_mipmap_level, flags;
  hipArray_Format format;
  unsigned num_channels;
} hipMipmappedArray;
typedef hipMipmappedArray *hipMipmappedArray_t, *hipmipmappedArray;
typedef const hipMipmappedArray* hipMipmappedArray_const_t;
typedef struct __hip_texture* hipTextureObject_t;
typedef struct __hip_surface* hipSurfaceObject_t;

#define hipTextureType1D 0x01
#define hipTextureType2D 0x02
#define hipTextureType3D 0x03
#define hipTextureTypeCubemap 0x0c
#define hipTextureType1DLayered 0xf1
#define hipTextureType2DLayered 0xf2
#define hipTextureTypeCubemapLayered 0xfc
#define HIP_TRSA_OVERRIDE_FORMAT 0x01
#define HIP_TRSF_READ_AS_INTEGER 0x01
#define HIP_TRSF_NORMALIZED_COORDINATES 0x02
#define HIP_TRSF_SRGB 0x10

typedef enum hipTextureAddressMode {
  hipAddressModeWrap, hipAddressModeClamp, hipAddressModeMirror, hipAddressModeBorder
} hipTextureAddressMode;
typedef enum hipTextureFilterMode { hipFilterModePoint, hipFilterModeLinear } hipTextureFilterMode;
typedef enum hipTextureReadMode { hipReadModeElementType, hipReadModeNormalizedFloat } hipTextureReadMode;
typedef enum hipSurfaceBoundaryMode {
  hipBoundaryModeZero, hipBoundaryModeTrap, hipBoundaryModeClamp
} hipSurfaceBoundaryMode;
typedef enum hipResourceType {
  hipResourceTypeArray, hipResourceTypeMipmappedArray, hipResourceTypeLinear, hipResourceTypePitch2D
} hipResourceType;
typedef enum hipResourceViewFormat {
  hipResViewFormatNone, hipResViewFormatUnsignedChar1, hipResViewFormatUnsignedChar2, hipResViewFormatUnsignedChar4,
  hipResViewFormatSignedChar1, hipResViewFormatSignedChar2, hipResViewFormatSignedChar4,
  hipResViewFormatUnsignedShort1, hipResViewFormatUnsignedShort2, hipResViewFormatUnsignedShort4,
  hipResViewFormatSignedShort1, hipResViewFormatSignedShort2, hipResViewFormatSignedShort4,
  hipResViewFormatUnsignedInt1, hipResViewFormatUnsignedInt2, hipResViewFormatUnsignedInt4,
  hipResViewFormatSignedInt1, hipResViewFormatSignedInt2, hipResViewFormatSignedInt4, hipResViewFormatHalf1,
  hipResViewFormatHalf2, hipResViewFormatHalf4, hipResViewFormatFloat1, hipResViewFormatFloat2,
  hipResViewFormatFloat4, hipResViewFormatUnsignedBlockCompressed1, hipResViewFormatUnsignedBlockCompressed2,
  hipResViewFormatUnsignedBlockCompressed3, hipResViewFormatUnsignedBlockCompressed4,
  hipResViewFormatSignedBlockCompressed4, hipResViewFormatUnsignedBlockCompressed5,
  hipResViewFormatSignedBlockCompressed5, hipResViewFormatUnsignedBlockCompressed6H,
  hipResViewFormatSignedBlockCompressed6H, hipResViewFormatUnsignedBlockCompressed7
} hipResourceViewFormat;
typedef enum HIPresourcetype_enum {
  HIP_RESOURCE_TYPE_ARRAY, HIP_RESOURCE_TYPE_MIPMAPPED_ARRAY, HIP_RESOURCE_TYPE_LINEAR, HIP_RESOURCE_TYPE_PITCH2D
} HIPresourcetype, hipResourcetype;
typedef enum HIPaddress_mode_enum {
  HIP_TR_ADDRESS_MODE_WRAP, HIP_TR_ADDRESS_MODE_CLAMP, HIP_TR_ADDRESS_MODE_MIRROR, HIP_TR_ADDRESS_MODE_BORDER
} HIPaddress_mode;
typedef enum HIPfilter_mode_enum { HIP_TR_FILTER_MODE_POINT, HIP_TR_FILTER_MODE_LINEAR } HIPfilter_mode;
typedef enum HIPresourceViewFormat_enum {
  HIP_RES_VIEW_FORMAT_NONE, HIP_RES_VIEW_FORMAT_UINT_1X8, HIP_RES_VIEW_FORMAT_UINT_2X8, HIP_RES_VIEW_FORMAT_UINT_4X8,
  HIP_RES_VIEW_FORMAT_SINT_1X8, HIP_RES_VIEW_FORMAT_SINT_2X8, HIP_RES_VIEW_FORMAT_SINT_4X8,
  HIP_RES_VIEW_FORMAT_UINT_1X16, HIP_RES_VIEW_FORMAT_UINT_2X16, HIP_RES_VIEW_FORMAT_UINT_4X16,
  HIP_RES_VIEW_FORMAT_SINT_1X16, HIP_RES_VIEW_FORMAT_SINT_2X16, HIP_RES_VIEW_FORMAT_SINT_4X16,
  HIP_RES_VIEW_FORMAT_UINT_1X32, HIP_RES_VIEW_FORMAT_UINT_2X32, HIP_RES_VIEW_FORMAT_UINT_4X32,
  HIP_RES_VIEW_FORMAT_SINT_1X32, HIP_RES_VIEW_FORMAT_SINT_2X32, HIP_RES_VIEW_FORMAT_SINT_4X32,
  HIP_RES_VIEW_FORMAT_FLOAT_1X16, HIP_RES_VIEW_FORMAT_FLOAT_2X16, HIP_RES_VIEW_FORMAT_FLOAT_4X16,
  HIP_RES_VIEW_FORMAT_FLOAT_1X32, HIP_RES_VIEW_FORMAT_FLOAT_2X32, HIP_RES_VIEW_FORMAT_FLOAT_4X32,
  HIP_RES_VIEW_FORMAT_UNSIGNED_BC1, HIP_RES_VIEW_FORMAT_UNSIGNED_BC2, HIP_RES_VIEW_FORMAT_UNSIGNED_BC3,
  HIP_RES_VIEW_FORMAT_UNSIGNED_BC4, HIP_RES_VIEW_FORMAT_SIGNED_BC4, HIP_RES_VIEW_FORMAT_UNSIGNED_BC5,
  HIP_RES_VIEW_FORMAT_SIGNED_BC5, HIP_RES_VIEW_FORMAT_UNSIGNED_BC6H, HIP_RES_VIEW_FORMAT_SIGNED_BC6H,
  HIP_RES_VIEW_FORMAT_UNSIGNED_BC7
} HIPresourceViewFormat;

typedef struct textureReference {
  int normalized;
  hipTextureReadMode readMode;
  hipTextureFilterMode filterMode;
  hipTextureAddressMode addressMode[3];
  hipChannelFormatDesc channelDesc;
  int sRGB;
  unsigned maxAnisotropy;
  hipTextureFilterMode mipmapFilterMode;
  float mipmapLevelBias, minMipmapLevelClamp, maxMipmapLevelClamp;
  hipTextureObject_t textureObject;
  int numChannels;
  hipArray_Format format;
} textureReference;
typedef textureReference* hipTexRef;
typedef struct surfaceReference { hipSurfaceObject_t surfaceObject; } surfaceReference;
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
typedef struct HIP_TEXTURE_DESC_st {
  HIPaddress_mode addressMode[3];
  HIPfilter_mode filterMode;
  unsigned flags, maxAnisotropy;
  HIPfilter_mode mipmapFilterMode;
  float mipmapLevelBias, minMipmapLevelClamp, maxMipmapLevelClamp, borderColor[4];
  int reserved[12];
} HIP_TEXTURE_DESC;
typedef struct hipResourceDesc {
  hipResourceType resType;
  union {
    struct { hipArray_t array; } array;
    struct { hipMipmappedArray_t mipmap; } mipmap;
    struct { void* devPtr; hipChannelFormatDesc desc; size_t sizeInBytes; } linear;
    struct { void* devPtr; hipChannelFormatDesc desc; size_t width, height, pitchInBytes; } pitch2D;
  } res;
} hipResourceDesc;
typedef struct HIP_RESOURCE_DESC_st {
  HIPresourcetype resType;
  union {
    struct { hipArray_t hArray; } array;
    struct { hipMipmappedArray_t hMipmappedArray; } mipmap;
    struct { hipDeviceptr_t devPtr; hipArray_Format format; unsigned numChannels; size_t sizeInBytes; } linear;
    struct {
      hipDeviceptr_t devPtr;
      hipArray_Format format;
      unsigned numChannels;
      size_t width, height, pitchInBytes;
    } pitch2D;
    struct { int reserved[32]; } reserved;
  } res;
  unsigned flags;
} HIP_RESOURCE_DESC;
typedef struct hipResourceViewDesc {
  hipResourceViewFormat format;
  size_t width, height, depth;
  unsigned firstMipmapLevel, lastMipmapLevel, firstLayer, lastLayer;
} hipResourceViewDesc;
typedef struct HIP_RESOURCE_VIEW_DESC_st {
  HIPresourceViewFormat format;
  size_t width, height, depth;
  unsigned firstMipmapLevel, lastMipmapLevel, firstLayer, lastLayer, reserved[16];
} HIP_RESOURCE_VIEW_DESC;

hipError_t hipBindTexture(size_t* offset, const textureReference* reference, const void* memory,
                          const hipChannelFormatDesc* channels, size_t bytes AITER_LIKE_DEFAULT(~0u));
hipError_t hipBindTexture2D(size_t* offset, const textureReference* reference, const void* memory,
                            const hipChannelFormatDesc* channels, size_t width, size_t height, size_t pitch);
hipError_t hipBindTextureToArray(const textureReference* reference, hipArray_const_t array,
                                 const hipChannelFormatDesc* channels);
hipError_t hipBindTextureToMipmappedArray(const textureReference* reference, hipMipmappedArray_const_t mipmap,
                                          const hipChannelFormatDesc* channels);
hipError_t hipCreateSurfaceObject(hipSurfaceObject_t* surface, const hipResourceDesc* resource);
hipError_t hipCreateTextureObject(hipTextureObject_t* texture, const hipResourceDesc* resource,
                                  const hipTextureDesc* description, const hipResourceViewDesc* view);
hipError_t hipDestroySurfaceObject(hipSurfaceObject_t surface);
hipError_t hipDestroyTextureObject(hipTextureObject_t texture);
hipError_t hipDeviceGetTexture1DLinearMaxWidth(size_t* width, const hipChannelFormatDesc* channels, int device);
hipError_t hipFreeMipmappedArray(hipMipmappedArray_t mipmap);
hipError_t hipGetMipmappedArrayLevel(hipArray_t* array, hipMipmappedArray_const_t mipmap, unsigned level);
hipError_t hipGetTextureAlignmentOffset(size_t* offset, const textureReference* reference);
hipError_t hipGetTextureObjectResourceDesc(hipResourceDesc* resource, hipTextureObject_t texture);
hipError_t hipGetTextureObjectResourceViewDesc(hipResourceViewDesc* view, hipTextureObject_t texture);
hipError_t hipGetTextureObjectTextureDesc(hipTextureDesc* description, hipTextureObject_t texture);
hipError_t hipGetTextureReference(const textureReference** reference, const void* symbol);
hipError_t hipMallocMipmappedArray(hipMipmappedArray_t* mipmap, const hipChannelFormatDesc* channels, hipExtent extent,
                                   unsigned levels, unsigned flags AITER_LIKE_DEFAULT(0));
hipError_t hipMipmappedArrayCreate(hipMipmappedArray_t* mipmap, HIP_ARRAY3D_DESCRIPTOR* description, unsigned levels);
hipError_t hipMipmappedArrayDestroy(hipMipmappedArray_t mipmap);
hipError_t hipMipmappedArrayGetLevel(hipArray_t* array, hipMipmappedArray_t mipmap, unsigned level);
hipError_t hipModuleGetTexRef(textureReference** reference, hipModule_t module, const char* name);
hipError_t hipTexObjectCreate(hipTextureObject_t* texture, const HIP_RESOURCE_DESC* resource,
                              const HIP_TEXTURE_DESC* description, const HIP_RESOURCE_VIEW_DESC* view);
hipError_t hipTexObjectDestroy(hipTextureObject_t texture);
hipError_t hipTexObjectGetResourceDesc(HIP_RESOURCE_DESC* resource, hipTextureObject_t texture);
hipError_t hipTexObjectGetResourceViewDesc(HIP_RESOURCE_VIEW_DESC* view, hipTextureObject_t texture);
hipError_t hipTexObjectGetTextureDesc(HIP_TEXTURE_DESC* description, hipTextureObject_t texture);
hipError_t hipTexRefGetAddress(hipDeviceptr_t* memory, const textureReference* reference);
hipError_t hipTexRefGetAddressMode(hipTextureAddressMode* mode, const textureReference* reference, int dim);
hipError_t hipTexRefGetArray(hipArray_t* array, const textureReference* reference);
hipError_t hipTexRefGetBorderColor(float* border_color, const textureReference* reference);
hipError_t hipTexRefGetFilterMode(hipTextureFilterMode* mode, const textureReference* reference);
hipError_t hipTexRefGetFlags(unsigned* flags, const textureReference* reference);
hipError_t hipTexRefGetFormat(hipArray_Format* format, int* channels, const textureReference* reference);
hipError_t hipTexRefGetMaxAnisotropy(int* most, const textureReference* reference);
hipError_t hipTexRefGetMipMappedArray(hipMipmappedArray_t* array, const textureReference* reference);
hipError_t hipTexRefGetMipmapFilterMode(hipTextureFilterMode* mode, const textureReference* reference);
hipError_t hipTexRefGetMipmapLevelBias(float* bias, const textureReference* reference);
hipError_t hipTexRefGetMipmapLevelClamp(float* least, float* most, const textureReference* reference);
hipError_t hipTexRefSetAddress(size_t* offset, textureReference* reference, hipDeviceptr_t memory, size_t bytes);
hipError_t hipTexRefSetAddress2D(textureReference* reference, const HIP_ARRAY_DESCRIPTOR* channels,
                                 hipDeviceptr_t memory, size_t pitch);
hipError_t hipTexRefSetAddressMode(textureReference* reference, int dim, hipTextureAddressMode mode);
hipError_t hipTexRefSetArray(textureReference* reference, hipArray_const_t array, unsigned flags);
hipError_t hipTexRefSetBorderColor(textureReference* reference, float* border_color);
hipError_t hipTexRefSetFilterMode(textureReference* reference, hipTextureFilterMode mode);
hipError_t hipTexRefSetFlags(textureReference* reference, unsigned flags);
hipError_t hipTexRefSetFormat(textureReference* reference, hipArray_Format format, int channels);
hipError_t hipTexRefSetMaxAnisotropy(textureReference* reference, unsigned most);
hipError_t hipTexRefSetMipmapFilterMode(textureReference* reference, hipTextureFilterMode mode);
hipError_t hipTexRefSetMipmapLevelBias(textureReference* reference, float bias);
hipError_t hipTexRefSetMipmapLevelClamp(textureReference* reference, float least, float most);
hipError_t hipTexRefSetMipmappedArray(textureReference* reference, hipMipmappedArray* mipmap, unsigned flags);
hipError_t hipUnbindTexture(const textureReference* reference);
