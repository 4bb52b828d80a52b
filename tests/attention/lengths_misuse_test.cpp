// SPDX-License-Identifier: Apache-2.0
// Sequences whose lengths contradict the contract.
#include <gtest/gtest.h>

#include <vector>

#include "misuse.h"

namespace strobe::test {
namespace {

AttentionCase packed_case() {
  AttentionCase attention = valid_case();
  attention.q = {.rows = 6, .cu_seqlens = {0, 2, 6}, .seqused = {2, 3}};
  attention.k = {.rows = 9, .cu_seqlens = {0, 4, 9}, .seqused = {0, 5}};
  return attention;
}

// Used lengths, of batched tensors.
template <class Arguments>
std::vector<Misuse<Arguments>> seqused_misuses() {
  using C = Call<Arguments>;
  return {
      {"SequsedOfAnotherBatch", [](C& c) { c.arguments.sequences.seqused_k = lengths_of({1, 1, 1}); }, kInvalid,
       "seqused_k has shape [3]: it must be [2] [batch]"},
      {"SequsedNegative", [](C& c) { c.arguments.sequences.seqused_q = lengths_of({1, -1}); }, kInvalid,
       "seqused_q[1] is -1: it must be from 0 to the sequence's length, which is 3"},
      {"SequsedTooLong", [](C& c) { c.arguments.sequences.seqused_k = lengths_of({6, 1}); }, kInvalid,
       "seqused_k[0] is 6: it must be from 0 to the sequence's length, which is 5"},
      {"SequsedNull",
       [](C& c) {
         c.arguments.sequences.seqused_k = lengths_of({1, 1});
         c.arguments.sequences.seqused_k.data = nullptr;
       },
       kInvalid, "seqused_k has shape [2] and a null pointer"},
      {"SequsedOfFloats",
       [](C& c) {
         c.arguments.sequences.seqused_q = lengths_of({1, 1});
         c.arguments.sequences.seqused_q.dtype = DType::float32;
       },
       kInvalid, "seqused_q is float32: it must be int32"},
  };
}

// Packed layouts, from packed_case().
template <class Arguments>
std::vector<Misuse<Arguments>> packed_misuses() {
  using C = Call<Arguments>;
  return {
      {"RankOfPackedQ", [](C& c) { c.arguments.q.rank = 2; }, kInvalid,
       "q has rank 2: it must have rank 3 [total_q, heads_q, head_dim]"},
      {"CuSeqlensFromOne", [](C& c) { c.arguments.sequences.cu_seqlens_q = lengths_of({1, 2, 6}); }, kInvalid,
       "cu_seqlens_q[0] is 1: it must be 0"},
      {"CuSeqlensDecreasing", [](C& c) { c.arguments.sequences.cu_seqlens_k = lengths_of({0, 5, 4}); }, kInvalid,
       "cu_seqlens_k[2] is 4 after 5: cumulative lengths must not decrease"},
      {"CuSeqlensNegative", [](C& c) { c.arguments.sequences.cu_seqlens_q = lengths_of({0, -2, 6}); }, kInvalid,
       "cu_seqlens_q[1] is -2 after 0: cumulative lengths must not decrease"},
      {"CuSeqlensBeyondTheTotal",
       [](C& c) {
         c.arguments.sequences.seqused_k = {};
         c.arguments.sequences.cu_seqlens_k = lengths_of({0, 4, 10});
       },
       kInvalid, "cu_seqlens_k[2] is 10: it must be at most total_k, which is 9"},
      {"CuSeqlensEmpty", [](C& c) { c.arguments.sequences.cu_seqlens_q = lengths_of({}); }, kInvalid,
       "cu_seqlens_q has shape [0]: it must be [batch + 1]"},
      {"CuSeqlensOfAnotherBatch", [](C& c) { c.arguments.sequences.cu_seqlens_k = lengths_of({0, 9}); }, kInvalid,
       "q has batch 2 and k has batch 1: they must be equal"},
      {"CuSeqlensOfFloats", [](C& c) { c.arguments.sequences.cu_seqlens_k.dtype = DType::float32; }, kInvalid,
       "cu_seqlens_k is float32: it must be int32"},
      {"CuSeqlensNull", [](C& c) { c.arguments.sequences.cu_seqlens_k.data = nullptr; }, kInvalid,
       "cu_seqlens_k has shape [3] and a null pointer"},
      {"CuSeqlensElsewhere", [](C& c) { c.arguments.sequences.cu_seqlens_q.device = {DeviceType::cuda, 0}; }, kInvalid,
       "cu_seqlens_q is on cuda:0 and q on cpu: all tensors must be on one device"},
      {"SequsedBeyondItsSequence", [](C& c) { c.arguments.sequences.seqused_q = lengths_of({3, 1}); }, kInvalid,
       "seqused_q[0] is 3: it must be from 0 to the sequence's length, which is 2"},
      {"MaxSeqlenTooSmall", [](C& c) { c.arguments.sequences.max_seqlen_q = 3; }, kInvalid,
       "sequence 1 has length 4 in cu_seqlens_q: max_seqlen_q is 3"},
      {"MaxSeqlenNegative", [](C& c) { c.arguments.sequences.max_seqlen_k = -2; }, kInvalid,
       "max_seqlen_k is -2: it must be 0 or more, or -1 for unknown"},
      {"ShapeOfPackedLse", [](C& c) { c.arguments.lse.shape = {4, 5}; }, kInvalid,
       "lse has shape [4, 5]: it must be [4, 6] [heads_q, total_q]"},
  };
}

TEST(Misuse, OfUsedLengthsInTheForward) {
  for (const ForwardMisuse& misuse : seqused_misuses<ForwardArguments>()) expect_rejected(valid_case(), misuse);
}

TEST(Misuse, OfUsedLengthsInTheBackward) {
  for (const BackwardMisuse& misuse : seqused_misuses<BackwardArguments>()) expect_rejected(valid_case(), misuse);
}

TEST(Misuse, OfPackedLengthsInTheForward) {
  for (const ForwardMisuse& misuse : packed_misuses<ForwardArguments>()) expect_rejected(packed_case(), misuse);
}

TEST(Misuse, OfPackedLengthsInTheBackward) {
  for (const BackwardMisuse& misuse : packed_misuses<BackwardArguments>()) expect_rejected(packed_case(), misuse);
}

}  // namespace
}  // namespace strobe::test
