// SPDX-License-Identifier: Apache-2.0
// How an append is cut into blocks of threads.
#pragma once

#include "kernels/auxiliary/append_params.h"
#include "strobe/cache.h"

namespace strobe::gpu {

struct AppendLaunch {
  auxiliary::AppendConfig config;
  auxiliary::AppendParams params{};
  std::int64_t blocks = 0;
};

/// The launch of a checked append, or unsupported for more rows than a launch can have.
Result<AppendLaunch> append_launch(const AppendArguments& arguments, int multiprocessors);

}  // namespace strobe::gpu
