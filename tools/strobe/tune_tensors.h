// SPDX-License-Identifier: Apache-2.0
// The tensors of a call of which only the sizes are known, to measure it.
#pragma once

#include <string>

#include "attention_tensors.h"
#include "call/problem.h"
#include "strobe/attention.h"
#include "strobe/status.h"

namespace strobe::program {

/// Random values; sequences of equal length, of which all rows are used, and pages in order.
struct TuneTensors {
  AttentionTensors tensors;
  io::HostTensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, page_table;
  Sequences bounds;  // without tensors
  AttentionOptions options;

  ForwardArguments forward();
  BackwardArguments backward();
};

/// unsupported, with what the call has that is not made up: 8 bits, left padding, entries, trees, gradients of the LSE,
/// parts of sequences, second queries, texts.
Status check_tuned(const AttentionProblem& problem);

/// Fails as check_tuned() does.
Result<TuneTensors> tune_tensors(const AttentionProblem& problem);

/// "backward, bfloat16, batch 1, heads 32 and 8, seqlen 8192, head_dim 128, causal".
std::string describe(const AttentionProblem& problem);

}  // namespace strobe::program
