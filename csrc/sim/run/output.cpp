// SPDX-License-Identifier: MIT
// No lock is held while text is shown: who shows it may wait for a thread that waits for a lock.
#include "run/output.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <utility>

namespace sim {
namespace {

int show_on_console(int is_error, const char* text, u64 bytes) {
  std::FILE* to = is_error ? stderr : stdout;
  std::fwrite(text, 1, bytes, to);
  std::fflush(to);
  return 0;
}

std::atomic<ShowOutput> show{show_on_console};

}  // namespace

void set_show_output(ShowOutput other) { show = other ? other : show_on_console; }

void LaunchOutput::add(u64 workgroup, bool is_error, std::string text) {
  if (text.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    std::vector<Piece>& pieces = kept_[workgroup];
    if (!pieces.empty() && pieces.back().is_error == is_error) pieces.back().text += text;
    else pieces.push_back({is_error, std::move(text)});
  }
  show_ready(false);
}

void LaunchOutput::ended(u64 workgroup) {
  {
    const std::lock_guard lock(mutex_);
    ended_.insert(workgroup);
    for (auto first = ended_.begin(); first != ended_.end() && *first == next_; ++next_) first = ended_.erase(first);
  }
  show_ready(false);
}

void LaunchOutput::finish() {
  show_ready(true);
  if (std::this_thread::get_id() == owner_ && std::exchange(interrupted_, false)) std::raise(SIGINT);
}

void LaunchOutput::show_ready(bool all) {
  if (std::this_thread::get_id() != owner_) return;
  std::vector<Piece> ready;
  {
    const std::lock_guard lock(mutex_);
    while (!kept_.empty() && (all || kept_.begin()->first <= next_)) {
      for (Piece& piece : kept_.begin()->second) ready.push_back(std::move(piece));
      kept_.erase(kept_.begin());
    }
  }
  for (const Piece& piece : ready)
    if (show.load()(piece.is_error, piece.text.data(), piece.text.size())) interrupted_ = true;
}

}  // namespace sim
