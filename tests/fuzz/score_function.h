// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "abi_call.h"
#include "strobe/strobe.h"

namespace strobe::fuzz {

/// Null stays null; else a function of a score and a mask, with a capture where the given address is even.
const strobe_score_function* parsed_function(const strobe_score_function* given);

/// The arrays that the pointers to captures and to their gradients lead to. They have exactly capture_count elements,
/// so that a sanitizer sees one too many, but none where that is no number of captures that a call takes.
class CaptureLists {
 public:
  /// Sets the pointers of `arguments`. The arrays live as long as this.
  template <class Arguments>
  CaptureLists(Arguments& arguments, const Setting& setting) {
    arguments.function = parsed_function(arguments.function);
    place(arguments.captures, captures_, setting.capture, arguments.capture_count);
    if constexpr (requires { arguments.d_captures; }) {
      place(arguments.d_captures, d_captures_, setting.d_capture, arguments.capture_count);
    }
  }

 private:
  using List = std::vector<strobe_tensor>;
  static void place(const strobe_tensor*& pointer, List& list, const strobe_tensor& element, std::int32_t count);

  List captures_, d_captures_;
};

}  // namespace strobe::fuzz
