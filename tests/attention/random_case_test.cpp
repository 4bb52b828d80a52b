// SPDX-License-Identifier: Apache-2.0
// What the generator draws over the seeds that the random configurations run: every option often, and no contradiction.
#include "random_case.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "case_tensors.h"
#include "reference/bound/visibility.h"
#include "reference/tensors.h"

namespace strobe::test {
namespace {

constexpr std::uint64_t kSeeds = 10000;

TEST(RandomCase, HasEveryOptionOften) {
  std::map<std::string, int> counts;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    for (const std::string& name : options_of(random_case(seed))) ++counts[name];
  }
  for (const char* name :
       {"packed q",      "packed k",  "seqused", "grouped heads", "scale",         "causal", "causal top_left",
        "window",        "chunk",     "softcap", "dropout",       "deterministic", "alibi",  "bias",
        "d_bias",        "sink",      "d_sink",  "block_mask",    "max_logits",    "d_lse",  "backward",
        "row_invariant", "tree_mask", "offsets", "normalize",     "text",          "qv"}) {
    EXPECT_GE(counts[name], 1000) << name;
    RecordProperty(name, counts[name]);
  }
}

// Two options in ten thousand cases meet at least a hundred times, unless they contradict each other.
TEST(RandomCase, HasEveryPairOfOptions) {
  std::map<std::string, std::map<std::string, int>> counts;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::vector<std::string> names = options_of(random_case(seed));
    for (const std::string& one : names) {
      for (const std::string& other : names) ++counts[one][other];
    }
  }
  for (const auto& [one, others] : counts) {
    for (const auto& [other, unused] : counts) {
      const auto met = others.find(other);
      if (contradict(one, other)) {
        EXPECT_EQ(met, others.end()) << one << " with " << other;
      } else {
        EXPECT_TRUE(met != others.end() && met->second >= 100) << one << " with " << other;
      }
    }
  }
}

// Block masks leave some query rows without a key, and some tensors all hidden.
TEST(RandomCase, HasBlockMasksWithEmptyRows) {
  int with_empty_rows = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    const AttentionCase attention = random_case(seed);
    if (!attention.blocks || attention.batch == 0 || attention.q.rows * attention.k.rows > 20000) continue;
    const CaseTensors tensors(attention);
    const ForwardArguments arguments = tensors.forward_arguments();
    bool empty = false;
    for (const reference::SequenceRows& rows :
         reference::sequence_rows(arguments.q, arguments.k, arguments.sequences)) {
      const reference::HeadModifiers modifiers(arguments.modifiers, attention.options, {}, rows, 0, attention.heads_q,
                                               attention.heads_kv);
      for (std::int64_t query = 0; query < rows.seqlen_q && rows.seqlen_k > 0; ++query) {
        empty = empty || reference::visible_keys(query, rows, attention.options, modifiers).empty();
      }
    }
    with_empty_rows += empty ? 1 : 0;
  }
  EXPECT_GE(with_empty_rows, 100);
}

}  // namespace
}  // namespace strobe::test
