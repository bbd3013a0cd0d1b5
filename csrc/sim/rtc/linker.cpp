// SPDX-License-Identifier: MIT
// Bitcode is linked by the clang that is found, which makes machine code of the whole. It is part of the runtime's
// library and of hipRTC's.
#include "linker.h"

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "compiler.h"

namespace sim::rtc {
namespace {

enum Kind : int { kBitcode = 100, kBundledBitcode = 101, kArchive = 102 };   // hipJitInputType: those that are AMD's
enum Option : int { kLevel = 7, kCompilerOptions = 10000, kNumCompilerOptions = 10001 };     // hipJitOption

constexpr unsigned kMostOptions = 64;  // hipJitOption has half as many: more are no count

constexpr char kBundleMagic[] = "__CLANG_OFFLOAD_BUNDLE__", kArchiveMagic[] = "!<arch>\n";

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

// The files of an archive without its index and its table of long names; none when it is damaged.
std::vector<std::string> members(const std::string& archive) {
  constexpr std::size_t kHead = 60, kBytesAt = 48, kBytesDigits = 10;
  std::vector<std::string> found;
  std::size_t at = sizeof kArchiveMagic - 1;
  if (archive.compare(0, at, kArchiveMagic) != 0) return {};
  while (at + kHead <= archive.size()) {
    const std::string name = archive.substr(at, 16);
    const auto bytes = std::strtoull(archive.substr(at + kBytesAt, kBytesDigits).c_str(), nullptr, 10);
    at += kHead;
    if (bytes > archive.size() - at) return {};
    const bool is_table = name.rfind("/ ", 0) == 0 || name.rfind("// ", 0) == 0 || name.rfind("/SYM64/", 0) == 0;
    if (!is_table) found.push_back(archive.substr(at, bytes));
    at += bytes + bytes % 2;
  }
  return found;
}

bool is_bitcode(const std::string& data) {
  return data.compare(0, 4, "BC\xC0\xDE") == 0 || data.compare(0, 4, "\xDE\xC0\x17\x0B") == 0;
}

// LLVM's text, which the kind "bitcode" stands for as well.
bool is_ir_text(const std::string& data) {
  return data.find('\0') == std::string::npos && data.find("target triple = \"amdgcn") != std::string::npos;
}

}  // namespace

bool Linker::configure(unsigned count, const int* options, void* const* values) {
  if (count > kMostOptions || (count && (!options || !values))) return false;
  const char* const* words = nullptr;
  std::size_t num_words = 0;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] == kLevel) level_ = static_cast<int>(reinterpret_cast<std::intptr_t>(values[i]));
    if (options[i] == kCompilerOptions) words = static_cast<const char* const*>(values[i]);
    if (options[i] == kNumCompilerOptions) num_words = reinterpret_cast<std::size_t>(values[i]);
  }
  if (level_ < 0 || level_ > 3 || (num_words && !words)) return false;
  for (std::size_t i = 0; i < num_words; ++i) options_.push_back(words[i] ? words[i] : "");
  return true;
}

Linker::Added Linker::add(int kind, const std::string& data) {
  if (kind != kBitcode && kind != kBundledBitcode && kind != kArchive) return Added::kUnknownKind;
  std::vector<std::string> found;
  for (const std::string& member : kind == kArchive ? members(data) : std::vector{data}) {
    found.push_back(unbundled(member));
    if (!is_bitcode(found.back()) && !is_ir_text(found.back())) return Added::kNoBitcode;
  }
  if (found.empty()) return Added::kNoBitcode;
  inputs_.insert(inputs_.end(), found.begin(), found.end());
  return Added::kYes;
}

bool Linker::complete(std::string& log) {
  char folder[] = "/tmp/hiprtc-XXXXXX";
  if (!mkdtemp(folder)) {
    log = "no folder can be made in /tmp";
    return false;
  }
  const bool done = run_in(folder, log);
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return done;
}

bool Linker::run_in(const std::string& folder, std::string& log) {
  const std::string compiler = find_compiler(), code = folder + "/code";
  if (compiler.empty()) {
    log = "linking bitcode needs clang++ 19 or later in PATH or HIP_CLANG_PATH";
    return false;
  }
  std::vector<std::string> command{compiler, "--target=amdgcn-amd-amdhsa", "-mcpu=gfx942", "-nogpulib",
                                   "-O" + std::to_string(level_), "-x", "ir"};
  command.insert(command.end(), options_.begin(), options_.end());
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const std::string path = folder + "/" + std::to_string(i) + ".bc";
    if (std::FILE* file = std::fopen(path.c_str(), "wb")) {
      std::fwrite(inputs_[i].data(), 1, inputs_[i].size(), file);
      std::fclose(file);
    }
    if (i > 0) command.insert(command.end(), {"-Xclang", "-mlink-bitcode-file", "-Xclang"});
    command.push_back(path);
  }
  command.insert(command.end(), {"-o", code});
  if (!run(command, folder, log)) return false;
  code_ = read(code);
  return true;
}

}  // namespace sim::rtc
