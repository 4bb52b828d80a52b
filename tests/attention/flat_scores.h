// SPDX-License-Identifier: Apache-2.0
// Calls whose probabilities can be read off: Q = 0, so that every score is what the modifiers make it, and V =
// identity, so that O is the row of probabilities, whatever the option under test makes of it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "case_tensors.h"

namespace strobe::test {

inline AttentionCase flat_case(std::int64_t seqlen_q, std::int64_t seqlen_k, std::int64_t batch = 1,
                               std::int64_t heads = 1) {
  AttentionCase attention{.batch = batch, .heads_q = heads, .heads_kv = heads, .head_dim = 4, .head_dim_v = seqlen_k};
  attention.q.rows = seqlen_q;
  attention.k.rows = seqlen_k;
  return attention;
}

class FlatScores {
 public:
  explicit FlatScores(const AttentionCase& attention) : attention_(attention), tensors(attention) {
    for (std::int64_t index = 0; index < tensors.q.size(); ++index) tensors.q.set(index, 0.0);
    for (std::int64_t index = 0; index < tensors.k.size(); ++index) tensors.k.set(index, 1.0);
    for (std::int64_t index = 0; index < tensors.v.size(); ++index) {
      const std::int64_t key = index / keys() / attention.heads_kv % attention.k.rows;
      tensors.v.set(index, key == index % keys() ? 1.0 : 0.0);
    }
  }

  void run_forward() {
    const Status status = forward(tensors.forward_arguments(), attention_.options);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  void run_backward() {
    const Status status = backward(tensors.backward_arguments(), attention_.options);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  double probability(std::int64_t query, std::int64_t key, std::int64_t head = 0, std::int64_t entry = 0) const {
    return tensors.o.get(((entry * attention_.q.rows + query) * attention_.heads_q + head) * keys() + key);
  }

  double lse(std::int64_t query, std::int64_t head = 0, std::int64_t entry = 0) const {
    return tensors.lse.get((entry * attention_.heads_q + head) * attention_.q.rows + query);
  }

 private:
  std::int64_t keys() const { return attention_.head_dim_v; }

  AttentionCase attention_;

 public:
  CaseTensors tensors;
};

}  // namespace strobe::test
