// SPDX-License-Identifier: MIT
// From a request to a grid: its state, its observers, its threads.
#include "run/run.h"

#include <memory>

#include "report.h"
#include "run/failure.h"
#include "run/grid.h"
#include "run/hostcall.h"
#include "run/launch_state.h"
#include "run/observers.h"
#include "run/slot.h"
#include "run/traps.h"
#include "run/workers.h"
#include "settings.h"

namespace sim {
namespace {

// Records why a launch does not start; the text of its exception.
std::string refused(const Kernel& kernel, const std::string& why) {
  Report r = refusal(kernel, why);
  r.refused = true;
  add_report(r);
  return r.message;
}

// Shows the rest of a kernel's printing when the launch is over, however it ends.
struct ShowsRest {
  HostCalls* host;
  ~ShowsRest() {
    if (host) host->output.finish();
  }
};

std::unique_ptr<LaunchState> make_state(const LaunchRequest& request) {
  try {
    return std::make_unique<LaunchState>(request);
  } catch (const BadShape& fault) {
    throw BadShape(refused(*request.kernel, fault.what()));
  } catch (const Fault& fault) {
    throw Refusal(refused(*request.kernel, fault.what()));
  }
}

}  // namespace

void check_launch(const LaunchRequest& request) { make_state(request); }

void run_kernel(const LaunchRequest& request) {
  const Settings now = settings();
  if (!now.error.empty()) throw Refusal(refused(*request.kernel, now.error));
  const std::unique_ptr<LaunchState> state = make_state(request);
  if (now.dry) return;
  Launch& launch = state->launch;
  launch.instruction_limit = now.instruction_limit;
  std::unique_ptr<LaunchObserver> observer;
  u64 limit = 0;
  try {
    state->open_host(resident_limit(launch, request.cooperative));
    observer = observers_of(launch, now.checks);
    launch.observer = observer.get();
    limit = resident_limit(launch, request.cooperative);
  } catch (const Fault& fault) {
    throw Refusal(refused(*request.kernel, fault.what()));
  }
  install_traps();
  const ShowsRest rest{launch.host};
  run_grid(launch, now.seed, limit, observer && observer->needs_one_thread() ? 1 : num_threads());
}

}  // namespace sim
