// SPDX-License-Identifier: Apache-2.0
#include "gpu/params/captures.h"

#include <cstddef>

#include "call/limits.h"

namespace strobe::gpu {
namespace {

static_assert(expression::kMostCaptures == kMaxCaptures);

template <class View>
expression::Captures captures_of(std::span<const View> views) {
  expression::Captures captures{};
  for (std::size_t i = 0; i < views.size(); ++i) {
    expression::CaptureView& to = captures.of[i];
    to.data = views[i].data;
    for (int axis = 0; axis < views[i].rank; ++axis) {
      to.shape[axis] = static_cast<int>(views[i].shape[axis]);
      to.strides[axis] = views[i].strides[axis];
    }
  }
  return captures;
}

}  // namespace

expression::Captures captures(std::span<const ConstTensorView> views) { return captures_of(views); }
expression::Captures captures(std::span<const TensorView> views) { return captures_of(views); }

}  // namespace strobe::gpu
