// SPDX-License-Identifier: MIT
// The settings of the process. Python reads AITER_LIKE_SIM too, for its own messages, by the same grammar.
#include "settings.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace sim {
namespace {

struct Name {
  std::string_view text;
  u32 bit;
};
constexpr Name kChecks[] = {{"wait", kCheckWait}, {"lds_race", kCheckLdsRace}, {"uninit", kCheckUninit},
                            {"bounds", kCheckBounds}, {"waitstate", kCheckWaitState},
                            {"sanity", kCheckSanity}, {"global_race", kCheckGlobalRace},
                            {"strict", kCheckStrict}, {"all", kAllChecks}};

struct Initial {
  Settings settings;
  u32 devices = 1;
};

// Calls f(part) for the parts of a list, without blanks around them, until it returns false.
template <class F>
bool each_part(std::string_view list, char separator, F f) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(separator), list.size());
    std::string_view part = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    if (!part.empty() && !f(part)) return false;
  }
  return true;
}

template <class T>
bool number(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

bool add_check(std::string_view name, u32& bits) {
  for (const Name& check : kChecks) {
    if (check.text != name) continue;
    bits |= check.bit;
    return true;
  }
  return false;
}

bool set(std::string_view part, Initial& to) {
  const size_t equals = part.find('=');
  const std::string_view name = part.substr(0, equals);
  const std::string_view value = equals == part.npos ? std::string_view() : part.substr(equals + 1);
  if (name == "check") {
    u32 bits = 0;
    if (!each_part(value, '+', [&](std::string_view check) { return add_check(check, bits); })) return false;
    to.settings.checks |= bits & ~kCheckStrict ? bits : bits | kDefaultChecks;
    return true;
  }
  if (name == "fuzz") return number(value, to.settings.seed);
  if (name == "threads") return number(value, to.settings.threads);
  if (name == "devices") return number(value, to.devices) && to.devices >= 1 && to.devices <= 64;
  if (name == "limit") return number(value, to.settings.instruction_limit);
  if (part == "dry") to.settings.dry = true;
  if (part == "defer") to.settings.defer = true;
  return part == "dry" || part == "defer" || part == "1" || part == "gpu";  // gpu is Python's
}

const Initial& initial() {
  static const Initial instance = [] {
    Initial result;
    const char* text = std::getenv("AITER_LIKE_SIM");
    each_part(text ? text : "", ',', [&](std::string_view part) {
      if (set(part, result)) return true;
      result.settings.error = "AITER_LIKE_SIM: '" + std::string(part) + "' is not one of check, check=";
      for (const Name& check : kChecks) {
        result.settings.error += (&check == kChecks ? "" : "+") + std::string(check.text);
      }
      result.settings.error += ", fuzz=SEED, threads=N, devices=N (1 to 64), limit=N, dry, defer, gpu";
      // A program that ignores its errors would run nothing and say nothing. Python has raised this before it loads us.
      std::fprintf(stderr, "%s; no kernel will run\n", result.settings.error.c_str());
      return false;
    });
    return result;
  }();
  return instance;
}

}  // namespace

Settings& settings() {
  static Settings instance = initial().settings;
  return instance;
}

u32 initial_devices() { return initial().devices; }

}  // namespace sim
