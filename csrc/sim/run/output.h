// SPDX-License-Identifier: MIT
// Text that kernels print, on its way to whoever shows it: workgroup by workgroup, in the order of the grid.
#pragma once
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "types.h"

namespace sim {

// Shows a piece of text that ends where a message ends; `is_error`: it is for stderr. The thread that made the launch
// calls it, while that runs. A result other than 0 says that an interrupt (SIGINT) ended it; the interrupt comes again
// when the launch is over.
using ShowOutput = int (*)(int is_error, const char* text, u64 bytes);
void set_show_output(ShowOutput show);         // null: the C library's stdout and stderr

// Orders the text of one launch. A workgroup's is shown as it comes when those before it have ended and the thread that
// made the launch runs it; until then it is kept.
class LaunchOutput {
 public:
  // Adds text of the workgroup with this number in the grid.
  void add(u64 workgroup, bool is_error, std::string text);
  void ended(u64 workgroup);                   // or it does not run at all
  // The launch is over, by whatever reason: shows what is left and passes an interrupt on.
  void finish();

 private:
  struct Piece {
    bool is_error;
    std::string text;
  };
  void show_ready(bool all);

  const std::thread::id owner_ = std::this_thread::get_id();
  bool interrupted_ = false;                   // the owner's
  std::mutex mutex_;                           // guards what follows
  u64 next_ = 0;                               // the first workgroup that has not ended
  std::set<u64> ended_;                        // those after it that have
  std::map<u64, std::vector<Piece>> kept_;
};

}  // namespace sim
