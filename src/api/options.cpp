// SPDX-License-Identifier: Apache-2.0
#include "api/options.h"

#include <cmath>
#include <initializer_list>

#include "api/tensor_checks.h"
#include "call/eight_bit.h"

namespace strobe::api {
namespace {

Status check_without_sums(std::initializer_list<NamedTensor> tensors) {
  for (const auto& [name, view] : tensors) {
    if (!view.given()) continue;
    return invalid("{} is given with normalize none: it belongs to the softmax", name);
  }
  return {};
}

}  // namespace

Status check_options(const AttentionOptions& options) {
  if (options.scale && !std::isfinite(*options.scale)) return invalid("scale is {}: it must be finite", *options.scale);
  if (!std::isfinite(options.softcap) || options.softcap < 0.0F) {
    return invalid("softcap is {}: it must be positive, or 0 for none", options.softcap);
  }
  if (options.window.left < -1 || options.window.right < -1) {
    return invalid("window is ({}, {}): each side must be 0 or more, or -1 for no bound", options.window.left,
                   options.window.right);
  }
  if (options.chunk < 0) return invalid("chunk is {}: it must be positive, or 0 for none", options.chunk);
  if (options.log_length < 0 || options.log_length == 1 || (options.log_length > 0 && options.row_invariant)) {
    return invalid("log_length is {}: it must be 2 or more, or 0 for none and with row_invariant", options.log_length);
  }
  return check_dropout(options.dropout);
}

Status check_normalization(const ForwardArguments& arguments, const AttentionOptions& options) {
  if (options.normalize == Normalization::softmax) return {};
  if (is_eight_bit(arguments.q.dtype)) {
    return unsupported("q is {}: no engine has normalize none of 8-bit q", name_of(arguments.q.dtype));
  }
  return check_without_sums(
      {{"sink", arguments.modifiers.sink}, {"lse", arguments.lse}, {"max_logits", arguments.max_logits}});
}

Status check_normalization(const BackwardArguments& arguments, const AttentionOptions& options) {
  if (options.normalize == Normalization::softmax) return {};
  return check_without_sums({{"sink", arguments.modifiers.sink}, {"lse", arguments.lse}, {"d_lse", arguments.d_lse}});
}

}  // namespace strobe::api
