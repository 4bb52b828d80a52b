// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/expression_steps.cpp"  // compiled once per instruction set
#include "hwy/foreach_target.h"                                // must come before highway.h

#include <cmath>
#include <limits>

#include "cpu/kernels/expression_steps.h"
#include "cpu/kernels/vector-inl.h"
#include "expression/arithmetic.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

using expression::Op;
using expression::Type;
using IntVec = hn::Vec<Ints>;

/// The operands and the result of a step.
class Step {
 public:
  Step(const void* const* operands, void* result, std::int64_t count)
      : operands_(operands), result_(result), count_(count) {}

  template <class F>
  void floats(const F& f) const {
    const Floats d;
    for (std::int64_t i = 0; i < count_; i += kLanes) hn::Store(f(real(0, i)), d, static_cast<float*>(result_) + i);
  }
  template <class F>
  void two_floats(const F& f) const {
    const Floats d;
    for (std::int64_t i = 0; i < count_; i += kLanes) {
      hn::Store(f(real(0, i), real(1, i)), d, static_cast<float*>(result_) + i);
    }
  }
  template <class F>
  void ints(const F& f) const {
    for (std::int64_t i = 0; i < count_; i += kLanes) store(f(integer(0, i)), i);
  }
  template <class F>
  void two_ints(const F& f) const {
    for (std::int64_t i = 0; i < count_; i += kLanes) store(f(integer(0, i), integer(1, i)), i);
  }
  /// f gives a mask of two operands.
  template <class F>
  void compare_floats(const F& f) const {
    for (std::int64_t i = 0; i < count_; i += kLanes) {
      store(from_mask(hn::RebindMask(Ints(), f(real(0, i), real(1, i)))), i);
    }
  }
  template <class F>
  void compare_ints(const F& f) const {
    for (std::int64_t i = 0; i < count_; i += kLanes) store(from_mask(f(integer(0, i), integer(1, i))), i);
  }
  void select() const {
    const Ints d;
    for (std::int64_t i = 0; i < count_; i += kLanes) {
      store(hn::IfThenElse(hn::Ne(integer(0, i), hn::Zero(d)), integer(1, i), integer(2, i)), i);
    }
  }
  void to_real() const {
    const Floats d;
    for (std::int64_t i = 0; i < count_; i += kLanes) {
      hn::Store(hn::ConvertTo(d, integer(0, i)), d, static_cast<float*>(result_) + i);
    }
  }
  /// Integer by integer, as they are written: of what vectors have no instruction for.
  template <class F>
  void each_pair(const F& f) const {
    const auto* const a = static_cast<const std::int32_t*>(operands_[0]);
    const auto* const b = static_cast<const std::int32_t*>(operands_[1]);
    for (std::int64_t i = 0; i < count_; ++i) static_cast<std::int32_t*>(result_)[i] = f(a[i], b[i]);
  }
  /// vectors(x) where |x| is at most `most`, exact(x) elsewhere: of each element by itself, so that none depends on its
  /// neighbours.
  template <class F, class G>
  void floats_within(float most, const F& vectors, const G& exact) const {
    const Floats d;
    for (std::int64_t i = 0; i < count_; i += kLanes) {
      const Vec x = real(0, i);
      const auto beyond = hn::Not(hn::Le(hn::Abs(x), hn::Set(d, most)));
      float* const to = static_cast<float*>(result_) + i;
      hn::Store(vectors(hn::IfThenZeroElse(beyond, x)), d, to);
      if (hn::AllFalse(d, beyond)) continue;
      HWY_ALIGN float given[kLanes];
      hn::Store(x, d, given);
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        if (!(std::abs(given[lane]) <= most)) to[lane] = exact(given[lane]);
      }
    }
  }
  void each_to_integer() const {
    const auto* const a = static_cast<const float*>(operands_[0]);
    for (std::int64_t i = 0; i < count_; ++i) {
      static_cast<std::int32_t*>(result_)[i] = static_cast<std::int32_t>(expression::truncated(a[i]));
    }
  }

 private:
  Vec real(int operand, std::int64_t i) const {
    return hn::Load(Floats(), static_cast<const float*>(operands_[operand]) + i);
  }
  IntVec integer(int operand, std::int64_t i) const {
    return hn::Load(Ints(), static_cast<const std::int32_t*>(operands_[operand]) + i);
  }
  void store(IntVec value, std::int64_t i) const { hn::Store(value, Ints(), static_cast<std::int32_t*>(result_) + i); }
  static IntVec from_mask(hn::Mask<Ints> mask) { return hn::IfThenElseZero(mask, hn::Set(Ints(), 1)); }

  const void* const* operands_;
  void* result_;
  std::int64_t count_;
};

HWY_INLINE Vec exp_of(Vec x) {
  const Floats d;
  const Vec inside = hn::Min(hn::Max(x, hn::Set(d, -104.0F)), hn::Set(d, 88.7F));
  Vec y = hn::Exp(d, inside);
  y = hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.7F)), hn::Set(d, std::numeric_limits<float>::infinity()), y);
  y = hn::IfThenElse(hn::Lt(x, hn::Set(d, -104.0F)), hn::Zero(d), y);
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

HWY_INLINE Vec exp2_of(Vec x) {
  const Floats d;
  const Vec y = exp2(hn::IfThenElse(hn::Gt(x, hn::Set(d, 127.0F)), hn::Set(d, 127.0F), x));
  const auto huge = hn::Ge(x, hn::Set(d, 128.0F));
  return hn::IfThenElse(huge, hn::Set(d, std::numeric_limits<float>::infinity()), y);
}

HWY_INLINE Vec log_of(Vec x) {
  const Floats d;
  const Vec infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  const auto positive = hn::Gt(x, hn::Zero(d));
  const auto finite = hn::Lt(x, infinity);
  const Vec y = hn::Log(d, hn::IfThenElse(hn::And(positive, finite), x, hn::Set(d, 1.0F)));
  const Vec otherwise =
      hn::IfThenElse(hn::Eq(x, hn::Zero(d)), hn::Neg(infinity),
                     hn::IfThenElse(positive, x, hn::Set(d, std::numeric_limits<float>::quiet_NaN())));
  return hn::IfThenElse(hn::And(positive, finite), y, otherwise);
}

HWY_INLINE Vec one_over(Vec x) { return hn::Div(hn::Set(Floats(), 1.0F), x); }

/// Beyond this the vectors' reduction of an angle loses precision.
inline constexpr float kLargestAngle = 39000.0F;

void run_function(const Step& step, Op op) {
  const Floats d;
  switch (op) {
    case Op::exp: return step.floats([](Vec x) { return exp_of(x); });
    case Op::exp2: return step.floats([](Vec x) { return exp2_of(x); });
    case Op::log: return step.floats([](Vec x) { return log_of(x); });
    case Op::tanh: return step.floats([](Vec x) { return tanh(x); });
    case Op::sigmoid:
      return step.floats([&](Vec x) { return one_over(hn::Add(hn::Set(d, 1.0F), exp_of(hn::Neg(x)))); });
    case Op::sqrt: return step.floats([](Vec x) { return hn::Sqrt(x); });
    case Op::rsqrt: return step.floats([](Vec x) { return one_over(hn::Sqrt(x)); });
    case Op::floor: return step.floats([](Vec x) { return hn::Floor(x); });
    case Op::sin:
      return step.floats_within(
          kLargestAngle, [&](Vec x) { return hn::Sin(d, x); }, [](float x) { return std::sin(x); });
    case Op::cos:
      return step.floats_within(
          kLargestAngle, [&](Vec x) { return hn::Cos(d, x); }, [](float x) { return std::cos(x); });
    default: return;
  }
}

void run_reals(const Step& step, Op op) {
  switch (op) {
    case Op::negate: return step.floats([](Vec x) { return hn::Neg(x); });
    case Op::absolute: return step.floats([](Vec x) { return hn::Abs(x); });
    case Op::add: return step.two_floats([](Vec x, Vec y) { return hn::Add(x, y); });
    case Op::multiply: return step.two_floats([](Vec x, Vec y) { return hn::Mul(x, y); });
    case Op::divide: return step.two_floats([](Vec x, Vec y) { return hn::Div(x, y); });
    case Op::minimum: return step.two_floats([](Vec x, Vec y) { return hn::IfThenElse(hn::Lt(y, x), y, x); });
    case Op::maximum: return step.two_floats([](Vec x, Vec y) { return hn::IfThenElse(hn::Lt(x, y), y, x); });
    case Op::less: return step.compare_floats([](Vec x, Vec y) { return hn::Lt(x, y); });
    case Op::less_equal: return step.compare_floats([](Vec x, Vec y) { return hn::Le(x, y); });
    case Op::equal: return step.compare_floats([](Vec x, Vec y) { return hn::Eq(x, y); });
    case Op::to_integer: return step.each_to_integer();
    default: return run_function(step, op);
  }
}

void run_integers(const Step& step, Op op) {
  using expression::floor_divided;
  const auto wrapped = [](std::int64_t x) { return static_cast<std::int32_t>(static_cast<std::uint32_t>(x)); };
  switch (op) {
    case Op::negate: return step.ints([](IntVec x) { return hn::Neg(x); });
    case Op::absolute: return step.ints([](IntVec x) { return hn::Abs(x); });
    case Op::add: return step.two_ints([](IntVec x, IntVec y) { return hn::Add(x, y); });
    case Op::multiply: return step.two_ints([](IntVec x, IntVec y) { return hn::Mul(x, y); });
    case Op::minimum: return step.two_ints([](IntVec x, IntVec y) { return hn::Min(x, y); });
    case Op::maximum: return step.two_ints([](IntVec x, IntVec y) { return hn::Max(x, y); });
    case Op::less: return step.compare_ints([](IntVec x, IntVec y) { return hn::Lt(x, y); });
    case Op::less_equal: return step.compare_ints([](IntVec x, IntVec y) { return hn::Not(hn::Lt(y, x)); });
    case Op::equal: return step.compare_ints([](IntVec x, IntVec y) { return hn::Eq(x, y); });
    case Op::logical_and: return step.two_ints([](IntVec x, IntVec y) { return hn::And(x, y); });
    case Op::logical_or: return step.two_ints([](IntVec x, IntVec y) { return hn::Or(x, y); });
    case Op::logical_not: return step.ints([](IntVec x) { return hn::Xor(x, hn::Set(Ints(), 1)); });
    case Op::floor_divide:
      return step.each_pair([&](std::int64_t a, std::int64_t b) { return wrapped(floor_divided(a, b)); });
    case Op::remainder:
      return step.each_pair(
          [&](std::int64_t a, std::int64_t b) { return wrapped(b == 0 ? 0 : a - floor_divided(a, b) * b); });
    case Op::to_real: return step.to_real();
    default: return;
  }
}

void run_expression_step(const ExpressionStep& step, const void* const* operands, void* result, std::int64_t count) {
  const Step of(operands, result, count);
  if (step.op == Op::select) return of.select();
  step.operand_type == Type::real ? run_reals(of, step.op) : run_integers(of, step.op);
}

void gather_32_bits(const GatheredCapture& capture, const void* const* operands, void* result, std::int64_t count) {
  const Ints d;
  const auto* const data = static_cast<const std::int32_t*>(capture.data);
  for (std::int64_t i = 0; i < count; i += kLanes) {
    IntVec offset = hn::Zero(d);
    auto inside = hn::Eq(offset, offset);
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(capture.rank); ++axis) {
      const IntVec index = hn::Load(d, static_cast<const std::int32_t*>(operands[axis]) + i);
      inside = hn::And(inside, hn::Not(hn::Lt(index, hn::Zero(d))));
      inside = hn::And(inside, hn::Lt(index, hn::Set(d, capture.extents[axis])));
      offset = hn::Add(offset, hn::Mul(index, hn::Set(d, capture.strides[axis])));  // outside it may wrap around
    }
    const IntVec elements = hn::GatherIndex(d, data, hn::IfThenElseZero(inside, offset));
    hn::Store(hn::IfThenElseZero(inside, elements), d, static_cast<std::int32_t*>(result) + i);
  }
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strobe::cpu {

HWY_EXPORT(run_expression_step);
HWY_EXPORT(gather_32_bits);

void run_step(const ExpressionStep& step, const void* const* operands, void* result, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(run_expression_step)(step, operands, result, count);
}

void gather(const GatheredCapture& capture, const void* const* operands, void* result, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(gather_32_bits)(capture, operands, result, count);
}

}  // namespace strobe::cpu
#endif
