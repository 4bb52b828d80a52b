// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/kernels/kernels.cpp"  // compiled once per instruction set
#include "hwy/foreach_target.h"                       // must come before highway.h

#include "cpu/kernels/backward-inl.h"
#include "cpu/kernels/backward_rows-inl.h"
#include "cpu/kernels/few_queries-inl.h"
#include "cpu/kernels/forward-inl.h"
#include "cpu/kernels/row_normalizers-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace strobe::cpu::HWY_NAMESPACE {

void run_forward_block(const ForwardTask& task, std::byte* scratch) { ForwardBlock(task, scratch).run(); }
void run_backward_block(const BackwardTask& task, std::byte* scratch) { BackwardBlock(task, scratch).run(); }
void run_few_queries_chunk(const FewQueriesTask& task, std::byte* scratch) { FewQueriesChunk(task, scratch).run(); }
void run_merge_few_queries(const ForwardTask& task, const float* states, std::int64_t chunks, std::int64_t stride,
                           std::byte* scratch) {
  merge_few_queries(task, states, chunks, stride, reinterpret_cast<float*>(scratch));
}
void run_compute_delta(const DeltaTask& task) { compute_delta(task); }
void run_normalize_rows(const NormalizerTask& task, std::byte* scratch) { RowNormalizing(task, scratch).run(); }
void run_write_query_gradient(const QueryGradientTask& task) { write_query_gradient(task); }
KernelTraits get_kernel_traits() { return kernel_traits(); }

}  // namespace strobe::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "cpu/kernels/kernels.h"

namespace strobe::cpu {

HWY_EXPORT(run_forward_block);
HWY_EXPORT(run_backward_block);
HWY_EXPORT(run_few_queries_chunk);
HWY_EXPORT(run_merge_few_queries);
HWY_EXPORT(run_compute_delta);
HWY_EXPORT(run_normalize_rows);
HWY_EXPORT(run_write_query_gradient);
HWY_EXPORT(get_kernel_traits);

void forward_block(const ForwardTask& task, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(run_forward_block)(task, scratch);
}

void backward_block(const BackwardTask& task, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(run_backward_block)(task, scratch);
}

void few_queries_chunk(const FewQueriesTask& task, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(run_few_queries_chunk)(task, scratch);
}

void merge_few_queries(const ForwardTask& task, const float* states, std::int64_t chunks, std::int64_t stride,
                       std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(run_merge_few_queries)(task, states, chunks, stride, scratch);
}

void compute_delta(const DeltaTask& task) { HWY_DYNAMIC_DISPATCH(run_compute_delta)(task); }

void normalize_rows(const NormalizerTask& task, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(run_normalize_rows)(task, scratch);
}

void write_query_gradient(const QueryGradientTask& task) { HWY_DYNAMIC_DISPATCH(run_write_query_gradient)(task); }

KernelTraits kernel_traits() { return HWY_DYNAMIC_DISPATCH(get_kernel_traits)(); }

}  // namespace strobe::cpu
#endif
