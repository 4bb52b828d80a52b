// SPDX-License-Identifier: Apache-2.0
// A call that contradicts the contract, and what must come of it: the exact code and message, outputs as they were.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "matches_reference.h"

namespace strobe::test {

inline constexpr StatusCode kInvalid = StatusCode::invalid_argument;
inline constexpr StatusCode kUnsupported = StatusCode::unsupported;

/// A call that can be changed in any way before it runs.
template <class Arguments>
struct Call {
  Arguments arguments;
  AttentionOptions options;
  Execution execution;
};

template <class Arguments>
struct Misuse {
  std::string name;
  std::function<void(Call<Arguments>&)> change;
  StatusCode code = StatusCode::ok;
  std::string message;
};

using ForwardMisuse = Misuse<ForwardArguments>;
using BackwardMisuse = Misuse<BackwardArguments>;
using ForwardCall = Call<ForwardArguments>;
using BackwardCall = Call<BackwardArguments>;

/// batch 2, seqlens 3 and 5, heads 4 over 2, head_dims 8 and 6.
inline AttentionCase valid_case() {
  AttentionCase attention{.batch = 2, .heads_q = 4, .heads_kv = 2, .head_dim = 8, .head_dim_v = 6};
  attention.q.rows = 3;
  attention.k.rows = 5;
  return attention;
}

/// int32 lengths for one call; the next call of this function overwrites them.
inline ConstTensorView lengths_of(std::initializer_list<std::int32_t> values) {
  static std::array<std::int32_t, 3> lengths;
  std::copy(values.begin(), values.end(), lengths.begin());
  return tensor(static_cast<const std::int32_t*>(lengths.data()), {static_cast<std::int64_t>(values.size())});
}

template <class Arguments>
Status run_call(const Call<Arguments>& call) {
  if constexpr (std::is_same_v<Arguments, ForwardArguments>) {
    return forward(call.arguments, call.options, call.execution);
  } else {
    return backward(call.arguments, call.options, call.execution);
  }
}

template <class Arguments>
Call<Arguments> call_of(const CaseTensors& tensors) {
  if constexpr (std::is_same_v<Arguments, ForwardArguments>) {
    return {.arguments = tensors.forward_arguments()};
  } else {
    return {.arguments = tensors.backward_arguments()};
  }
}

template <class Arguments>
std::vector<GuardedTensor*> outputs_of(CaseTensors& tensors) {
  if constexpr (std::is_same_v<Arguments, ForwardArguments>) return tensors.forward_outputs();
  return tensors.backward_outputs();
}

template <class Arguments>
void expect_rejected(const AttentionCase& attention, const Misuse<Arguments>& misuse) {
  SCOPED_TRACE(misuse.name);
  CaseTensors tensors(attention);
  Call<Arguments> call = call_of<Arguments>(tensors);
  misuse.change(call);
  const Status status = run_call(call);
  EXPECT_EQ(status.code(), misuse.code);
  // The bytes that a workspace needs are the engine's own affair: the message ends with them.
  if (misuse.name == "SmallWorkspace") {
    EXPECT_TRUE(status.message().starts_with(misuse.message)) << status.message();
  } else {
    EXPECT_EQ(status.message(), misuse.message);
  }
  for (const GuardedTensor* output : outputs_of<Arguments>(tensors)) EXPECT_TRUE(output->untouched());
}

}  // namespace strobe::test
