// SPDX-License-Identifier: MIT
// Bitcode of several programs becomes one code object for gfx942: what is behind hiprtcLink* and hipLink*.
#pragma once
#include <string>
#include <vector>

namespace sim::rtc {

class Linker {
 public:
  enum class Added { kYes, kUnknownKind, kNoBitcode };

  // The options of both interfaces, numbered alike; false: a value is missing, or the level is none.
  bool configure(unsigned count, const int* options, void* const* values);
  // `kind` is a hipJitInputType.
  Added add(int kind, const std::string& data);
  bool is_empty() const { return inputs_.empty(); }
  // False: it does not link, and `log` has the compiler's words.
  bool complete(std::string& log);
  std::string& code() { return code_; }

 private:
  bool run_in(const std::string& folder, std::string& log);

  std::vector<std::string> inputs_, options_;
  int level_ = 3;
  std::string code_;
};

}  // namespace sim::rtc
