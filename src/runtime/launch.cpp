// SPDX-License-Identifier: Apache-2.0
#include "runtime/launch.h"

#include <fmt/format.h>

#include <string>

namespace strobe::runtime {
namespace {

std::string attempted(const LaunchShape& shape) {
  return fmt::format("launching a kernel of {} x {} x {} blocks of {} x {} x {} threads with {} bytes of shared memory",
                     shape.grid.x, shape.grid.y, shape.grid.z, shape.block.x, shape.block.y, shape.block.z,
                     shape.dynamic_shared_bytes);
}

}  // namespace

Status launch(const Driver& driver, CUfunction function, const LaunchShape& shape, CUstream stream, void** parameters) {
  std::array<CUlaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (shape.cluster.x * shape.cluster.y * shape.cluster.z > 1) {
    CUlaunchAttribute& attribute = attributes[count++];
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {shape.cluster.x, shape.cluster.y, shape.cluster.z};
  }
  if (shape.overlaps_previous) {
    CUlaunchAttribute& attribute = attributes[count++];
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
  }
  const CUlaunchConfig config = {
      .gridDimX = shape.grid.x,
      .gridDimY = shape.grid.y,
      .gridDimZ = shape.grid.z,
      .blockDimX = shape.block.x,
      .blockDimY = shape.block.y,
      .blockDimZ = shape.block.z,
      .sharedMemBytes = shape.dynamic_shared_bytes,
      .hStream = stream,
      .attrs = attributes.data(),
      .numAttrs = count,
  };
  const CUresult result = driver.LaunchKernelEx(&config, function, parameters, nullptr);
  if (result == CUDA_SUCCESS) return {};
  return driver.check(result, attempted(shape).c_str());
}

}  // namespace strobe::runtime
