// SPDX-License-Identifier: MIT
// VOPC: comparisons. The result is a bit per lane in an SGPR pair, 0 for inactive lanes; v_cmpx writes EXEC as well.
#include "isa/math.h"
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

const Op kOps[] = {
    {"v_cmp_f_f16", compare<Never, f16>()}, {"v_cmpx_f_f16", compare_exec<Never, f16>()},
    {"v_cmp_lt_f16", compare<Less, f16>()}, {"v_cmpx_lt_f16", compare_exec<Less, f16>()},
    {"v_cmp_eq_f16", compare<Equal, f16>()}, {"v_cmpx_eq_f16", compare_exec<Equal, f16>()},
    {"v_cmp_le_f16", compare<LessEqual, f16>()}, {"v_cmpx_le_f16", compare_exec<LessEqual, f16>()},
    {"v_cmp_gt_f16", compare<Greater, f16>()}, {"v_cmpx_gt_f16", compare_exec<Greater, f16>()},
    {"v_cmp_lg_f16", compare<LessGreater, f16>()}, {"v_cmpx_lg_f16", compare_exec<LessGreater, f16>()},
    {"v_cmp_ge_f16", compare<GreaterEqual, f16>()}, {"v_cmpx_ge_f16", compare_exec<GreaterEqual, f16>()},
    {"v_cmp_o_f16", compare<Ordered, f16>()}, {"v_cmpx_o_f16", compare_exec<Ordered, f16>()},
    {"v_cmp_u_f16", compare<Unordered, f16>()}, {"v_cmpx_u_f16", compare_exec<Unordered, f16>()},
    {"v_cmp_nge_f16", compare<NotGreaterEqual, f16>()}, {"v_cmpx_nge_f16", compare_exec<NotGreaterEqual, f16>()},
    {"v_cmp_nlg_f16", compare<NotLessGreater, f16>()}, {"v_cmpx_nlg_f16", compare_exec<NotLessGreater, f16>()},
    {"v_cmp_ngt_f16", compare<NotGreater, f16>()}, {"v_cmpx_ngt_f16", compare_exec<NotGreater, f16>()},
    {"v_cmp_nle_f16", compare<NotLessEqual, f16>()}, {"v_cmpx_nle_f16", compare_exec<NotLessEqual, f16>()},
    {"v_cmp_neq_f16", compare<NotEqual, f16>()}, {"v_cmpx_neq_f16", compare_exec<NotEqual, f16>()},
    {"v_cmp_nlt_f16", compare<NotLess, f16>()}, {"v_cmpx_nlt_f16", compare_exec<NotLess, f16>()},
    {"v_cmp_tru_f16", compare<Always, f16>()}, {"v_cmpx_tru_f16", compare_exec<Always, f16>()},

    {"v_cmp_f_f32", compare<Never, float>()}, {"v_cmpx_f_f32", compare_exec<Never, float>()},
    {"v_cmp_lt_f32", compare<Less, float>()}, {"v_cmpx_lt_f32", compare_exec<Less, float>()},
    {"v_cmp_eq_f32", compare<Equal, float>()}, {"v_cmpx_eq_f32", compare_exec<Equal, float>()},
    {"v_cmp_le_f32", compare<LessEqual, float>()}, {"v_cmpx_le_f32", compare_exec<LessEqual, float>()},
    {"v_cmp_gt_f32", compare<Greater, float>()}, {"v_cmpx_gt_f32", compare_exec<Greater, float>()},
    {"v_cmp_lg_f32", compare<LessGreater, float>()}, {"v_cmpx_lg_f32", compare_exec<LessGreater, float>()},
    {"v_cmp_ge_f32", compare<GreaterEqual, float>()}, {"v_cmpx_ge_f32", compare_exec<GreaterEqual, float>()},
    {"v_cmp_o_f32", compare<Ordered, float>()}, {"v_cmpx_o_f32", compare_exec<Ordered, float>()},
    {"v_cmp_u_f32", compare<Unordered, float>()}, {"v_cmpx_u_f32", compare_exec<Unordered, float>()},
    {"v_cmp_nge_f32", compare<NotGreaterEqual, float>()}, {"v_cmpx_nge_f32", compare_exec<NotGreaterEqual, float>()},
    {"v_cmp_nlg_f32", compare<NotLessGreater, float>()}, {"v_cmpx_nlg_f32", compare_exec<NotLessGreater, float>()},
    {"v_cmp_ngt_f32", compare<NotGreater, float>()}, {"v_cmpx_ngt_f32", compare_exec<NotGreater, float>()},
    {"v_cmp_nle_f32", compare<NotLessEqual, float>()}, {"v_cmpx_nle_f32", compare_exec<NotLessEqual, float>()},
    {"v_cmp_neq_f32", compare<NotEqual, float>()}, {"v_cmpx_neq_f32", compare_exec<NotEqual, float>()},
    {"v_cmp_nlt_f32", compare<NotLess, float>()}, {"v_cmpx_nlt_f32", compare_exec<NotLess, float>()},
    {"v_cmp_tru_f32", compare<Always, float>()}, {"v_cmpx_tru_f32", compare_exec<Always, float>()},

    {"v_cmp_f_f64", compare<Never, double>()}, {"v_cmpx_f_f64", compare_exec<Never, double>()},
    {"v_cmp_lt_f64", compare<Less, double>()}, {"v_cmpx_lt_f64", compare_exec<Less, double>()},
    {"v_cmp_eq_f64", compare<Equal, double>()}, {"v_cmpx_eq_f64", compare_exec<Equal, double>()},
    {"v_cmp_le_f64", compare<LessEqual, double>()}, {"v_cmpx_le_f64", compare_exec<LessEqual, double>()},
    {"v_cmp_gt_f64", compare<Greater, double>()}, {"v_cmpx_gt_f64", compare_exec<Greater, double>()},
    {"v_cmp_lg_f64", compare<LessGreater, double>()}, {"v_cmpx_lg_f64", compare_exec<LessGreater, double>()},
    {"v_cmp_ge_f64", compare<GreaterEqual, double>()}, {"v_cmpx_ge_f64", compare_exec<GreaterEqual, double>()},
    {"v_cmp_o_f64", compare<Ordered, double>()}, {"v_cmpx_o_f64", compare_exec<Ordered, double>()},
    {"v_cmp_u_f64", compare<Unordered, double>()}, {"v_cmpx_u_f64", compare_exec<Unordered, double>()},
    {"v_cmp_nge_f64", compare<NotGreaterEqual, double>()}, {"v_cmpx_nge_f64", compare_exec<NotGreaterEqual, double>()},
    {"v_cmp_nlg_f64", compare<NotLessGreater, double>()}, {"v_cmpx_nlg_f64", compare_exec<NotLessGreater, double>()},
    {"v_cmp_ngt_f64", compare<NotGreater, double>()}, {"v_cmpx_ngt_f64", compare_exec<NotGreater, double>()},
    {"v_cmp_nle_f64", compare<NotLessEqual, double>()}, {"v_cmpx_nle_f64", compare_exec<NotLessEqual, double>()},
    {"v_cmp_neq_f64", compare<NotEqual, double>()}, {"v_cmpx_neq_f64", compare_exec<NotEqual, double>()},
    {"v_cmp_nlt_f64", compare<NotLess, double>()}, {"v_cmpx_nlt_f64", compare_exec<NotLess, double>()},
    {"v_cmp_tru_f64", compare<Always, double>()}, {"v_cmpx_tru_f64", compare_exec<Always, double>()},

    {"v_cmp_f_i16", compare<Never, i16>()}, {"v_cmpx_f_i16", compare_exec<Never, i16>()},
    {"v_cmp_lt_i16", compare<Less, i16>()}, {"v_cmpx_lt_i16", compare_exec<Less, i16>()},
    {"v_cmp_eq_i16", compare<Equal, i16>()}, {"v_cmpx_eq_i16", compare_exec<Equal, i16>()},
    {"v_cmp_le_i16", compare<LessEqual, i16>()}, {"v_cmpx_le_i16", compare_exec<LessEqual, i16>()},
    {"v_cmp_gt_i16", compare<Greater, i16>()}, {"v_cmpx_gt_i16", compare_exec<Greater, i16>()},
    {"v_cmp_ne_i16", compare<NotEqual, i16>()}, {"v_cmpx_ne_i16", compare_exec<NotEqual, i16>()},
    {"v_cmp_ge_i16", compare<GreaterEqual, i16>()}, {"v_cmpx_ge_i16", compare_exec<GreaterEqual, i16>()},
    {"v_cmp_t_i16", compare<Always, i16>()}, {"v_cmpx_t_i16", compare_exec<Always, i16>()},

    {"v_cmp_f_u16", compare<Never, u16>()}, {"v_cmpx_f_u16", compare_exec<Never, u16>()},
    {"v_cmp_lt_u16", compare<Less, u16>()}, {"v_cmpx_lt_u16", compare_exec<Less, u16>()},
    {"v_cmp_eq_u16", compare<Equal, u16>()}, {"v_cmpx_eq_u16", compare_exec<Equal, u16>()},
    {"v_cmp_le_u16", compare<LessEqual, u16>()}, {"v_cmpx_le_u16", compare_exec<LessEqual, u16>()},
    {"v_cmp_gt_u16", compare<Greater, u16>()}, {"v_cmpx_gt_u16", compare_exec<Greater, u16>()},
    {"v_cmp_ne_u16", compare<NotEqual, u16>()}, {"v_cmpx_ne_u16", compare_exec<NotEqual, u16>()},
    {"v_cmp_ge_u16", compare<GreaterEqual, u16>()}, {"v_cmpx_ge_u16", compare_exec<GreaterEqual, u16>()},
    {"v_cmp_t_u16", compare<Always, u16>()}, {"v_cmpx_t_u16", compare_exec<Always, u16>()},

    {"v_cmp_f_i32", compare<Never, i32>()}, {"v_cmpx_f_i32", compare_exec<Never, i32>()},
    {"v_cmp_lt_i32", compare<Less, i32>()}, {"v_cmpx_lt_i32", compare_exec<Less, i32>()},
    {"v_cmp_eq_i32", compare<Equal, i32>()}, {"v_cmpx_eq_i32", compare_exec<Equal, i32>()},
    {"v_cmp_le_i32", compare<LessEqual, i32>()}, {"v_cmpx_le_i32", compare_exec<LessEqual, i32>()},
    {"v_cmp_gt_i32", compare<Greater, i32>()}, {"v_cmpx_gt_i32", compare_exec<Greater, i32>()},
    {"v_cmp_ne_i32", compare<NotEqual, i32>()}, {"v_cmpx_ne_i32", compare_exec<NotEqual, i32>()},
    {"v_cmp_ge_i32", compare<GreaterEqual, i32>()}, {"v_cmpx_ge_i32", compare_exec<GreaterEqual, i32>()},
    {"v_cmp_t_i32", compare<Always, i32>()}, {"v_cmpx_t_i32", compare_exec<Always, i32>()},

    {"v_cmp_f_u32", compare<Never, u32>()}, {"v_cmpx_f_u32", compare_exec<Never, u32>()},
    {"v_cmp_lt_u32", compare<Less, u32>()}, {"v_cmpx_lt_u32", compare_exec<Less, u32>()},
    {"v_cmp_eq_u32", compare<Equal, u32>()}, {"v_cmpx_eq_u32", compare_exec<Equal, u32>()},
    {"v_cmp_le_u32", compare<LessEqual, u32>()}, {"v_cmpx_le_u32", compare_exec<LessEqual, u32>()},
    {"v_cmp_gt_u32", compare<Greater, u32>()}, {"v_cmpx_gt_u32", compare_exec<Greater, u32>()},
    {"v_cmp_ne_u32", compare<NotEqual, u32>()}, {"v_cmpx_ne_u32", compare_exec<NotEqual, u32>()},
    {"v_cmp_ge_u32", compare<GreaterEqual, u32>()}, {"v_cmpx_ge_u32", compare_exec<GreaterEqual, u32>()},
    {"v_cmp_t_u32", compare<Always, u32>()}, {"v_cmpx_t_u32", compare_exec<Always, u32>()},

    {"v_cmp_f_i64", compare<Never, i64>()}, {"v_cmpx_f_i64", compare_exec<Never, i64>()},
    {"v_cmp_lt_i64", compare<Less, i64>()}, {"v_cmpx_lt_i64", compare_exec<Less, i64>()},
    {"v_cmp_eq_i64", compare<Equal, i64>()}, {"v_cmpx_eq_i64", compare_exec<Equal, i64>()},
    {"v_cmp_le_i64", compare<LessEqual, i64>()}, {"v_cmpx_le_i64", compare_exec<LessEqual, i64>()},
    {"v_cmp_gt_i64", compare<Greater, i64>()}, {"v_cmpx_gt_i64", compare_exec<Greater, i64>()},
    {"v_cmp_ne_i64", compare<NotEqual, i64>()}, {"v_cmpx_ne_i64", compare_exec<NotEqual, i64>()},
    {"v_cmp_ge_i64", compare<GreaterEqual, i64>()}, {"v_cmpx_ge_i64", compare_exec<GreaterEqual, i64>()},
    {"v_cmp_t_i64", compare<Always, i64>()}, {"v_cmpx_t_i64", compare_exec<Always, i64>()},

    {"v_cmp_f_u64", compare<Never, u64>()}, {"v_cmpx_f_u64", compare_exec<Never, u64>()},
    {"v_cmp_lt_u64", compare<Less, u64>()}, {"v_cmpx_lt_u64", compare_exec<Less, u64>()},
    {"v_cmp_eq_u64", compare<Equal, u64>()}, {"v_cmpx_eq_u64", compare_exec<Equal, u64>()},
    {"v_cmp_le_u64", compare<LessEqual, u64>()}, {"v_cmpx_le_u64", compare_exec<LessEqual, u64>()},
    {"v_cmp_gt_u64", compare<Greater, u64>()}, {"v_cmpx_gt_u64", compare_exec<Greater, u64>()},
    {"v_cmp_ne_u64", compare<NotEqual, u64>()}, {"v_cmpx_ne_u64", compare_exec<NotEqual, u64>()},
    {"v_cmp_ge_u64", compare<GreaterEqual, u64>()}, {"v_cmpx_ge_u64", compare_exec<GreaterEqual, u64>()},
    {"v_cmp_t_u64", compare<Always, u64>()}, {"v_cmpx_t_u64", compare_exec<Always, u64>()},

    {"v_cmp_class_f16", compare<IsClass, f16, u32>()}, {"v_cmpx_class_f16", compare_exec<IsClass, f16, u32>()},
    {"v_cmp_class_f32", compare<IsClass, float, u32>()}, {"v_cmpx_class_f32", compare_exec<IsClass, float, u32>()},
    {"v_cmp_class_f64", compare<IsClass, double, u32>()}, {"v_cmpx_class_f64", compare_exec<IsClass, double, u32>()},
};

}  // namespace

std::span<const Op> vopc_ops() { return kOps; }

}  // namespace sim
