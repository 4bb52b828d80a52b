// SPDX-License-Identifier: Apache-2.0
// Takes the place of src/cpu/amx/kernels.cpp: the AMX kernels on the emulated matrix unit.
#include "cpu/amx/amx.h"
#include "cpu/amx/backward-inl.h"
#include "cpu/amx/forward-inl.h"
#include "emulated_unit.h"

namespace strobe::cpu::amx {

bool available() { return true; }

void forward_block(const ForwardTask& task, std::byte* scratch) {
  HWY_NAMESPACE::AmxForwardBlock<test::EmulatedUnit>(task, scratch).run();
}

void backward_block(const BackwardTask& task, std::byte* scratch) {
  HWY_NAMESPACE::AmxBackwardBlock<test::EmulatedUnit>(task, scratch).run();
}

void write_query_gradient(const QueryGradientTask& task) {
  HWY_NAMESPACE::amx_write_query_gradient<test::EmulatedUnit>(task);
}

}  // namespace strobe::cpu::amx
