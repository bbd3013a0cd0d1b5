// SPDX-License-Identifier: MIT
// hipRTC: a program's text becomes a code object for gfx942, by the clang that is found. hip/hip_runtime.h and
// hip/hip_bfloat16.h of csrc/sim/include stand before each program. Functions of the device library link where a layout
// of ROCm has it.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "../hip/handles.h"
#include "compiler.h"
#include "headers.h"

#define RTC_API extern "C" __attribute__((visibility("default")))

namespace sim::rtc {
namespace {

enum Result : int {                              // hiprtcResult
  kSuccess = 0, kCreationFailure = 2, kInvalidInput = 3, kInvalidProgram = 4, kInvalidOption = 5, kCompilation = 6,
  kNamesAfterCompilation = 8, kNamesBeforeCompilation = 9, kInvalidName = 10, kInternal = 11, kLinking = 100,
};

constexpr int kMajor = 7, kMinor = 1;

struct Program {
  std::string name, source, log, code;
  std::map<std::string, std::string> headers;
  std::vector<std::string> expressions;
  std::map<std::string, std::string> lowered;
  bool is_compiled = false;
};

Program* find(void* handle) { return hip::live<Program>().has(handle) ? static_cast<Program*>(handle) : nullptr; }

// hipRTC's own options, and those that would have clang do something else than it is asked to, are left out.
void add_options(std::vector<std::string>& command, int count, const char* const* options) {
  std::string arch = "gfx942";
  for (int i = 0; i < count; ++i) {
    const std::string option = options[i] ? options[i] : "";
    bool is_own = option.empty() || option == "-hip-pch";      // the latter is hipRTC's of old
    for (const char* name : {"--gpu-architecture=", "--offload-arch=", "-arch="}) {
      if (option.rfind(name, 0) != 0) continue;
      arch = option.substr(std::strlen(name));
      is_own = true;
    }
    if (!is_own) command.push_back(option);
  }
  command.push_back("--offload-arch=" + arch.substr(0, arch.find(':')));
}

// The text that makes the compiler instantiate and name what the program has asked for.
std::string named(const Program& p) {
  std::string text;
  for (size_t i = 0; i < p.expressions.size(); ++i) {
    const size_t first = p.expressions[i].find_first_not_of(" \t\n");      // a variable's has its own &
    const char* address_of = first != std::string::npos && p.expressions[i][first] == '&' ? "" : "&";
    text += "\nextern \"C\" __attribute__((device, used)) const void* const hiprtc_name_" + std::to_string(i) +
            " = reinterpret_cast<const void*>(" + address_of + p.expressions[i] + ");";
  }
  return text + "\n";
}

// In LLVM's text, the names that those variables hold.
bool read_names(Program& p, const std::string& text) {
  for (size_t i = 0; i < p.expressions.size(); ++i) {
    const std::regex line("@hiprtc_name_" + std::to_string(i) + " = [^\\n]*?@(?:\"([^\"]+)\"|([\\w.$]+))");
    std::smatch found;
    if (!std::regex_search(text, found, line)) return false;
    p.lowered[p.expressions[i]] = found[1].matched ? found[1].str() : found[2].str();
  }
  return true;
}

Result compile(Program& p, int count, const char* const* options, const fs::path& folder) {
  for (int i = 0; i < count; ++i) {
    if (!options[i] || std::strcmp(options[i], "-fgpu-rdc") != 0) continue;
    p.log = "-fgpu-rdc is not simulated: links of bitcode\n";
    return kInvalidOption;
  }
  const std::string compiler = find_compiler();
  if (compiler.empty()) {
    p.log = "hipRTC needs clang++ 19 or later in PATH or HIP_CLANG_PATH\n";
    return kCompilation;
  }
  for (const auto& [name, text] : p.headers) {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name) << text;
  }
  const char* text = kTexts;
  for (const char* name : kNames) {
    fs::create_directories((folder / name).parent_path());
    std::ofstream(folder / name) << text;
    text += std::strlen(text) + 1;
  }
  std::ofstream(folder / "program.hip") << "#line 1 \"" << p.name << "\"\n" << p.source << named(p);
  const std::string rocm = find_device_library();
  std::vector<std::string> command{compiler, "-x", "hip", "--offload-device-only", "--no-gpu-bundle-output",
                                   "-nogpuinc", rocm.empty() ? "-nogpulib" : "--rocm-path=" + rocm, "-O3",
                                   "-std=c++17", "-D__HIPCC_RTC__=1", "-I" + folder.string(), "-include",
                                   "hip/hip_runtime.h", "-include", "hip/hip_bfloat16.h"};
  add_options(command, count, options);
  const auto with = [&](std::initializer_list<std::string> more) {
    std::vector<std::string> all = command;
    all.insert(all.end(), more);
    all.push_back((folder / "program.hip").string());
    return all;
  };
  if (!run(with({"-c", "-o", (folder / "code").string()}), folder, p.log)) return kCompilation;
  p.code = read(folder / "code");
  if (p.expressions.empty()) return kSuccess;
  std::string ignored;
  if (!run(with({"-S", "-emit-llvm", "-o", (folder / "text").string()}), folder, ignored)) return kCompilation;
  return read_names(p, read(folder / "text")) ? kSuccess : kInvalidName;
}

template <class Body>
int with_program(void* handle, Body&& body) {
  Program* program = find(handle);
  return program ? body(*program) : kInvalidProgram;
}

int give(const std::string& text, char* out, size_t extra) {
  if (!out) return kInvalidInput;
  std::memcpy(out, text.c_str(), text.size() + extra);
  return kSuccess;
}

}  // namespace

// The compiler that the process has found already, and a folder laid out as ROCm's.
RTC_API void aiter_like_sim_rtc_compiler(const char* path, const char* rocm) {
  set_compiler(path, rocm);
}

RTC_API int hiprtcVersion(int* major, int* minor) {
  if (!major || !minor) return kInvalidInput;
  *major = kMajor;
  *minor = kMinor;
  return kSuccess;
}

RTC_API const char* hiprtcGetErrorString(int result) {
  switch (result) {
    case kSuccess: return "HIPRTC_SUCCESS";
    case 1: return "HIPRTC_ERROR_OUT_OF_MEMORY";
    case kCreationFailure: return "HIPRTC_ERROR_PROGRAM_CREATION_FAILURE";
    case kInvalidInput: return "HIPRTC_ERROR_INVALID_INPUT";
    case kInvalidProgram: return "HIPRTC_ERROR_INVALID_PROGRAM";
    case kInvalidOption: return "HIPRTC_ERROR_INVALID_OPTION";
    case kCompilation: return "HIPRTC_ERROR_COMPILATION";
    case 7: return "HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE";
    case kNamesAfterCompilation: return "HIPRTC_ERROR_NO_NAME_EXPRESSIONS_AFTER_COMPILATION";
    case kNamesBeforeCompilation: return "HIPRTC_ERROR_NO_LOWERED_NAMES_BEFORE_COMPILATION";
    case kInvalidName: return "HIPRTC_ERROR_NAME_EXPRESSION_NOT_VALID";
    case kLinking: return "HIPRTC_ERROR_LINKING";
    default: return "HIPRTC_ERROR_INTERNAL_ERROR";
  }
}

RTC_API int hiprtcCreateProgram(void** out, const char* source, const char* name, int num_headers,
                                const char* const* headers, const char* const* header_names) {
  if (!out || !source || num_headers < 0 || (num_headers && (!headers || !header_names))) return kInvalidInput;
  auto* program = new Program;
  program->source = source;
  program->name = name && *name ? name : "program";
  for (int i = 0; i < num_headers; ++i) {
    const fs::path path = fs::path(header_names[i]).lexically_normal();
    if (path.is_absolute() || path.string().rfind("..", 0) == 0) {   // it is written below a folder of its own
      delete program;
      return kCreationFailure;
    }
    program->headers[path.string()] = headers[i];
  }
  hip::live<Program>().add(program);
  *out = program;
  return kSuccess;
}

RTC_API int hiprtcDestroyProgram(void** handle) {
  if (!handle) return kInvalidInput;
  if (!hip::live<Program>().drop(*handle)) return kInvalidProgram;
  delete static_cast<Program*>(*handle);
  *handle = nullptr;
  return kSuccess;
}

RTC_API int hiprtcAddNameExpression(void* handle, const char* expression) {
  if (!expression) return kInvalidInput;
  return with_program(handle, [&](Program& p) {
    if (p.is_compiled) return kNamesAfterCompilation;
    p.expressions.push_back(expression);
    return kSuccess;
  });
}

RTC_API int hiprtcCompileProgram(void* handle, int count, const char* const* options) {
  return with_program(handle, [&](Program& p) -> Result {
    if (count < 0 || (count && !options)) return kInvalidInput;
    char folder[] = "/tmp/hiprtc-XXXXXX";
    if (!mkdtemp(folder)) return kInternal;
    p.is_compiled = true;
    p.log.clear();
    p.code.clear();
    Result result = kInternal;
    try {
      result = compile(p, count, options, folder);
    } catch (const std::exception& error) {
      p.log += error.what();
    }
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    return result;
  });
}

RTC_API int hiprtcGetLoweredName(void* handle, const char* expression, const char** out) {
  if (!expression || !out) return kInvalidInput;
  return with_program(handle, [&](Program& p) {
    if (!p.is_compiled) return kNamesBeforeCompilation;
    const auto found = p.lowered.find(expression);
    if (found == p.lowered.end()) return kInvalidName;
    *out = found->second.c_str();
    return kSuccess;
  });
}

RTC_API int hiprtcGetProgramLogSize(void* handle, size_t* bytes) {
  if (!bytes) return kInvalidInput;
  return with_program(handle, [&](Program& p) {
    *bytes = p.log.empty() ? 0 : p.log.size() + 1;
    return kSuccess;
  });
}
RTC_API int hiprtcGetProgramLog(void* handle, char* out) {
  return with_program(handle, [&](Program& p) { return give(p.log, out, 1); });
}
RTC_API int hiprtcGetCodeSize(void* handle, size_t* bytes) {
  if (!bytes) return kInvalidInput;
  return with_program(handle, [&](Program& p) {
    *bytes = p.code.size();
    return p.code.empty() ? kInvalidProgram : kSuccess;
  });
}
RTC_API int hiprtcGetCode(void* handle, char* out) {
  return with_program(handle, [&](Program& p) { return p.code.empty() ? kInvalidProgram : give(p.code, out, 0); });
}

// These exist so that no program dies of a missing symbol. Their arguments are not read, so none is declared.
#define AITER_LIKE_NO_LINK(function)                                                                             \
  RTC_API int function() {                                                                                       \
    static std::atomic<bool> told{false};                                                                        \
    if (!told.exchange(true)) {                                                                                  \
      std::fputs("simulated MI300X: " #function " is not simulated: links of bitcode\n", stderr);                \
    }                                                                                                            \
    return kInternal;                                                                                            \
  }
AITER_LIKE_NO_LINK(hiprtcGetBitcode)
AITER_LIKE_NO_LINK(hiprtcGetBitcodeSize)
AITER_LIKE_NO_LINK(hiprtcLinkAddData)
AITER_LIKE_NO_LINK(hiprtcLinkAddFile)
AITER_LIKE_NO_LINK(hiprtcLinkComplete)
AITER_LIKE_NO_LINK(hiprtcLinkCreate)
AITER_LIKE_NO_LINK(hiprtcLinkDestroy)

}  // namespace sim::rtc
