// SPDX-License-Identifier: MIT
// A reader of MessagePack (the format of AMDGPU metadata notes). Every read is checked against the input's end.
#pragma once
#include <string_view>
#include <vector>

#include "types.h"

namespace sim::msgpack {

struct Value {
  enum class Kind : u8 { nil, boolean, integer, text, array, map } kind = Kind::nil;
  u64 number = 0;                              // integer (two's complement) or boolean
  std::string_view text;
  std::vector<Value> items;                    // array; of a map, its values
  std::vector<std::string_view> keys;          // map: the key of each item; code objects use text only

  // The value of a key, or null.
  const Value* get(std::string_view key) const {
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == key) return &items[i];
    }
    return nullptr;
  }
  std::string_view string(std::string_view key) const {
    const Value* value = get(key);
    return value && value->kind == Kind::text ? value->text : std::string_view();
  }
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  Value read(int depth = 0) {
    if (depth > 16) throw Fault("metadata is nested too deeply");
    const u8 tag = static_cast<u8>(take(1)[0]);
    if (tag < 0x80) return number(tag);
    if (tag < 0x90) return map(tag & 15, depth);
    if (tag < 0xa0) return array(tag & 15, depth);
    if (tag < 0xc0) return string(tag & 31);
    if (tag >= 0xe0) return number(static_cast<u64>(static_cast<i64>(static_cast<i8>(tag))));
    switch (tag) {
      case 0xc0: return {};
      case 0xc2: case 0xc3: return boolean(tag & 1);
      case 0xcc: case 0xcd: case 0xce: case 0xcf: return number(big_endian(1 << (tag - 0xcc)));
      case 0xd0: return number(static_cast<u64>(static_cast<i64>(static_cast<i8>(big_endian(1)))));
      case 0xd1: return number(static_cast<u64>(static_cast<i64>(static_cast<i16>(big_endian(2)))));
      case 0xd2: return number(static_cast<u64>(static_cast<i64>(static_cast<i32>(big_endian(4)))));
      case 0xd3: return number(big_endian(8));
      case 0xc4: case 0xd9: return string(big_endian(1));
      case 0xc5: case 0xda: return string(big_endian(2));
      case 0xc6: case 0xdb: return string(big_endian(4));
      case 0xdc: return array(big_endian(2), depth);
      case 0xdd: return array(big_endian(4), depth);
      case 0xde: return map(big_endian(2), depth);
      case 0xdf: return map(big_endian(4), depth);
      default: throw Fault("metadata has a type that code objects do not use");
    }
  }

 private:
  std::string_view take(u64 n) {
    if (n > rest_.size()) throw Fault("metadata is truncated");
    const std::string_view head = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return head;
  }

  u64 big_endian(int bytes) {
    u64 x = 0;
    for (char c : take(bytes)) x = x << 8 | static_cast<u8>(c);
    return x;
  }

  static Value number(u64 x) {
    Value value;
    value.kind = Value::Kind::integer;
    value.number = x;
    return value;
  }

  static Value boolean(bool x) {
    Value value;
    value.kind = Value::Kind::boolean;
    value.number = x;
    return value;
  }

  Value string(u64 n) {
    Value value;
    value.kind = Value::Kind::text;
    value.text = take(n);
    return value;
  }

  // An element takes at least one byte, which bounds what a damaged count can allocate.
  void check_count(u64 n) const {
    if (n > rest_.size()) throw Fault("metadata is truncated");
  }

  Value array(u64 n, int depth) {
    check_count(n);
    Value value;
    value.kind = Value::Kind::array;
    for (u64 i = 0; i < n; ++i) value.items.push_back(read(depth + 1));
    return value;
  }

  Value map(u64 n, int depth) {
    check_count(n);
    Value value;
    value.kind = Value::Kind::map;
    for (u64 i = 0; i < n; ++i) {
      value.keys.push_back(read(depth + 1).text);
      value.items.push_back(read(depth + 1));
    }
    return value;
  }

  std::string_view rest_;
};

}  // namespace sim::msgpack
