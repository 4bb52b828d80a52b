// SPDX-License-Identifier: Apache-2.0
#include "gpu/sparse/backward_variants.h"

#include <fmt/format.h>

#include <string>

#include "gpu/auxiliary/backward_variant.h"
#include "gpu/call/find_kernel.h"
#include "gpu/variant/architecture.h"

namespace strobe::gpu {
namespace {

using auxiliary::SparseBackwardConfig;

/// The kernel sparse_NAME of a header of that name.
runtime::Variant variant_of(const char* name, const std::string& argument, const runtime::CudaDevice& device) {
  return {.name = fmt::format("sparse {} ({})", name, argument),
          .include = fmt::format("kernels/auxiliary/sparse_backward/{}.h", name),
          .expression = fmt::format("strobe::auxiliary::sparse_{}{}", name, argument),
          .architecture = std::string(architecture_of(device)),
          .options = {}};
}

}  // namespace

Result<SparseBackwardKernels> sparse_backward_kernels(const SparseBackwardConfig& config, bool sink,
                                                      const runtime::CudaDevice& device) {
  const std::string of_config = fmt::format("<{}>", cpp_text(config));
  const std::string of_element = fmt::format("<{}>", cpp_text(config.element));
  const SparseBackwardConfig element{.element = config.element};
  constexpr int kWeightsBytes = auxiliary::sparse_tile_bytes(auxiliary::kSparseKeys, 2);
  constexpr int kSharesBytes = auxiliary::sparse_tile_bytes(auxiliary::kSparseKeys, 1);
  constexpr int kColumnsBytes = auxiliary::sparse_tile_bytes(auxiliary::kSparseTile, 1);
  SparseBackwardKernels kernels;
  FindKernels find(device);
  find(element, 0, [=, &device] { return variant_of("prepare", of_element, device); }, kernels.prepare);
  find(config, kWeightsBytes, [=, &device] { return variant_of("weights", of_config, device); }, kernels.weights);
  find(
      config, kColumnsBytes, [=, &device] { return variant_of("query_gradient", of_config, device); },
      kernels.query_gradient);
  find(config, kSharesBytes, [=, &device] { return variant_of("shares", of_config, device); }, kernels.shares);
  find(SparseBackwardConfig{}, 0, [&device] { return variant_of("sum", {}, device); }, kernels.sum);
  find(element, 0, [=, &device] { return variant_of("store", of_element, device); }, kernels.store);
  if (sink) {
    find(SparseBackwardConfig{}, 0, [&device] { return sink_variant(architecture_of(device)); }, kernels.sink);
  }
  if (Status status = find.take(); !status.ok()) return status;
  return kernels;
}

}  // namespace strobe::gpu
