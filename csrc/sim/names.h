// SPDX-License-Identifier: MIT
// Names of kernels as people read them.
#pragma once
#include <cxxabi.h>

#include <cstdlib>
#include <string>

namespace sim {

// A C++ name as it is written; others as they are.
inline std::string demangled(const std::string& name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  const std::string result = text ? text : name;
  std::free(text);
  return result;
}

// The same without the types of its arguments and of its result: "scale<4>" of "void scale<4>(float*)".
inline std::string short_name(const std::string& name) {
  std::string text = demangled(name);
  if (text == name) return text;
  int depth = 0;
  for (size_t at = text.size(); at-- > 0;) {
    depth += (text[at] == ')' || text[at] == '>') - (text[at] == '(' || text[at] == '<');
    if (depth || text[at] != '(') continue;
    text.resize(at);                             // a parameter list closes the name
    break;
  }
  return text.starts_with("void ") ? text.substr(5) : text;
}

}  // namespace sim
