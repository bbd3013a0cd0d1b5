// SPDX-License-Identifier: MIT
// hipRTC's linker: bitcode of several programs becomes one code object for gfx942, by the clang that is found.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>

#include "../hip/handles.h"
#include "rtc.h"

namespace sim::rtc {
namespace {

constexpr int kBitcode = 100, kBundledBitcode = 101;     // hipJitInputType: the kinds that are AMD's
constexpr char kBundleMagic[] = "__CLANG_OFFLOAD_BUNDLE__";

struct Link {
  std::vector<std::string> inputs;
  std::string code;
};

Link* find(void* handle) { return hip::live<Link>().has(handle) ? static_cast<Link*>(handle) : nullptr; }

std::optional<std::uint64_t> number_at(const std::string& text, std::size_t at) {
  std::uint64_t number = 0;
  if (at > text.size() || text.size() - at < sizeof number) return std::nullopt;
  std::memcpy(&number, text.data() + at, sizeof number);
  return number;
}

// The part of a bundle that is for gfx942; empty when it has none, or is damaged.
std::string unbundled(const std::string& bundle) {
  std::size_t at = sizeof kBundleMagic - 1;
  if (bundle.compare(0, at, kBundleMagic) != 0) return bundle;
  const auto count = number_at(bundle, at);
  at += 8;
  for (std::uint64_t i = 0; count && i < *count; ++i) {
    const auto offset = number_at(bundle, at), bytes = number_at(bundle, at + 8), length = number_at(bundle, at + 16);
    if (!length || *length > bundle.size() || at + 24 + *length > bundle.size()) return "";
    const std::string target = bundle.substr(at + 24, *length);
    at += 24 + *length;
    if (target.find("gfx942") == std::string::npos) continue;
    return *offset <= bundle.size() && *bytes <= bundle.size() - *offset ? bundle.substr(*offset, *bytes) : "";
  }
  return "";
}

int add(void* handle, int kind, const std::string& data) {
  Link* link = find(handle);
  if (!link || (kind != kBitcode && kind != kBundledBitcode)) return kInvalidInput;
  std::string bitcode = unbundled(data);
  if (bitcode.compare(0, 2, "BC") != 0) return kCreationFailure;
  link->inputs.push_back(std::move(bitcode));
  return kSuccess;
}

bool link_in(Link& link, const fs::path& folder, std::string& log) {
  const std::string compiler = find_compiler(), code = (folder / "code").string();
  if (compiler.empty()) {
    log = "hipRTC needs clang++ 19 or later in PATH or HIP_CLANG_PATH";
    return false;
  }
  std::vector<std::string> command{compiler, "--target=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-nogpulib", "-O3", "-x",
                                   "ir"};
  for (std::size_t i = 0; i < link.inputs.size(); ++i) {
    const std::string path = (folder / (std::to_string(i) + ".bc")).string();
    if (std::FILE* file = std::fopen(path.c_str(), "wb")) {
      std::fwrite(link.inputs[i].data(), 1, link.inputs[i].size(), file);
      std::fclose(file);
    }
    if (i > 0) command.insert(command.end(), {"-Xclang", "-mlink-bitcode-file", "-Xclang"});
    command.push_back(path);
  }
  command.insert(command.end(), {"-o", code});
  if (!run(command, folder, log)) return false;
  link.code = read(code);
  return true;
}

}  // namespace

RTC_API int hiprtcLinkCreate(unsigned, void*, void**, void** out) {
  if (!out) return kInvalidInput;
  auto* link = new Link;
  hip::live<Link>().add(link);
  *out = link;
  return kSuccess;
}

RTC_API int hiprtcLinkAddData(void* handle, int kind, const void* image, std::size_t bytes, const char*, unsigned,
                              void*, void**) {
  if (!image || bytes == 0) return kInvalidInput;
  return add(handle, kind, std::string(static_cast<const char*>(image), bytes));
}

RTC_API int hiprtcLinkAddFile(void* handle, int kind, const char* path, unsigned, void*, void**) {
  if (!path) return kInvalidInput;
  const std::string data = read(path);
  return data.empty() ? kCreationFailure : add(handle, kind, data);
}

// What does not link is said on stderr: there is no call for the log.
RTC_API int hiprtcLinkComplete(void* handle, void** out, std::size_t* bytes) {
  Link* link = find(handle);
  if (!link || !out || !bytes || link->inputs.empty()) return kInvalidInput;
  char folder[] = "/tmp/hiprtc-XXXXXX";
  if (!mkdtemp(folder)) return kInternal;
  std::string log;
  const bool done = link_in(*link, folder, log);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  if (!done) {
    std::fprintf(stderr, "simulated MI300X: hiprtcLinkComplete: %s\n", log.c_str());
    return kLinking;
  }
  *out = link->code.data();
  *bytes = link->code.size();
  return kSuccess;
}

RTC_API int hiprtcLinkDestroy(void* handle) {
  if (!hip::live<Link>().drop(handle)) return kInvalidInput;
  delete static_cast<Link*>(handle);
  return kSuccess;
}

}  // namespace sim::rtc
