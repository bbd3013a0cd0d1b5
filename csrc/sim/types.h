// SPDX-License-Identifier: MIT
// Integer names, lane count and the exception that stops a launch.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace sim {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using f16 = _Float16;

inline constexpr int kLanes = 64;
inline constexpr u64 kAllLanes = ~u64{0};

// Stops the launch; the message reaches the caller through hipGetErrorString. run/failure.cpp adds kernel, pc and
// disassembly.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A launch that does not start, so that nothing has run; and one whose grid, block or LDS no device can have.
struct Refusal : Fault {
  using Fault::Fault;
};
struct BadShape : Refusal {
  using Refusal::Refusal;
};

}  // namespace sim
