// SPDX-License-Identifier: Apache-2.0
// Compiles the common kernels on all cores and puts them into one archive.
#pragma once

#include <string>
#include <vector>

#include "runtime/kernel_store.h"
#include "runtime/pack/common_variants.h"
#include "runtime/pack/ptxas_report.h"

namespace strobe::runtime {

struct PackedKernel {
  CommonVariant kernel;
  PtxasReport report;
  double compile_ms = 0.0;
  std::size_t cubin_bytes = 0;
};

struct Pack {
  std::string archive;
  std::vector<PackedKernel> kernels;  // in the variants' order
};

/// Compiles what the cache of `store` lacks, in one process per hardware thread, and reads it all back. Fails when a
/// kernel does not compile, uses local memory, or has its WGMMAs serialised by ptxas; every reason is printed on stderr
/// first.
Result<Pack> build_pack(const KernelStore& store, const Nvrtc& nvrtc, const std::vector<CommonVariant>& variants);

}  // namespace strobe::runtime
