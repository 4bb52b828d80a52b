// SPDX-License-Identifier: Apache-2.0
// What the build compiles ahead: every family's list.
#include <utility>

#include "gpu/auxiliary/served_steps.h"
#include "gpu/plan/known_devices.h"
#include "gpu/variant/architecture.h"
#include "gpu/variant/pack_list.h"
#include "runtime/pack/common_variants.h"
#include "sm80/list_kernels.h"
#include "sm80/pack.h"
#include "sm90/few_rows.h"
#include "sm90/list_kernels.h"
#include "sm90/pack.h"

namespace strobe::runtime {

namespace {

/// By the family that takes each on devices of 9.0.
std::vector<CommonVariant> kernels_of_served_steps() {
  constexpr gpu::DeviceShape kH200 = gpu::device_named("H200");
  gpu::PackList list;
  for (const AttentionProblem& step : gpu::served_steps()) {
    const auto list_kernels = sm90::is_decode(step) ? sm80::list_kernels : sm90::list_kernels;
    static_cast<void>(list_kernels(step, kH200, {}, list));
  }
  return list.take();
}

}  // namespace

std::vector<CommonVariant> common_variants() {
  gpu::PackList all;
  for (const auto list : {sm90::pack, sm80::pack, kernels_of_served_steps}) {
    for (CommonVariant& kernel : list()) all.add(std::move(kernel.variant), kernel.dynamic_shared_bytes);
  }
  return all.take();
}

std::string_view newest_architecture() { return gpu::kSm90a; }

}  // namespace strobe::runtime
