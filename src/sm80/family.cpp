// SPDX-License-Identifier: Apache-2.0
#include "sm80/family.h"

#include "gpu/auxiliary/after_cache_conversion.h"
#include "gpu/auxiliary/convert_cache_variant.h"
#include "gpu/plan/supported.h"
#include "gpu/variant/architecture.h"
#include "sm80/backward.h"
#include "sm80/cache_conversion.h"
#include "sm80/candidates.h"
#include "sm80/forward.h"
#include "sm80/list_kernels.h"

namespace strobe::sm80 {
namespace {

class Sm80 final : public gpu::Family {
 public:
  std::string_view name() const override { return "sm80"; }

  Status serves(const runtime::CudaDevice& device) const override {
    if (device.compute_major >= 8) return {};
    return gpu::unsupported("{} has compute capability {}.{}: the gpu engine is for 8.0 and later", device.name,
                            device.compute_major, device.compute_minor);
  }

  engine::PlannedCallResult plan_forward(const gpu::Request& request) const override {
    return converts_cache(request.problem) ? gpu::plan_after_conversion(request, sm80::plan_forward)
                                           : sm80::plan_forward(request);
  }

  engine::PlannedCallResult plan_backward(const gpu::Request& request) const override {
    return sm80::plan_backward(request);
  }

  Status list_kernels(const AttentionProblem& problem, const gpu::DeviceShape& shape, const gpu::Choice& choice,
                      gpu::PackList& list) const override {
    if (converts_cache(problem)) gpu::list_cache_conversion(problem, gpu::architecture_of(shape), list);
    return sm80::list_kernels(kernels_problem(problem), shape, choice, list);
  }

  Result<std::vector<gpu::Candidate>> candidates(const AttentionProblem& problem,
                                                 const gpu::DeviceShape& shape) const override {
    return sm80::candidates(kernels_problem(problem), shape);
  }
};

}  // namespace

const gpu::Family& family() {
  static const Sm80 family;
  return family;
}

}  // namespace strobe::sm80
