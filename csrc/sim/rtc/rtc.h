// SPDX-License-Identifier: MIT
// What the files of hipRTC share.
#pragma once

#define RTC_API extern "C" __attribute__((visibility("default")))

namespace sim::rtc {

enum Result : int {                              // hiprtcResult
  kSuccess = 0, kCreationFailure = 2, kInvalidInput = 3, kInvalidProgram = 4, kInvalidOption = 5, kCompilation = 6,
  kNamesAfterCompilation = 8, kNamesBeforeCompilation = 9, kInvalidName = 10, kInternal = 11, kLinking = 100,
};

}  // namespace sim::rtc
