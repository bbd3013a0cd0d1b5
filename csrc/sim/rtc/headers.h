// SPDX-License-Identifier: MIT
// The headers of device code as text, which stand before each program of hipRTC or may be included by one. Those of the
// runtime are for the host.
#pragma once

struct Header {
  const char *name, *text;
};

constexpr char kDetailAtomics[] = {
#embed "../include/hip/detail/atomics.h"
    , '\0'};
constexpr char kDetailCallersLinesBegin[] = {
#embed "../include/hip/detail/callers_lines_begin.h"
    , '\0'};
constexpr char kDetailCallersLinesEnd[] = {
#embed "../include/hip/detail/callers_lines_end.h"
    , '\0'};
constexpr char kDetailConversions[] = {
#embed "../include/hip/detail/conversions.h"
    , '\0'};
constexpr char kDetailCoordinates[] = {
#embed "../include/hip/detail/coordinates.h"
    , '\0'};
constexpr char kDetailDeviceLibrary[] = {
#embed "../include/hip/detail/device_library.h"
    , '\0'};
constexpr char kDetailHalf[] = {
#embed "../include/hip/detail/half.h"
    , '\0'};
constexpr char kDetailHalfMore[] = {
#embed "../include/hip/detail/half_more.h"
    , '\0'};
constexpr char kDetailIntegers[] = {
#embed "../include/hip/detail/integers.h"
    , '\0'};
constexpr char kDetailLanes[] = {
#embed "../include/hip/detail/lanes.h"
    , '\0'};
constexpr char kDetailLanguage[] = {
#embed "../include/hip/detail/language.h"
    , '\0'};
constexpr char kDetailPrintf[] = {
#embed "../include/hip/detail/printf.h"
    , '\0'};
constexpr char kDetailShortFloats[] = {
#embed "../include/hip/detail/short_floats.h"
    , '\0'};
constexpr char kDetailSynchronisation[] = {
#embed "../include/hip/detail/synchronisation.h"
    , '\0'};
constexpr char kDetailTraits[] = {
#embed "../include/hip/detail/traits.h"
    , '\0'};
constexpr char kDetailVectors[] = {
#embed "../include/hip/detail/vectors.h"
    , '\0'};
constexpr char kDetailWave[] = {
#embed "../include/hip/detail/wave.h"
    , '\0'};
constexpr char kDeviceFunctions[] = {
#embed "../include/hip/device_functions.h"
    , '\0'};
constexpr char kHipBf16[] = {
#embed "../include/hip/hip_bf16.h"
    , '\0'};
constexpr char kHipBfloat16[] = {
#embed "../include/hip/hip_bfloat16.h"
    , '\0'};
constexpr char kHipCommon[] = {
#embed "../include/hip/hip_common.h"
    , '\0'};
constexpr char kHipComplex[] = {
#embed "../include/hip/hip_complex.h"
    , '\0'};
constexpr char kHipCooperativeGroups[] = {
#embed "../include/hip/hip_cooperative_groups.h"
    , '\0'};
constexpr char kHipFp16[] = {
#embed "../include/hip/hip_fp16.h"
    , '\0'};
constexpr char kHipFp8[] = {
#embed "../include/hip/hip_fp8.h"
    , '\0'};
constexpr char kHipMathConstants[] = {
#embed "../include/hip/hip_math_constants.h"
    , '\0'};
constexpr char kHipRuntime[] = {
#embed "../include/hip/hip_runtime.h"
    , '\0'};
constexpr char kHipVectorTypes[] = {
#embed "../include/hip/hip_vector_types.h"
    , '\0'};
constexpr char kHipVersion[] = {
#embed "../include/hip/hip_version.h"
    , '\0'};
constexpr char kLibraryTypes[] = {
#embed "../include/hip/library_types.h"
    , '\0'};
constexpr char kMathFunctions[] = {
#embed "../include/hip/math_functions.h"
    , '\0'};

constexpr Header kHeaders[] = {
    {"hip/detail/atomics.h", kDetailAtomics},
    {"hip/detail/callers_lines_begin.h", kDetailCallersLinesBegin},
    {"hip/detail/callers_lines_end.h", kDetailCallersLinesEnd},
    {"hip/detail/conversions.h", kDetailConversions},
    {"hip/detail/coordinates.h", kDetailCoordinates},
    {"hip/detail/device_library.h", kDetailDeviceLibrary},
    {"hip/detail/half.h", kDetailHalf},
    {"hip/detail/half_more.h", kDetailHalfMore},
    {"hip/detail/integers.h", kDetailIntegers},
    {"hip/detail/lanes.h", kDetailLanes},
    {"hip/detail/language.h", kDetailLanguage},
    {"hip/detail/printf.h", kDetailPrintf},
    {"hip/detail/short_floats.h", kDetailShortFloats},
    {"hip/detail/synchronisation.h", kDetailSynchronisation},
    {"hip/detail/traits.h", kDetailTraits},
    {"hip/detail/vectors.h", kDetailVectors},
    {"hip/detail/wave.h", kDetailWave},
    {"hip/device_functions.h", kDeviceFunctions},
    {"hip/hip_bf16.h", kHipBf16},
    {"hip/hip_bfloat16.h", kHipBfloat16},
    {"hip/hip_common.h", kHipCommon},
    {"hip/hip_complex.h", kHipComplex},
    {"hip/hip_cooperative_groups.h", kHipCooperativeGroups},
    {"hip/hip_fp16.h", kHipFp16},
    {"hip/hip_fp8.h", kHipFp8},
    {"hip/hip_math_constants.h", kHipMathConstants},
    {"hip/hip_runtime.h", kHipRuntime},
    {"hip/hip_vector_types.h", kHipVectorTypes},
    {"hip/hip_version.h", kHipVersion},
    {"hip/library_types.h", kLibraryTypes},
    {"hip/math_functions.h", kMathFunctions},
};
