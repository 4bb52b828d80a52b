// SPDX-License-Identifier: Apache-2.0
#include "bench/multiply_probe.h"

#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/bfloat16_probe.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include "cpu/bfloat16/amx_registers-inl.h"
#include "cpu/bfloat16/attributes-inl.h"

STROBE_BEFORE_BFLOAT16_NAMESPACE();
namespace strobe::bench::HWY_NAMESPACE {

#if STROBE_HAS_BFLOAT16
constexpr std::int32_t kPair = 0x3A833A83;  // twice 0.001: sums of 100,000 products stay small

bool has_bfloat16_chains() { return true; }

/// Twelve chains, as of float32: a dot product takes at most six cycles, and one or two begin in each.
double run_dot_chains(std::int64_t steps, float start, float* sink) {
  constexpr int kChains = 12;
  const auto pairs = (__m512bh)_mm512_set1_epi32(kPair);
  __m512 sums[kChains];
  for (__m512& sum : sums) sum = _mm512_set1_ps(start);
  for (std::int64_t step = 0; step < steps; ++step) {
    HWY_UNROLL(kChains)
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, pairs, pairs);
  }
  __m512 all = _mm512_setzero_ps();
  for (const __m512& sum : sums) all = _mm512_add_ps(all, sum);
  *sink = _mm512_reduce_add_ps(all);
  return 12.0 * 16.0 * 4.0 * static_cast<double>(steps);  // 16 sums of two products each
}

/// Six tiles of sums, and a tile of each operand: a product takes 52 cycles, and one begins every 16.
double run_tile_chains(std::int64_t steps, float start, float* sink) {
  using Registers = cpu::HWY_NAMESPACE::AmxRegisters;
  alignas(64) std::int32_t pairs[16][16];
  for (auto& row : pairs) {
    for (std::int32_t& pair : row) pair = kPair;
  }
  alignas(64) float sums[16][16];
  const Registers::Session session;
  Registers::load<6>(pairs, sizeof pairs[0]);
  Registers::load<7>(pairs, sizeof pairs[0]);
  Registers::zero<0>();
  Registers::zero<1>();
  Registers::zero<2>();
  Registers::zero<3>();
  Registers::zero<4>();
  Registers::zero<5>();
  for (std::int64_t step = 0; step < steps; ++step) {
    Registers::multiply<0, 6, 7>();
    Registers::multiply<1, 6, 7>();
    Registers::multiply<2, 6, 7>();
    Registers::multiply<3, 6, 7>();
    Registers::multiply<4, 6, 7>();
    Registers::multiply<5, 6, 7>();
  }
  Registers::store<0>(sums, sizeof sums[0]);
  *sink = sums[0][0] + start;
  return 6.0 * 16.0 * 16.0 * 64.0 * static_cast<double>(steps);  // 16 x 16 sums of 32 products each
}
#else
bool has_bfloat16_chains() { return false; }
double run_dot_chains(std::int64_t, float, float*) { return 0.0; }
double run_tile_chains(std::int64_t, float, float*) { return 0.0; }
#endif

}  // namespace strobe::bench::HWY_NAMESPACE
STROBE_AFTER_BFLOAT16_NAMESPACE();

#if HWY_ONCE
#include "cpu/bfloat16/unit.h"

namespace strobe::bench {
namespace {

HWY_EXPORT(has_bfloat16_chains);
HWY_EXPORT(run_dot_chains);
HWY_EXPORT(run_tile_chains);

double dot_chains(std::int64_t steps, float start, float* sink) {
  return HWY_DYNAMIC_DISPATCH(run_dot_chains)(steps, start, sink);
}

double tile_chains(std::int64_t steps, float start, float* sink) {
  return HWY_DYNAMIC_DISPATCH(run_tile_chains)(steps, start, sink);
}

}  // namespace

RunChains bfloat16_chains() {
  if (!HWY_DYNAMIC_DISPATCH(has_bfloat16_chains)()) return nullptr;
  switch (cpu::bf16::processor_unit()) {
    case cpu::bf16::Unit::none: return nullptr;
    case cpu::bf16::Unit::dot_products: return dot_chains;
    case cpu::bf16::Unit::tiles: return tile_chains;
  }
  return nullptr;
}

}  // namespace strobe::bench
#endif  // HWY_ONCE
