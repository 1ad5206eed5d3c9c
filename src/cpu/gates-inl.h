// SPDX-License-Identifier: Apache-2.0
//
// Gates of the recurrence from ready or raw numbers, a vector at a time: one function for scalar
// and for per-channel decays, so that both are the same bits wherever they are computed.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#if defined(LEAPQUANT_CPU_GATES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LEAPQUANT_CPU_GATES_INL_H_
#undef LEAPQUANT_CPU_GATES_INL_H_
#else
#define LEAPQUANT_CPU_GATES_INL_H_
#endif

#include "cpu/numbers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace leapquant::cpu::HWY_NAMESPACE {

// exp(x) for any x that is not NaN; 0 for -infinity, finite always.
HWY_INLINE FloatVec exponential(FloatVec x) {
  const FloatTag d;
  return hn::Exp(d, hn::Min(x, hn::Set(d, 88.0f)));
}

// exp(x) of a log decay x <= 0, -infinity allowed.
HWY_INLINE FloatVec decay_factor(FloatVec x) { return hn::Exp(FloatTag(), x); }

HWY_INLINE FloatVec sigmoid(FloatVec x) {
  const FloatTag d;
  const auto one = hn::Set(d, 1.0f);
  // exp(-|x|) <= 1 keeps both branches exact to rounding.
  const auto e = hn::Exp(d, hn::Neg(hn::Abs(x)));
  const auto numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one);
  return hn::Div(numerator, hn::Add(one, e));
}

// log(1 + exp(x)); x itself above 20.
HWY_INLINE FloatVec softplus(FloatVec x) {
  const FloatTag d;
  const auto limit = hn::Set(d, 20.0f);
  const auto small = hn::Log1p(d, hn::Exp(d, hn::Min(x, limit)));
  return hn::IfThenElse(hn::Gt(x, limit), x, small);
}

// LEAPQUANT_GATE_SOFTPLUS: -rate softplus(x + bias), rate = exp(a_log), finite.
HWY_INLINE FloatVec softplus_gate(FloatVec x, FloatVec bias, FloatVec rate) {
  const FloatTag d;
  return hn::Min(hn::Neg(hn::Mul(rate, softplus(hn::Add(x, bias)))), hn::Zero(d));
}

// LEAPQUANT_GATE_BOUNDED: bound sigmoid(rate (x + bias)).
HWY_INLINE FloatVec bounded_gate(FloatVec x, FloatVec bias, FloatVec rate, FloatVec bound) {
  const FloatTag d;
  return hn::Min(hn::Mul(bound, sigmoid(hn::Mul(rate, hn::Add(x, bias)))), hn::Zero(d));
}

}  // namespace leapquant::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
