// SPDX-License-Identifier: MIT
// The signal handlers. A signal outside a simulated wave belongs to others: the handler restores the previous action,
// and the faulting instruction runs again into it.
#include "run/traps.h"

#include <signal.h>

#include <atomic>
#include <cstdio>
#include <mutex>

namespace sim {

thread_local Trap* active_trap = nullptr;

namespace {

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE};
struct sigaction previous[3];
std::atomic<int> passed_on{0};

void handle(int signal, siginfo_t* info, void*) {
  if (Trap* trap = active_trap) {
    active_trap = nullptr;
    trap->signal = signal;
    trap->address = info->si_code == SI_KERNEL ? 0 : reinterpret_cast<u64>(info->si_addr);
    siglongjmp(trap->resume, 1);
  }
  // A previous handler that puts ours back and raises again would loop, so the second time the default action is
  // restored, which ends the process.
  struct sigaction next = {};
  next.sa_handler = SIG_DFL;
  for (int i = 0; i < 3; ++i) {
    if (kSignals[i] == signal && passed_on.fetch_add(1) == 0) next = previous[i];
  }
  sigaction(signal, &next, nullptr);
}

}  // namespace

void install_traps() {
  static std::mutex mutex;
  for (int i = 0; i < 3; ++i) {
    struct sigaction now;
    sigaction(kSignals[i], nullptr, &now);
    if (now.sa_flags & SA_SIGINFO && now.sa_sigaction == handle) continue;
    const std::lock_guard lock(mutex);
    previous[i] = now;
    struct sigaction ours = {};
    ours.sa_sigaction = handle;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(kSignals[i], &ours, nullptr);
  }
}

std::string describe(const Trap& trap) {
  if (trap.signal == SIGFPE) return "the host raised an arithmetic exception";
  if (trap.address == 0) return "wild memory access to a null or non-canonical address";
  char text[64];
  const auto address = static_cast<unsigned long long>(trap.address);
  std::snprintf(text, sizeof text, "wild memory access at address 0x%llx", address);
  return text;
}

}  // namespace sim
