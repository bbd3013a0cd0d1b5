// SPDX-License-Identifier: MIT
// AITER_LIKE_EXPORT: what TVM_FFI_DLL_EXPORT_TYPED_FUNC does, with one conversion per type of argument where that has
// one per argument, each of them inlined. The host half of paged attention, which has 44 arguments, takes 0.6 s instead
// of 2.5 on gfx942, and a call is no slower (op_tests/bench/bench_host.py).
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <tvm/ffi/function.h>

namespace aiter_like::ffi {

[[noreturn, gnu::noinline]] inline void refuse_argument(const char* function, int index, const std::string& accepted,
                                                        const std::string& got) {
  TVM_FFI_THROW(TypeError) << function << ": argument " << index << " must be " << accepted << ", got " << got;
  __builtin_unreachable();
}

/// Argument `index` of a call.
/// Throws TypeError for another type.
template <class T>
[[gnu::noinline]] T argument(const TVMFFIAny* args, int index, const char* function) {
  using Traits = tvm::ffi::TypeTraits<T>;
  std::optional<T> value = Traits::TryCastFromAnyView(args + index);
  if (!value.has_value()) {
    refuse_argument(function, index, Traits::TypeStr(), Traits::GetMismatchTypeInfo(args + index));
  }
  return *std::move(value);
}

template <class Return, class... Parameters, size_t... I>
void call_unpacked(Return (*function)(Parameters...), const char* name, const TVMFFIAny* args, TVMFFIAny* result,
                   std::index_sequence<I...>) {
  if constexpr (std::is_void_v<Return>) {
    function(argument<std::decay_t<Parameters>>(args, I, name)...);
  } else {
    *reinterpret_cast<tvm::ffi::Any*>(result) = function(argument<std::decay_t<Parameters>>(args, I, name)...);
  }
}

/// Calls `function`, named `name` in messages; returns what a function of tvm-ffi's C interface does.
template <class Return, class... Parameters>
int call_packed(Return (*function)(Parameters...), const char* name, const TVMFFIAny* args, int count,
                TVMFFIAny* result) {
  constexpr int kCount = sizeof...(Parameters);
  TVM_FFI_SAFE_CALL_BEGIN();
  if (count != kCount) TVM_FFI_THROW(TypeError) << name << " takes " << kCount << " arguments, got " << count;
  call_unpacked(function, name, args, result, std::index_sequence_for<Parameters...>{});
  TVM_FFI_SAFE_CALL_END();
}

using TypeText = std::string (*)();

inline int give_signature(const TypeText* types, int count, TVMFFIAny* result) {  // types: the returned one first
  TVM_FFI_SAFE_CALL_BEGIN();
  std::string schema = R"({"type":"ffi.Function","named_args":{"return":[)" + types[0]() + R"(],"params":[)";
  for (int i = 1; i < count; ++i) schema += (i == 1 ? "" : ",") + types[i]();
  schema += "]}}";
  const auto quoted = std::string(tvm::ffi::EscapeStringJSON(tvm::ffi::String(schema)));
  const std::string text = R"({"type_schema":)" + quoted + "}";
  const TVMFFIByteArray bytes{text.data(), text.size()};
  return TVMFFIStringFromByteArray(&bytes, result);
  TVM_FFI_SAFE_CALL_END();
}

/// A type as tvm-ffi writes it in JSON, by what every version of it names alike.
template <class T>
std::string type_text() {
  if constexpr (std::is_void_v<T>) {
    return R"({"type":"None"})";
  } else {
    return tvm::ffi::TypeTraits<std::decay_t<T>>::TypeSchema();
  }
}

/// The signature of `function` in `result`, as tvm-ffi's get_function_metadata reads it.
template <class Return, class... Parameters>
int give_signature_of(Return (*)(Parameters...), TVMFFIAny* result) {
  static constexpr TypeText kTypes[] = {&type_text<Return>, &type_text<Parameters>...};
  return give_signature(kTypes, 1 + sizeof...(Parameters), result);
}

}  // namespace aiter_like::ffi

#define AITER_LIKE_EXPORT(name, function)                                                                              \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi_##name(void*, const TVMFFIAny* args, int32_t count, TVMFFIAny* result) { \
    return aiter_like::ffi::call_packed(function, #name, args, count, result);                                         \
  }                                                                                                                    \
  extern "C" TVM_FFI_DLL_EXPORT int __tvm_ffi__metadata_##name(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result) {  \
    return aiter_like::ffi::give_signature_of(function, result);                                                       \
  }
