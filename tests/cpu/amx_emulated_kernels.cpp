// SPDX-License-Identifier: Apache-2.0
// Takes the place of src/cpu/bfloat16/kernels.cpp: the AMX kernels on the emulated matrix unit.
#include "cpu/bfloat16/backward-inl.h"
#include "cpu/bfloat16/forward-inl.h"
#include "cpu/bfloat16/kernels.h"
#include "cpu/bfloat16/row_normalizers-inl.h"
#include "cpu/bfloat16/tile_unit-inl.h"
#include "emulated_unit.h"

namespace strobe::cpu::bf16 {

Unit unit() { return Unit::tiles; }

void forward_block(Unit, const ForwardTask& task, std::byte* scratch) {
  HWY_NAMESPACE::Bfloat16ForwardBlock<HWY_NAMESPACE::TileUnit<test::EmulatedRegisters>>(task, scratch).run();
}

void backward_block(Unit, const BackwardTask& task, std::byte* scratch) {
  HWY_NAMESPACE::Bfloat16BackwardBlock<HWY_NAMESPACE::TileUnit<test::EmulatedRegisters>>(task, scratch).run();
}

void normalize_rows(Unit, const NormalizerTask& task, std::byte* scratch) {
  HWY_NAMESPACE::Bfloat16RowNormalizing<HWY_NAMESPACE::TileUnit<test::EmulatedRegisters>>(task, scratch).run();
}

void write_query_gradient(const QueryGradientTask& task) {
  HWY_NAMESPACE::bfloat16_write_query_gradient<test::EmulatedRegisters>(task);
}

}  // namespace strobe::cpu::bf16
