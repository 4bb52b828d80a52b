// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/bfloat16/kernels.cpp"  // compiled once per instruction set
#include "hwy/foreach_target.h"                        // must come before highway.h

#include "cpu/bfloat16/amx_registers-inl.h"
#include "cpu/bfloat16/backward-inl.h"
#include "cpu/bfloat16/dot_unit-inl.h"
#include "cpu/bfloat16/forward-inl.h"
#include "cpu/bfloat16/row_normalizers-inl.h"
#include "cpu/bfloat16/tile_unit-inl.h"
#include "cpu/bfloat16/unit.h"
#include "hwy/highway.h"

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

#if STROBE_HAS_BFLOAT16
using AmxUnit = TileUnit<AmxRegisters>;

bool has_bfloat16_kernels() { return true; }
void run_bfloat16_forward_block(bf16::Unit unit, const ForwardTask& task, std::byte* scratch) {
  if (unit == bf16::Unit::tiles) return Bfloat16ForwardBlock<AmxUnit>(task, scratch).run();
  Bfloat16ForwardBlock<DotUnit>(task, scratch).run();
}
void run_bfloat16_backward_block(bf16::Unit unit, const BackwardTask& task, std::byte* scratch) {
  if (unit == bf16::Unit::tiles) return Bfloat16BackwardBlock<AmxUnit>(task, scratch).run();
  Bfloat16BackwardBlock<DotUnit>(task, scratch).run();
}
void run_bfloat16_normalize_rows(bf16::Unit unit, const NormalizerTask& task, std::byte* scratch) {
  if (unit == bf16::Unit::tiles) return Bfloat16RowNormalizing<AmxUnit>(task, scratch).run();
  Bfloat16RowNormalizing<DotUnit>(task, scratch).run();
}
void run_bfloat16_write_query_gradient(const QueryGradientTask& task) {
  bfloat16_write_query_gradient<Avx512Conversions>(task);
}
#else  // never called
bool has_bfloat16_kernels() { return false; }
void run_bfloat16_forward_block(bf16::Unit, const ForwardTask&, std::byte*) {}
void run_bfloat16_backward_block(bf16::Unit, const BackwardTask&, std::byte*) {}
void run_bfloat16_normalize_rows(bf16::Unit, const NormalizerTask&, std::byte*) {}
void run_bfloat16_write_query_gradient(const QueryGradientTask&) {}
#endif

}  // namespace strobe::cpu::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();

#if HWY_ONCE
#include "cpu/bfloat16/kernels.h"

namespace strobe::cpu {

HWY_EXPORT(has_bfloat16_kernels);
HWY_EXPORT(run_bfloat16_forward_block);
HWY_EXPORT(run_bfloat16_backward_block);
HWY_EXPORT(run_bfloat16_normalize_rows);
HWY_EXPORT(run_bfloat16_write_query_gradient);

namespace bf16 {

bool has_kernels() { return HWY_DYNAMIC_DISPATCH(has_bfloat16_kernels)(); }

void forward_block(Unit unit, const ForwardTask& task, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(run_bfloat16_forward_block)(unit, task, scratch);
}

void backward_block(Unit unit, const BackwardTask& task, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(run_bfloat16_backward_block)(unit, task, scratch);
}

void normalize_rows(Unit unit, const NormalizerTask& task, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(run_bfloat16_normalize_rows)(unit, task, scratch);
}

void write_query_gradient(const QueryGradientTask& task) {
  HWY_DYNAMIC_DISPATCH(run_bfloat16_write_query_gradient)(task);
}

}  // namespace bf16
}  // namespace strobe::cpu
#endif
