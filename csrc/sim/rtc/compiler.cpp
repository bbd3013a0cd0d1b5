// SPDX-License-Identifier: MIT
// The clang that hipRTC runs: which one, and how.
#include "compiler.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <mutex>

extern char** environ;

namespace sim::rtc {
namespace {

constexpr int kOldestClang = 19, kNewestClang = 30;

struct Told {
  std::mutex mutex;
  std::string compiler, rocm;
};

Told& told() {
  static Told* instance = new Told;
  return *instance;
}

bool is_executable(const std::string& path) { return access(path.c_str(), X_OK) == 0; }

}  // namespace

void set_compiler(const std::string& compiler, const std::string& rocm) {
  const std::lock_guard lock(told().mutex);
  told().compiler = compiler;
  told().rocm = rocm;
}

std::string find_device_library() {
  const char* variable = std::getenv("ROCM_PATH");
  const std::lock_guard lock(told().mutex);
  for (const std::string& folder : {told().rocm, std::string(variable ? variable : "")}) {
    if (!folder.empty() && access((folder + "/amdgcn/bitcode/ocml.bc").c_str(), R_OK) == 0) return folder;
  }
  return "";
}

std::string find_compiler() {
  {
    const std::lock_guard lock(told().mutex);
    if (!told().compiler.empty()) return told().compiler;
  }
  std::vector<std::string> folders;
  for (const char* name : {"HIP_CLANG_PATH", "PATH"}) {
    const char* value = std::getenv(name);
    std::string text = value ? value : "";
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find(':', at), text.size());
      if (end > at) folders.push_back(text.substr(at, end - at));
      at = end + 1;
    }
  }
  for (int major = kNewestClang; major >= kOldestClang; --major) {
    for (const std::string& folder : folders) {
      const std::string path = folder + "/clang++-" + std::to_string(major);
      if (is_executable(path)) return path;
    }
  }
  for (const std::string& folder : folders) {
    if (is_executable(folder + "/clang++")) return folder + "/clang++";
  }
  return "";
}

std::string read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool run(const std::vector<std::string>& command, const fs::path& folder, std::string& log) {
  const fs::path output = folder / "log";
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t child = 0;
  const int failed = posix_spawn(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 1;
  if (failed) log += std::string("cannot run ") + arguments[0] + ": " + std::strerror(failed) + "\n";
  while (!failed && waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  log += read(output);
  return !failed && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace sim::rtc
