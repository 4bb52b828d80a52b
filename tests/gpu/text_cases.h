// SPDX-License-Identifier: Apache-2.0
// Calls with texts on GPUs, for tests of both families.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device_case.h"
#include "gpu_test.h"
#include "tested_engine.h"

namespace strobe::test {

using Lengths = std::pair<std::int64_t, std::int64_t>;  // of queries and keys

inline constexpr std::int64_t kHeads = 4;
inline constexpr std::int64_t kLongest = 700;

inline CapturedTensor reals(const std::string& name, const std::vector<std::int64_t>& shape) {
  return {.type = {.name = name, .dtype = DType::float32, .rank = static_cast<int>(shape.size())},
          .shape = shape,
          .wants_gradient = true};
}

/// Read without an index: it comes as one element.
inline CapturedTensor real(const std::string& name) {
  return {.type = {.name = name, .dtype = DType::float32, .rank = 0}, .shape = {1}, .wants_gradient = true};
}

inline CapturedTensor without_gradient(const std::string& name) {
  return {.type = {.name = name, .dtype = DType::float32, .rank = 1}, .shape = {500}};
}

inline CapturedTensor integers(const std::string& name, const std::vector<std::int64_t>& shape, std::int64_t largest) {
  return {.type = {.name = name, .dtype = DType::int32, .rank = static_cast<int>(shape.size())},
          .shape = shape,
          .largest = largest};
}

/// Calls with texts: both passes, or the forward, against the float64 reference.
class TextTest : public FamilyTest {
 protected:
  static AttentionCase text_case(const TextCase& text, std::int64_t head_dim) {
    AttentionCase attention = plain_case(0, head_dim, CausalMask::none);
    attention.dtype = DType::bfloat16;
    attention.heads_q = kHeads;
    attention.text = text;
    return attention;
  }

  void expect_matches(const AttentionCase& attention, const std::vector<Lengths>& shapes) {
    check_shapes(attention, shapes, [&](DeviceCase& one) { one.expect_both_right(stream()); });
  }

  void expect_forward_matches(const AttentionCase& attention, const std::vector<Lengths>& shapes) {
    check_shapes(attention, shapes, [&](DeviceCase& one) {
      one.forward(stream());
      if (!HasFailure()) one.expect_forward_right();
    });
  }

  /// Of whole sequences, then beside used lengths and a causal mask, at the head dimensions that have kernels of their
  /// own.
  void expect_matches(const TextCase& text) {
    expect_matches(text_case(text, 64), {{200, 333}, {3, 300}, {450, kLongest}});
    AttentionCase attention = text_case(text, 128);
    attention.options.causal = CausalMask::bottom_right;
    attention.q.seqused = {300, 77};
    attention.k.seqused = {201, 33};
    expect_matches(attention, {{330, 201}});
  }

 private:
  template <typename Check>
  void check_shapes(AttentionCase attention, const std::vector<Lengths>& shapes, const Check& check) {
    for (const auto& [queries, keys] : shapes) {
      attention.q.rows = queries;
      attention.k.rows = keys;
      SCOPED_TRACE(describe(attention));
      const TestedVariants variants(true);
      DeviceCase one(attention, device());
      check(one);
      if (HasFailure()) return;
    }
  }
};

}  // namespace strobe::test
