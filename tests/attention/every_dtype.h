// SPDX-License-Identifier: Apache-2.0
// Tests that run in every dtype, each case against the reference.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "matches_reference.h"

namespace strobe::test {

/// batch 2, two heads.
inline AttentionCase square(std::int64_t seqlen, std::int64_t head_dim) {
  AttentionCase attention{.batch = 2, .heads_q = 2, .heads_kv = 2, .head_dim = head_dim, .head_dim_v = head_dim};
  attention.q.rows = seqlen;
  attention.k.rows = seqlen;
  return attention;
}

class EveryDType : public testing::TestWithParam<DType> {
 protected:
  // The case in the parameter's dtype, after `change`.
  template <class Change>
  void expect_matches(AttentionCase attention, const Change& change) {
    attention.dtype = GetParam();
    attention.seed = 1;
    change(attention);
    expect_case_matches_reference(attention);
  }
};

inline auto every_dtype() { return testing::Values(DType::float32, DType::float16, DType::bfloat16); }

inline std::string dtype_name(const testing::TestParamInfo<DType>& dtype) { return name_of(dtype.param); }

}  // namespace strobe::test
