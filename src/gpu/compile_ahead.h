// SPDX-License-Identifier: Apache-2.0
// Kernels compiled before the calls that need them: for the program `strobe`, no part of the public API.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "call/problem.h"
#include "gpu/plan/device.h"
#include "runtime/nvrtc.h"
#include "runtime/variant.h"
#include "strobe/export.h"
#include "strobe/status.h"

namespace strobe::gpu {

/// The kernels that a call needs on a device of that name and shape, which need not be there; unsupported where no
/// family has a plan for it.
STROBE_API Result<std::vector<runtime::Variant>> kernels_of(const AttentionProblem& problem, const std::string& name,
                                                            const DeviceShape& shape);

/// Whether the first call would have to compile it. `newest`: of the NVRTCs whose code the driver loads.
STROBE_API Result<bool> is_missing(const runtime::Variant& kernel, runtime::NvrtcVersion newest);

/// Whether the library itself holds it, in the pack that the build made.
STROBE_API bool is_built_in(const runtime::Variant& kernel, runtime::NvrtcVersion newest);

/// Compiles it into the user's cache, where that lacks it. Threads and processes may call this at once.
STROBE_API Status compile_into_cache(const runtime::Variant& kernel, runtime::NvrtcVersion newest);

/// The bytes of a pack of those kernels, from the user's cache: a file that the library finds by STROBE_KERNELS.
STROBE_API Result<std::string> pack_of(std::span<const runtime::Variant> kernels, runtime::NvrtcVersion newest);

/// The user's cache folder, or why it cannot be used.
STROBE_API Result<std::string> cache_folder();

/// This machine's first GPU by name and shape, and the newest NVRTC whose code its driver loads.
struct ThisDevice {
  std::string name;
  DeviceShape shape;
  runtime::NvrtcVersion newest;
};
STROBE_API Result<ThisDevice> this_device();

}  // namespace strobe::gpu
