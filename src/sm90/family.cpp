// SPDX-License-Identifier: Apache-2.0
#include "sm90/family.h"

#include "gpu/auxiliary/after_cache_conversion.h"
#include "gpu/call/override.h"
#include "gpu/call/shared_or_any.h"
#include "gpu/plan/supported.h"
#include "kernels/sm90/forward/config.h"
#include "sm90/backward.h"
#include "sm90/cache_conversion.h"
#include "sm90/candidates.h"
#include "sm90/few_rows.h"
#include "sm90/forward.h"
#include "sm90/list_kernels.h"
#include "sm90/pages.h"
#include "sm90/rows_in_format.h"

namespace strobe::sm90 {
namespace {

engine::PlannedCallResult plan_converted(const gpu::Request& request) {
  return gpu::plan_after_conversion(request, sm90::plan_forward);
}

class Sm90 final : public gpu::Family {
 public:
  std::string_view name() const override { return "sm90"; }

  Status serves(const runtime::CudaDevice& device) const override {
    if (device.compute_major == 9 && device.compute_minor == 0) return {};
    return gpu::unsupported("{} has compute capability {}.{}: the sm90 kernels are for 9.0", device.name,
                            device.compute_major, device.compute_minor);
  }

  bool takes_eight_bit() const override { return true; }

  std::string_view prefers_later(const AttentionProblem& problem) const override {
    if (problem.dtype == DType::float32) return "q is float32";
    if (problem.pass != Pass::forward) return {};
    if (reads_stored_page_rows(kernels_problem(problem))) return "keys in 8 bits are read row by row";
    if (gpu::is_overridden<forward::Config>()) return {};  // a test's variant is one of these kernels
    return is_decode(problem) ? "there are few query rows" : "";
  }

  engine::PlannedCallResult plan_forward(const gpu::Request& request) const override {
    const bool converts = converts_cache(request.problem);
    const auto rows = gpu::is_overridden<forward::Config>()
                          ? std::nullopt
                          : cache_rows_config(request.problem, request.shape, request.choice.choice);
    if (!rows.has_value()) return converts ? plan_converted(request) : sm90::plan_forward(request);
    const engine::PlannedCallResult in_place = plan_cache_rows(request, *rows);
    return converts ? gpu::rows_or_converted(in_place, plan_converted(request)) : gpu::rows_alone(in_place);
  }

  Status takes_rows(const AttentionProblem& problem, const gpu::DeviceShape& shape,
                    const RowFormat& format) const override {
    return rows_config(problem, shape, format).status();
  }

  engine::PlannedCallResult plan_rows(const gpu::Request& request, const RowFormat& format) const override {
    return sm90::plan_rows(request, format);
  }

  engine::PlannedCallResult plan_backward(const gpu::Request& request) const override {
    return sm90::plan_backward(request);
  }

  Status list_kernels(const AttentionProblem& problem, const gpu::DeviceShape& shape, const gpu::Choice& choice,
                      gpu::PackList& list) const override {
    return sm90::list_kernels(problem, shape, choice, list);
  }

  Result<std::vector<gpu::Candidate>> candidates(const AttentionProblem& problem,
                                                 const gpu::DeviceShape& shape) const override {
    return sm90::candidates(kernels_problem(problem), shape);
  }
};

}  // namespace

const gpu::Family& family() {
  static const Sm90 family;
  return family;
}

}  // namespace strobe::sm90
