// SPDX-License-Identifier: MIT
// What the files of hipRTC share: results, the clang that is found, and how it is run.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#define RTC_API extern "C" __attribute__((visibility("default")))

namespace sim::rtc {

namespace fs = std::filesystem;

enum Result : int {                              // hiprtcResult
  kSuccess = 0, kCreationFailure = 2, kInvalidInput = 3, kInvalidProgram = 4, kCompilation = 6,
  kNamesAfterCompilation = 8, kNamesBeforeCompilation = 9, kInvalidName = 10, kInternal = 11, kLinking = 100,
};

std::string find_compiler();                     // "" = none
std::string read(const fs::path& path);
// Runs a command in `folder`, its output appended to `log`; whether it ended well.
bool run(const std::vector<std::string>& command, const fs::path& folder, std::string& log);

}  // namespace sim::rtc
