// SPDX-License-Identifier: Apache-2.0
// The memory of a call's tensors: pointers, and outputs apart from one another and from what is read.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "api/tensor_checks.h"

namespace strobe::api {

/// Tensors that are not given are left out.
class CallMemory {
 public:
  /// Before the inputs.
  void add_output(std::string name, const ConstTensorView& view) {
    add_input(std::move(name), view);
    outputs_ = tensors_.size();
  }
  void add_input(std::string name, const ConstTensorView& view) {
    if (view.given()) tensors_.emplace_back(std::move(name), view);
  }

  Status check() const {
    for (const auto& [name, view] : tensors_) {
      if (Status status = check_data({name, view}); !status.ok()) return status;
    }
    for (std::size_t i = 0; i < outputs_; ++i) {
      for (std::size_t other = i + 1; other < tensors_.size(); ++other) {
        Status status =
            check_apart({tensors_[i].first, tensors_[i].second}, {tensors_[other].first, tensors_[other].second});
        if (!status.ok()) return status;
      }
    }
    return {};
  }

 private:
  std::vector<std::pair<std::string, ConstTensorView>> tensors_;
  std::size_t outputs_ = 0;
};

}  // namespace strobe::api
