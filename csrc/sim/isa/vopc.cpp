// SPDX-License-Identifier: MIT
// VOPC: comparisons. The result is a bit per lane in an SGPR pair, 0 for inactive lanes; v_cmpx writes EXEC as well.
#include "isa/math.h"
#include "isa/op_table.h"
#include "isa/valu.h"

namespace sim {
namespace {

template <class T> struct Never { bool operator()(T, T) const { return false; } };
template <class T> struct Less { bool operator()(T a, T b) const { return a < b; } };
template <class T> struct Equal { bool operator()(T a, T b) const { return a == b; } };
template <class T> struct LessEqual { bool operator()(T a, T b) const { return a <= b; } };
template <class T> struct Greater { bool operator()(T a, T b) const { return a > b; } };
template <class T> struct LessGreater { bool operator()(T a, T b) const { return a < b || a > b; } };
template <class T> struct GreaterEqual { bool operator()(T a, T b) const { return a >= b; } };
template <class T> struct Ordered { bool operator()(T a, T b) const { return a == a && b == b; } };
template <class T> struct Unordered { bool operator()(T a, T b) const { return a != a || b != b; } };
template <class T> struct NotGreaterEqual { bool operator()(T a, T b) const { return !(a >= b); } };
template <class T> struct NotLessGreater { bool operator()(T a, T b) const { return !(a < b || a > b); } };
template <class T> struct NotGreater { bool operator()(T a, T b) const { return !(a > b); } };
template <class T> struct NotLessEqual { bool operator()(T a, T b) const { return !(a <= b); } };
template <class T> struct NotEqual { bool operator()(T a, T b) const { return a != b; } };
template <class T> struct NotLess { bool operator()(T a, T b) const { return !(a < b); } };
template <class T> struct Always { bool operator()(T, T) const { return true; } };

// Bits of the second source: 0 signalling NaN, 1 quiet NaN, 2 -infinity, 3 -normal, 4 -denormal, 5 -0, 6 +0,
// 7 +denormal, 8 +normal, 9 +infinity.
template <class T>
struct IsClass {
  bool operator()(T x, u32 classes) const {
    const int kind = is_infinite(x) ? 9 : is_denormal(x) ? 7 : magnitude(x) == 0 ? 6 : 8;
    const int number = is_negative(x) ? 11 - kind : kind;
    return classes >> (is_nan(x) ? !is_signaling(x) : number) & 1;
  }
};

template <template <class> class F, class T, class U = T>
constexpr Spec compare() {
  return Valu<F<T>, void, Last::operand, false, false, bool, T, U>::spec(Class::valu);
}
template <template <class> class F, class T, class U = T>
constexpr Spec compare_exec() {
  return Valu<F<T>, void, Last::operand, false, true, bool, T, U>::spec(Class::valu);
}

// As mnemonics end: f16, i32, u64.
template <class T>
std::string name_of() {
  const char* kind = !std::is_integral_v<T> ? "f" : std::is_signed_v<T> ? "i" : "u";
  return kind + std::to_string(8 * sizeof(T));
}

template <template <class> class F, class T, class U = T>
void add_type(OpTable& rows, const std::string& name) {
  rows.add("v_cmp_" + name + "_" + name_of<T>(), compare<F, T, U>());
  rows.add("v_cmpx_" + name + "_" + name_of<T>(), compare_exec<F, T, U>());
}
template <template <class> class F, class... Ts>
void add_types(OpTable& rows, const std::string& name) { (add_type<F, Ts>(rows, name), ...); }
template <template <class> class F>
void add_floats(OpTable& rows, const std::string& name) { add_types<F, f16, float, double>(rows, name); }
template <template <class> class F>
void add_integers(OpTable& rows, const std::string& name) { add_types<F, i16, u16, i32, u32, i64, u64>(rows, name); }
template <template <class> class F>
void add_all(OpTable& rows, const std::string& name) {
  add_floats<F>(rows, name);
  add_integers<F>(rows, name);
}

OpTable make_rows() {
  OpTable rows;
  add_all<Never>(rows, "f");
  add_all<Less>(rows, "lt");
  add_all<Equal>(rows, "eq");
  add_all<LessEqual>(rows, "le");
  add_all<Greater>(rows, "gt");
  add_all<GreaterEqual>(rows, "ge");
  add_integers<NotEqual>(rows, "ne");
  add_integers<Always>(rows, "t");
  add_floats<LessGreater>(rows, "lg");
  add_floats<Ordered>(rows, "o");
  add_floats<Unordered>(rows, "u");
  add_floats<NotGreaterEqual>(rows, "nge");
  add_floats<NotLessGreater>(rows, "nlg");
  add_floats<NotGreater>(rows, "ngt");
  add_floats<NotLessEqual>(rows, "nle");
  add_floats<NotEqual>(rows, "neq");
  add_floats<NotLess>(rows, "nlt");
  add_floats<Always>(rows, "tru");
  add_type<IsClass, f16, u32>(rows, "class");
  add_type<IsClass, float, u32>(rows, "class");
  add_type<IsClass, double, u32>(rows, "class");
  return rows;
}

}  // namespace

std::span<const Op> vopc_ops() {
  static const OpTable rows = make_rows();
  return rows;
}

}  // namespace sim
