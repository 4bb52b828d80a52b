// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/sparse/kernels.cpp"  // compiled once per instruction set
#include "hwy/foreach_target.h"                      // must come before highway.h

#include "cpu/sparse/attend-inl.h"
#include "cpu/sparse/decode-inl.h"
#include "cpu/sparse/differentiate-inl.h"
#include "cpu/sparse/kernels.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

void run_decode_row(const RowFormat& format, const RowBytes<const std::byte>& from, float* to) {
  decode(format, from, to);
}
void run_add_listed(std::span<const ListedKey> keys, const ListedScores& scores, std::int64_t head_dim,
                    std::int64_t head_dim_v, const ListedScratch& scratch, const ListedState& state) {
  add_keys(keys, scores, head_dim, head_dim_v, scratch, state);
}
void run_join_listed(std::span<const ListedState> parts, std::span<const float> weights, std::int64_t row) {
  join_parts(parts, weights, row);
}
void run_differentiate_listed(std::span<const ListedKey> keys, const ListedScores& scores, std::int64_t head_dim,
                              std::int64_t head_dim_v, const ListedGradientScratch& scratch, float* p, float* ds) {
  differentiate_keys(keys, scores, head_dim, head_dim_v, scratch, p, ds);
}
void run_scatter_listed(const float* weights, std::int64_t rows, const float* from, std::int64_t stride,
                        std::int64_t columns, std::span<float* const> to) {
  scatter_keys(weights, rows, from, stride, columns, to);
}
void run_store_listed(const float* from, float factor, DType dtype, void* to, std::int64_t count) {
  store_columns(from, factor, dtype, to, count);
}

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strobe::cpu {

HWY_EXPORT(run_decode_row);
HWY_EXPORT(run_add_listed);
HWY_EXPORT(run_join_listed);
HWY_EXPORT(run_differentiate_listed);
HWY_EXPORT(run_scatter_listed);
HWY_EXPORT(run_store_listed);

void decode_row(const RowFormat& format, const RowBytes<const std::byte>& from, float* to) {
  HWY_DYNAMIC_DISPATCH(run_decode_row)(format, from, to);
}

void clear_listed(const ListedState& state) {
  std::fill_n(state.o, state.rows * state.stride, 0.0F);
  std::fill_n(state.maximum, state.rows, -kInfinity);
  std::fill_n(state.sum, state.rows, 0.0F);
}

void add_listed(std::span<const ListedKey> keys, const ListedScores& scores, std::int64_t head_dim,
                std::int64_t head_dim_v, const ListedScratch& scratch, const ListedState& state) {
  HWY_DYNAMIC_DISPATCH(run_add_listed)(keys, scores, head_dim, head_dim_v, scratch, state);
}

void join_listed(std::span<const ListedState> parts, std::span<const float> weights, std::int64_t row) {
  HWY_DYNAMIC_DISPATCH(run_join_listed)(parts, weights, row);
}

void differentiate_listed(std::span<const ListedKey> keys, const ListedScores& scores, std::int64_t head_dim,
                          std::int64_t head_dim_v, const ListedGradientScratch& scratch, float* p, float* ds) {
  HWY_DYNAMIC_DISPATCH(run_differentiate_listed)(keys, scores, head_dim, head_dim_v, scratch, p, ds);
}

void scatter_listed(const float* weights, std::int64_t rows, const float* from, std::int64_t stride,
                    std::int64_t columns, std::span<float* const> to) {
  HWY_DYNAMIC_DISPATCH(run_scatter_listed)(weights, rows, from, stride, columns, to);
}

void store_listed(const float* from, float factor, DType dtype, void* to, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(run_store_listed)(from, factor, dtype, to, count);
}

}  // namespace strobe::cpu
#endif
