// SPDX-License-Identifier: MIT
// Formats are read here and rebuilt for the host's printf, one conversion at a time, with an argument of a known type:
// a kernel may send any bytes.
#include "run/format.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace sim {
namespace {

constexpr i64 kMaxWidth = 65536;

// The cells that have not been read.
class Cells {
 public:
  explicit Cells(std::span<const u64> cells) : left_(cells) {}

  bool empty() const { return left_.empty(); }
  size_t size() const { return left_.size(); }
  u64 number() {
    const u64 value = left_.front();
    left_ = left_.subspan(1);
    return value;
  }
  // Up to its end, or to the last cell's.
  std::string_view text() {
    const char* begin = reinterpret_cast<const char*>(left_.data());
    const size_t bytes = left_.size_bytes(), length = strnlen(begin, bytes);
    left_ = left_.subspan(length == bytes ? left_.size() : length / 8 + 1);
    return {begin, length};
  }

 private:
  std::span<const u64> left_;
};

struct Conversion {
  std::string flags;
  i64 width = 0, precision = -1;               // -1: none
  bool star_width = false, star_precision = false;
  int bytes = 4;                               // size of an integer
  char letter = 0;                             // 0: this is no conversion
};

i64 limited(i64 value) {
  if (value > kMaxWidth || value < -kMaxWidth) {
    throw Fault("printf with a width or precision of " + std::to_string(value) + ": the most is 65536");
  }
  return value;
}

// Reads what follows a '%' and moves `at` behind it.
class Reader {
 public:
  Reader(std::string_view format, size_t& at) : format_(format), at_(at) {}

  Conversion read() {
    Conversion c;
    while (more("-+ #0")) c.flags += next();
    c.star_width = more("*");
    c.star_width ? void(next()) : void(c.width = number());
    if (more(".")) {
      next();
      c.star_precision = more("*");
      c.star_precision ? void(next()) : void(c.precision = number());
    }
    c.bytes = length();
    if (more("diouxXcsfFeEgGaApn%")) c.letter = next();
    return c;
  }

 private:
  bool more(std::string_view set) const { return at_ < format_.size() && set.find(format_[at_]) != set.npos; }
  char next() { return format_[at_++]; }

  i64 number() {
    i64 value = 0;
    while (more("0123456789")) value = limited(value * 10 + (next() - '0'));
    return value;
  }

  int length() {
    const char first = more("hljztqL") ? next() : '\0';
    const bool twice = first && (first == 'h' || first == 'l') && at_ < format_.size() && format_[at_] == first;
    if (twice) next();
    return first == '\0' ? 4 : first != 'h' ? 8 : twice ? 1 : 2;
  }

  std::string_view format_;
  size_t& at_;
};

template <class T>
std::string print(const Conversion& c, const char* length, T value) {
  std::string format = "%" + c.flags + (c.width ? std::to_string(c.width) : "");
  if (c.precision >= 0) format += "." + std::to_string(c.precision);
  format += length;
  format += c.letter;
  const int size = std::snprintf(nullptr, 0, format.c_str(), value);
  std::string text(static_cast<size_t>(std::max(size, 0)) + 1, '\0');
  std::snprintf(text.data(), text.size(), format.c_str(), value);
  text.pop_back();
  return text;
}

i64 narrowed(u64 value, int bytes, bool is_signed) {
  const int unused = 64 - 8 * bytes;
  return is_signed ? static_cast<i64>(value << unused) >> unused : static_cast<i64>(value << unused >> unused);
}

std::string convert(const Conversion& c, Cells& cells) {
  switch (c.letter) {
    case 'd':
    case 'i': return print(c, "ll", narrowed(cells.number(), c.bytes, true));
    case 'o':
    case 'u':
    case 'x':
    case 'X': return print(c, "ll", narrowed(cells.number(), c.bytes, false));
    case 'c': return print(c, "", static_cast<int>(static_cast<unsigned char>(cells.number())));
    case 's': return print(c, "", std::string(cells.text()).c_str());
    case 'p': return print(c, "", reinterpret_cast<void*>(cells.number()));
    case 'n': cells.number(); return "";
    default: return print(c, "", std::bit_cast<double>(cells.number()));
  }
}

// Takes the arguments of stars. A negative width means left-aligned, a negative precision none.
void take_stars(Conversion& c, Cells& cells) {
  if (c.star_width) {
    c.width = limited(static_cast<i32>(cells.number()));
    if (c.width < 0) c.flags += '-';
    c.width = std::abs(c.width);
  }
  if (c.star_precision) c.precision = std::max(limited(static_cast<i32>(cells.number())), i64{-1});
}

}  // namespace

std::string format_message(std::span<const u64> message) {
  Cells cells(message);
  const std::string format(cells.text());
  std::string out;
  for (size_t at = 0; at < format.size();) {
    const size_t begin = std::min(format.find('%', at), format.size());
    out.append(format, at, begin - at);
    at = begin + 1;
    if (begin == format.size()) break;
    Conversion c = Reader(format, at).read();
    if (c.letter == '%') {
      out += '%';
      continue;
    }
    const size_t needed = size_t{1} + c.star_width + c.star_precision;
    if (!c.letter || cells.size() < needed) {
      out.append(format, begin, at - begin);
      continue;
    }
    take_stars(c, cells);
    out += convert(c, cells);
  }
  return out;
}

}  // namespace sim
