// SPDX-License-Identifier: Apache-2.0
// Compiles the common kernels on all cores and puts them into one archive.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/kernel_store.h"
#include "runtime/pack/common_variants.h"
#include "runtime/pack/ptxas_report.h"

namespace strobe::runtime {

struct PackedKernel {
  CommonVariant kernel;
  NvrtcVersion nvrtc;  // that compiled it
  PtxasReport report;
  double compile_ms = 0.0;
  std::size_t cubin_bytes = 0;
};

struct Pack {
  std::string archive;
  std::vector<PackedKernel> kernels;  // in the variants' order, by the first NVRTC, then by the next
};

/// Compiles what the cache of `store` lacks, in one process per hardware thread, and reads it all back. A kernel that
/// the first NVRTC lets use local memory, or whose WGMMAs it serialises, is compiled by the next one. Fails when a
/// kernel does not compile, or the last NVRTC does no better; every reason is printed on stderr first.
Result<Pack> build_pack(const KernelStore& store, std::span<const Nvrtc* const> nvrtcs,
                        std::vector<CommonVariant> variants);

}  // namespace strobe::runtime
