// SPDX-License-Identifier: Apache-2.0
// K and V stored in 8 bits: tiles of them in the computation's dtype, which are then packed as any others. So a call on
// them has the bits of the same call on converted tensors.
#if defined(STROBE_CPU_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STROBE_CPU_CONVERT_INL_H_
#undef STROBE_CPU_CONVERT_INL_H_
#else
#define STROBE_CPU_CONVERT_INL_H_
#endif

#include "cpu/kernels/pack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

/// A row of elements times their scale: products in float32, rounded to T.
template <class Element, class T>
HWY_INLINE void convert_row(const Element* HWY_RESTRICT from, float scale, std::int64_t columns, T* HWY_RESTRICT to) {
  const Vec scales = hn::Set(Floats(), scale);
  std::int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) store(hn::Mul(load(Floats(), from + c), scales), to + c);
  for (; c < columns; ++c) to[c] = narrow<T>(to_float(from[c]) * scale);
}

template <class Element, class T>
HWY_INLINE void convert_rows(const Source& from, const RowScales& scales, T* HWY_RESTRICT to) {
  for (std::int64_t row = 0; row < from.count; ++row) {
    prefetch_row<Element>(from, row + kPrefetchRows);
    convert_row(from.row<Element>(row), scales.at(from.first + row), from.columns, to + row * from.columns);
  }
}

template <class Element>
HWY_INLINE void convert_rows_to(DType dtype, const Source& from, const RowScales& scales, void* to) {
  switch (dtype) {
    case DType::float16: return convert_rows<Element>(from, scales, static_cast<float16*>(to));
    case DType::bfloat16: return convert_rows<Element>(from, scales, static_cast<bfloat16*>(to));
    default: return convert_rows<Element>(from, scales, static_cast<float*>(to));
  }
}

/// Keys [key_begin, key_begin + count) of K and V in `dtype`: where they lie, or converted to `memory`, which holds one
/// of both at a time.
struct StoredTile {
  const StoredOperands& operands;
  DType dtype;
  std::int64_t key_begin;
  std::int64_t count;
  std::byte* memory;

  /// The row of keys() and values() that is key_begin.
  std::int64_t first() const { return operands.given() ? 0 : key_begin; }

  ConstRows keys(const ConstRows& k, std::int64_t columns) const { return rows(k, operands.k, columns); }
  ConstRows values(const ConstRows& v, std::int64_t columns) const { return rows(v, operands.v, columns); }

 private:
  ConstRows rows(const ConstRows& stored, const RowScales& scales, std::int64_t columns) const {
    if (!operands.given()) return stored;
    const Source from{stored, key_begin, count, columns};
    if (operands.dtype == DType::int8) {
      convert_rows_to<std::int8_t>(dtype, from, scales, memory);
    } else {
      convert_rows_to<float8_e4m3>(dtype, from, scales, memory);
    }
    return {.data = memory, .position_stride = columns};
  }
};

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // STROBE_CPU_CONVERT_INL_H_
