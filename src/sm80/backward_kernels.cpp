// SPDX-License-Identifier: Apache-2.0
#include "sm80/backward_kernels.h"

#include <future>

#include "gpu/backward_variant.h"
#include "gpu/kernel_table.h"
#include "gpu/load_ahead.h"
#include "kernels/sm80/backward/smem.h"
#include "sm80/backward_variant.h"
#include "sm80/forward_variant.h"

namespace strobe::sm80 {
namespace {

template <class Config, class MakeVariant>
Result<runtime::Kernel> find_kernel(gpu::KernelTable<Config>& table, const Config& config,
                                    const runtime::CudaDevice& device, int smem_bytes, const MakeVariant& variant) {
  return table.find_or_load(config, device, [&] {
    return runtime::load_kernel(runtime::kernel_store(), variant(), device, static_cast<unsigned>(smem_bytes));
  });
}

}  // namespace

Result<BackwardKernels> find_backward_kernels(const AttentionProblem& problem, const BackwardPlan& plan,
                                              const runtime::CudaDevice& device, const DeviceShape& shape) {
  static auto& prepares = *new gpu::KernelTable<auxiliary::PrepareBackwardConfig>;
  static auto& large_rows = *new gpu::KernelTable<auxiliary::PrepareBackwardConfig>;
  static auto& mains = *new gpu::KernelTable<backward::Config>;
  static auto& finishes = *new gpu::KernelTable<backward::Config>;
  static auto& biases = *new gpu::KernelTable<backward::Config>;
  static auto& sinks = *new gpu::KernelTable<int>;  // it has one variant
  const backward::Config& config = plan.config;
  const int smem_bytes = smem_plan(config).total_bytes;
  const auto find_main = [&] {
    return find_kernel(mains, config, device, smem_bytes, [&] { return backward_variant(config, shape); });
  };
  const auto find_finish = [&] {
    return find_kernel(finishes, config, device, finish_smem_bytes(config),
                       [&] { return finish_variant(config, shape); });
  };
  const auto find_bias = [&] {
    return find_kernel(biases, config, device, smem_bytes, [&] { return bias_gradient_variant(config, shape); });
  };
  const auto find_prepare = [&] {
    return find_kernel(prepares, plan.prepare, device, 0,
                       [&] { return gpu::prepare_variant(plan.prepare, architecture_of(shape)); });
  };
  const auto find_large_rows = [&] {
    const auxiliary::PrepareBackwardConfig large = gpu::large_rows_config(plan.prepare);
    return find_kernel(large_rows, large, device, 0,
                       [&] { return gpu::large_rows_variant(large, architecture_of(shape)); });
  };
  const auto find_sink = [&] {
    return find_kernel(sinks, 0, device, 0, [&] { return gpu::sink_variant(architecture_of(shape)); });
  };
  [[maybe_unused]] const std::future<void> main_ahead = gpu::load_ahead(mains.holds(config, device), find_main);
  [[maybe_unused]] const std::future<void> finish_ahead = gpu::load_ahead(finishes.holds(config, device), find_finish);
  [[maybe_unused]] const std::future<void> bias_ahead =
      gpu::load_ahead(!problem.wants_d_bias || biases.holds(config, device), find_bias);
  BackwardKernels kernels;
  Status status;
  const auto take = [&](bool wanted, runtime::Kernel& kernel, const auto& find) {
    if (!wanted || !status.ok()) return;
    const Result<runtime::Kernel> found = find();
    if (found.ok()) {
      kernel = *found;
    } else {
      status = found.status();
    }
  };
  take(true, kernels.large_rows, find_large_rows);
  take(true, kernels.prepare, find_prepare);
  take(true, kernels.main, find_main);
  take(true, kernels.finish, find_finish);
  take(problem.wants_d_bias, kernels.bias, find_bias);
  take(problem.wants_d_sink, kernels.sink, find_sink);
  if (!status.ok()) return status;
  return kernels;
}

}  // namespace strobe::sm80
