// SPDX-License-Identifier: MIT
// What most files of the simulator include, parsed once for all of them: the build puts it before each
// (aiter_like/sim/library.py). A file includes what it uses all the same.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checks/state.h"
#include "hip/stream.h"
#include "run/launch_state.h"
