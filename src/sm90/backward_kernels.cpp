// SPDX-License-Identifier: Apache-2.0
#include "sm90/backward_kernels.h"

#include <future>

#include "gpu/kernel_table.h"
#include "gpu/load_ahead.h"
#include "kernels/sm90/backward/bias_gradient/config.h"
#include "kernels/sm90/backward/smem.h"
#include "sm90/backward_variant.h"

namespace strobe::sm90 {
namespace {

template <class Config>
Result<runtime::Kernel> find_kernel(gpu::KernelTable<Config>& table, const Config& config,
                                    runtime::Variant (*variant)(const Config&), int smem_bytes,
                                    const runtime::CudaDevice& device) {
  return table.find_or_load(config, device, [&] {
    return runtime::load_kernel(runtime::kernel_store(), variant(config), device, static_cast<unsigned>(smem_bytes));
  });
}

Result<runtime::Kernel> find_sink_kernel(const runtime::CudaDevice& device) {
  static auto& table = *new gpu::KernelTable<int>;  // it has one variant
  return table.find_or_load(0, device,
                            [&] { return runtime::load_kernel(runtime::kernel_store(), sink_variant(), device, 0); });
}

}  // namespace

Result<BackwardKernels> find_backward_kernels(const AttentionProblem& problem, const BackwardPlan& plan,
                                              const runtime::CudaDevice& device) {
  static auto& prepares = *new gpu::KernelTable<auxiliary::PrepareBackwardConfig>;
  static auto& large_rows = *new gpu::KernelTable<auxiliary::PrepareBackwardConfig>;
  static auto& mains = *new gpu::KernelTable<backward::Config>;
  static auto& finishes = *new gpu::KernelTable<backward::Config>;
  static auto& biases = *new gpu::KernelTable<backward::Config>;
  static auto& queries = *new gpu::KernelTable<backward::QueryGradientConfig>;
  const auto find_main = [&] {
    return find_kernel(mains, plan.config, backward_variant, smem_plan(plan.config).total_bytes, device);
  };
  const auto find_query = [&] {
    return plan.config.by_roles
               ? find_kernel(queries, plan.query, query_gradient_variant, smem_plan(plan.query).total_bytes, device)
               : find_kernel(finishes, plan.config, finish_variant, 0, device);
  };
  const backward::Config gradient_config = bias_gradient_config(plan.config);
  const auto find_bias = [&, gradient_config] {
    return find_kernel(biases, gradient_config, bias_gradient_variant,
                       bias_gradient_smem_plan(gradient_config).total_bytes, device);
  };
  [[maybe_unused]] const std::future<void> main_ahead = gpu::load_ahead(mains.holds(plan.config, device), find_main);
  [[maybe_unused]] const std::future<void> query_ahead =
      gpu::load_ahead(!plan.finishes || (plan.config.by_roles ? queries.holds(plan.query, device)
                                                              : finishes.holds(plan.config, device)),
                      find_query);
  [[maybe_unused]] const std::future<void> bias_ahead =
      gpu::load_ahead(!problem.wants_d_bias || biases.holds(gradient_config, device), find_bias);
  const Result<runtime::Kernel> large =
      find_kernel(large_rows, gpu::large_rows_config(plan.prepare), large_rows_variant, 0, device);
  if (!large.ok()) return large.status();
  const Result<runtime::Kernel> prepare = find_kernel(prepares, plan.prepare, prepare_variant, 0, device);
  if (!prepare.ok()) return prepare.status();
  const Result<runtime::Kernel> main = find_main();
  if (!main.ok()) return main.status();
  BackwardKernels kernels{*large, *prepare, *main, {}, {}, {}};
  if (plan.finishes) {
    const Result<runtime::Kernel> query = find_query();
    if (!query.ok()) return query.status();
    kernels.query = *query;
  }
  if (problem.wants_d_bias) {
    const Result<runtime::Kernel> bias = find_bias();
    if (!bias.ok()) return bias.status();
    kernels.bias = *bias;
  }
  if (!problem.wants_d_sink) return kernels;
  const Result<runtime::Kernel> sink = find_sink_kernel(device);
  if (!sink.ok()) return sink.status();
  kernels.sink = *sink;
  return kernels;
}

}  // namespace strobe::sm90
