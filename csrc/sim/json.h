// SPDX-License-Identifier: MIT
// JSON texts for the C interface.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "types.h"

namespace sim::json {

inline std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') (out += '\\') += c;
    else if (static_cast<u8>(c) >= 0x20) out += c;
    else {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", c);
      out += code;
    }
  }
  return out + '"';
}

// One object, field by field.
class Object {
 public:
  Object& raw(std::string_view key, std::string_view json) {
    (((text_ += text_.size() > 1 ? "," : "") += quoted(key)) += ":") += json;
    return *this;
  }
  Object& add(std::string_view key, std::string_view value) { return raw(key, quoted(value)); }
  Object& add(std::string_view key, u64 value) { return raw(key, std::to_string(value)); }
  // … unless it is 0.
  Object& some(std::string_view key, u64 value) { return value ? add(key, value) : *this; }
  std::string str() const { return text_ + "}"; }

 private:
  std::string text_ = "{";
};

// A list, element by element.
class List {
 public:
  List& raw(std::string_view json) {
    (text_ += text_.size() > 1 ? "," : "") += json;
    return *this;
  }
  std::string str() const { return text_ + "]"; }

 private:
  std::string text_ = "[";
};

// A copy for the caller of the C interface, which frees it.
inline char* give(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace sim::json
