// SPDX-License-Identifier: Apache-2.0
// The calls that strobe bench --options compares: one cell, plain and with each option by itself.
#pragma once

#include <string>
#include <vector>

#include "bench/command/peers.h"
#include "strobe/attention.h"

namespace strobe::program {

/// A call of a cell with one option.
struct OptionCall {
  std::string name;
  AttentionOptions options;
  ScoreModifiers modifiers;
  TensorView d_bias, d_sink, max_logits;
  std::vector<std::uint8_t> blocks;  // what modifiers.block_mask views
  double visible = 1.0;              // pairs of a query and a key that it sees, of those of the plain call
};

/// The calls of a cell, the plain one first, and the tensors that their options take, in host memory.
class OptionCalls {
 public:
  explicit OptionCalls(CellInputs& inputs);

  const std::vector<OptionCall>& all() const { return calls_; }
  ForwardArguments forward(const OptionCall& call);
  BackwardArguments backward(const OptionCall& call);

 private:
  template <class Change>
  void add(std::string name, const Change& change);
  void add_terms();
  void add_intervals();
  void add_blocks(std::int64_t size);

  CellInputs& inputs_;
  std::vector<float> slopes_, sink_, bias_, d_bias_, d_sink_, max_logits_;
  std::vector<OptionCall> calls_;
};

}  // namespace strobe::program
