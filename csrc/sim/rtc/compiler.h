// SPDX-License-Identifier: MIT
// The clang that hipRTC runs.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace sim::rtc {

namespace fs = std::filesystem;

// The compiler that the process has found already, and a folder laid out as ROCm's.
void set_compiler(const std::string& compiler, const std::string& rocm);
// The one that was set, else the newest clang++ by its name, in HIP_CLANG_PATH and then in PATH; "" = none.
std::string find_compiler();
// The folder that was set, or ROCM_PATH, where it has the device library; "" = none has it.
std::string find_device_library();
// The whole file; "" where it cannot be read.
std::string read(const fs::path& path);
// Runs a command in `folder`, its output appended to `log`; whether it ended well.
bool run(const std::vector<std::string>& command, const fs::path& folder, std::string& log);

}  // namespace sim::rtc
