// SPDX-License-Identifier: Apache-2.0
// Random configurations on a GPU against the float64 reference: every option of the engine in any combination,
// sequences up to STROBE_LONGEST (2,000), outputs and their guards poisoned, NaN wherever a result must not depend on
// it. seeds.h says how seeds are chosen. STROBE_DEBUG_KERNELS=1 takes kernels whose waits trap and whose shared memory
// starts as NaN. STROBE_ISOLATED=1 takes memory beside which nothing is mapped.
#include <cmath>
#include <iostream>
#include <optional>

#include "attention/cache_copy.h"
#include "attention/matches_reference.h"
#include "attention/pieces.h"
#include "attention/random_case.h"
#include "attention/seeds.h"
#include "device_cache.h"
#include "device_case.h"
#include "gpu_test.h"
#include "isolated_memory.h"
#include "random_limits.h"
#include "reference/bound/arithmetic.h"
#include "sm90/backward_parts.h"
#include "tested_engine.h"

namespace strobe::test {
namespace {

std::string program_path;

/// Queries of few_queries_limits().
void add_tree(AttentionCase& attention, std::uint64_t seed) {
  attention.tree = {.random_bits = seed % 2 == 1, .visible = seed % 4 == 1 ? 0.05 : 0.5};
  attention.has_d_lse = false;
  if (!attention.q.cu_seqlens.empty()) attention.q.max_seqlen = 64;
}

/// The texts of every second group, one for all of its cases; captures have the shapes that the case gives them.
void add_text(AttentionCase& attention, std::uint64_t group) {
  Random random(group);
  if (random.chance(0.5)) return;
  attention.text =
      random_text({attention.batch, attention.heads_q, attention.heads_kv, attention.q.rows, attention.k.rows}, random);
  // Most texts make no number of an infinite score.
  if (attention.bias && !attention.text->score.empty()) attention.bias->hidden = 0.0;
}

AttentionCase gpu_case(std::uint64_t seed, const EngineLimits& limits) {
  AttentionCase attention = random_case(seed, limits);
  const AttentionCase shared = random_case(seed / kSeedsPerKernel * kSeedsPerKernel, limits);
  attention.options = shared.options;
  attention.alibi = shared.alibi;
  const bool packed = !attention.q.cu_seqlens.empty() || !attention.k.cu_seqlens.empty();
  attention.bias = packed ? std::nullopt : shared.bias;
  if (attention.bias) attention.bias->aligned = seed % 4 != 1;  // else TMA does not take it
  attention.blocks = shared.blocks;
  attention.has_sink = shared.has_sink;
  attention.wants_max_logits = shared.wants_max_logits;
  const std::uint64_t group = seed / kSeedsPerKernel;
  if (limits.most_queries > 0 && has_trees(group)) add_tree(attention, seed);
  if (!has_offsets(group, limits)) return attention;
  Random random(seed);
  draw_offsets(attention, random);
  return attention;
}

/// Takes the softmax from some of the calls without a text, which get one then.
void drop_softmax(AttentionCase& attention, std::uint64_t group) {
  Random random(group + 1);
  if (attention.text || !random.chance(0.4)) return;
  draw_unnormalized(attention, {}, random);
}

/// Of query_values_limits().
AttentionCase with_query_values(AttentionCase attention, const EngineLimits& limits, std::uint64_t group) {
  attention.head_dim_v = limits.head_dims[0][1];  // whole pieces
  attention.has_qv = true;
  if (group % 2 == 0) attention.heads_kv = 1;
  return attention;
}

/// What the sm90 kernels lack of wide heads.
void drop_gradients_of_terms(AttentionCase& attention) {
  if (attention.bias) attention.bias->wants_gradient = false;
  if (!attention.text) return;
  for (CapturedTensor& capture : attention.text->captures) capture.wants_gradient = false;
}

class GpuRandom : public FamilyTest {
 protected:
  std::optional<IsolatedMemory> isolated_if_asked(std::uint64_t seed) const {
    if (number_from("STROBE_ISOLATED", 0) == 0) return std::nullopt;
    return std::optional<IsolatedMemory>(std::in_place, device(),
                                         seed % 2 == 0 ? IsolatedMemory::At::first : IsolatedMemory::At::last);
  }

  using LimitsOf = EngineLimits (&)(std::uint64_t group);

  /// `passes`: whether the backward is run, too.
  void run_seeds(LimitsOf limits_of, std::uint64_t count, bool passes) {
    const std::vector<std::uint64_t> seeds = chosen_seeds(count);
    for (const std::uint64_t seed : seeds) {
      const std::uint64_t group = seed / kSeedsPerKernel;
      AttentionCase attention = gpu_case(seed, limits_of(group));
      add_text(attention, group);
      if (passes) drop_softmax(attention, group);
      run_case(seed, attention, passes);
      if (HasFailure()) FAIL() << "reproduce with: STROBE_SEED=" << seed << ' ' << program_path;
    }
    std::cout << seeds.size() << " configurations\n";
  }

  void expect_row_invariance(const AttentionCase& attention, const ForwardArguments& whole, std::uint64_t seed) {
    const auto run = [&](const ForwardArguments& host) {
      DeviceCache call(host, device());
      call.run(attention.options, stream());
      return HasFailure() ? Status{StatusCode::device_error, call.explained()} : Status{};
    };
    DeviceCache call(whole, device());
    call.run(attention.options, stream());
    if (!HasFailure()) call.expect_matches(whole, attention.options);
    if (HasFailure()) return;
    Random random(seed);
    for (const CacheKind kind : {CacheKind::pages, CacheKind::entries}) {
      const CacheCopy copy(whole, kind, random);
      ASSERT_TRUE(run(copy.arguments()).ok());
      EXPECT_TRUE(copy.has_the_same_bits());
    }
    for (const reference::SequenceRows& sequence : reference::sequence_rows(whole.q, whole.k, whole.sequences)) {
      for (int count = 0; count < 2 && sequence.seqlen_q > 0 && !HasFailure(); ++count) {
        const Piece piece = random_piece(attention, sequence, random);
        SCOPED_TRACE("sequence " + std::to_string(sequence.sequence) + ", rows " + std::to_string(piece.row_begin) +
                     " to " + std::to_string(piece.row_end) + ", head " + std::to_string(piece.head));
        PieceCall(whole, piece, attention.options).expect_the_bits_of_the_whole(run);
      }
    }
  }

 private:
  void run_case(std::uint64_t seed, const AttentionCase& attention, bool passes) {
    const bool has_lse = attention.wants_lse || attention.options.normalize == Normalization::none;
    const bool backward = passes && has_lse && !attention.tree;
    SCOPED_TRACE(describe(attention));
    const TestedVariants variants(number_from("STROBE_DEBUG_KERNELS", 0) != 0);
    const std::optional<IsolatedMemory> isolated = isolated_if_asked(seed);
    std::optional<gpu::Override<sm90::PartHeads>> parts;  // of half of the groups, whose kernels are others
    if (seed / kSeedsPerKernel % 2 == 1) {
      parts.emplace([seed](sm90::PartHeads& heads) { heads.count = 1 + static_cast<std::int64_t>(seed % 3); });
    }
    DeviceCase one(attention, device());
    const reference::ArithmeticModel model = reference::arithmetic_of(tested_kernels(), attention.dtype);
    one.forward(stream());
    if (backward) one.backward(stream());
    if (HasFailure()) return;
    one.copies.download(one.tensors.forward_outputs());
    expect_forward_matches(one.tensors, attention, model);
    const bool repeated = seed % 4 == 0;
    if (repeated) expect_the_same_again(one.tensors.forward_outputs(), one, [&] { one.forward(stream()); });
    if (!backward) return;
    one.copies.download(one.tensors.backward_outputs());
    expect_backward_matches(one.tensors, attention, model);
    if (repeated && attention.options.deterministic) {
      expect_the_same_again(one.tensors.backward_outputs(), one, [&] { one.backward(stream()); });
    }
  }

  /// Keys in pages or chosen entries.
  void run_cached_case(std::uint64_t seed, const AttentionCase& attention) {
    SCOPED_TRACE(describe(attention));
    const TestedVariants variants(number_from("STROBE_DEBUG_KERNELS", 0) != 0);
    const std::optional<IsolatedMemory> isolated = isolated_if_asked(seed);
    const CaseTensors tensors(attention);
    Random random(seed);
    const CacheKind kind = random.chance(0.75) ? CacheKind::pages : CacheKind::entries;
    const CacheCopy copy(tensors.forward_arguments(), kind, random);
    DeviceCache cache(copy.arguments(), device());
    cache.run(attention.options, stream());
    if (!HasFailure()) cache.expect_matches(copy.arguments(), attention.options);
    EXPECT_FALSE(HasFailure()) << cache.explained();
  }

 protected:
  /// Forwards of keys in pages or chosen entries; every second group's have few queries.
  void run_cached_seeds(LimitsOf limits_of, LimitsOf few_queries_limits_of) {
    const std::vector<std::uint64_t> seeds = chosen_seeds(400);
    for (const std::uint64_t seed : seeds) {
      const std::uint64_t group = seed / kSeedsPerKernel;
      run_cached_case(seed, gpu_case(seed, group % 2 == 1 ? few_queries_limits_of(group) : limits_of(group)));
      if (HasFailure()) FAIL() << "reproduce with: STROBE_SEED=" << seed << ' ' << program_path;
    }
    std::cout << seeds.size() << " configurations\n";
  }

  void run_latent_seeds(std::uint64_t count) {
    const std::vector<std::uint64_t> seeds = chosen_seeds(count);
    for (const std::uint64_t seed : seeds) {
      const AttentionCase attention = latent_case(seed);
      SCOPED_TRACE(describe(attention));
      const TestedVariants variants(number_from("STROBE_DEBUG_KERNELS", 0) != 0);
      const CaseTensors tensors(attention);
      Random random(seed);
      const CacheCopy copy(tensors.forward_arguments(), CacheKind::pages, random, seed / 4 % 2 == 0 ? 64 : 1);
      ForwardArguments arguments = copy.arguments();
      arguments.v = arguments.k;
      arguments.v.shape[3] = attention.head_dim_v;
      DeviceCache cache(arguments, device());
      cache.share_rows();
      cache.run(attention.options, stream());
      if (!HasFailure()) cache.expect_matches(arguments, attention.options);
      if (HasFailure())
        FAIL() << "reproduce with: STROBE_SEED=" << seed << ' ' << program_path << '\n' << cache.explained();
    }
    std::cout << seeds.size() << " configurations\n";
  }

  /// run_seeds() without what wide heads lack.
  void run_wide_seeds(LimitsOf limits_of, std::uint64_t count, bool passes) {
    const std::vector<std::uint64_t> seeds = chosen_seeds(count);
    for (const std::uint64_t seed : seeds) {
      const std::uint64_t group = seed / kSeedsPerKernel;
      AttentionCase attention = gpu_case(seed, limits_of(group));
      add_text(attention, group);
      drop_softmax(attention, group);
      if (tested_family() == Family::sm90) drop_gradients_of_terms(attention);
      run_case(seed, attention, passes);
      if (HasFailure()) FAIL() << "reproduce with: STROBE_SEED=" << seed << ' ' << program_path;
    }
    std::cout << seeds.size() << " configurations\n";
  }

  /// Contiguous tensors, and of every third seed pages or entries of a cache.
  void run_query_values_seeds(std::uint64_t count) {
    const std::vector<std::uint64_t> seeds = chosen_seeds(count);
    for (const std::uint64_t seed : seeds) {
      const std::uint64_t group = seed / kSeedsPerKernel;
      const EngineLimits limits = query_values_limits(group);
      AttentionCase attention = with_query_values(gpu_case(seed, limits), limits, group);
      if (seed % 3 == 0) {
        run_cached_case(seed, attention);
      } else {
        add_text(attention, group);
        drop_softmax(attention, group);
        run_case(seed, attention, false);
      }
      if (HasFailure()) FAIL() << "reproduce with: STROBE_SEED=" << seed << ' ' << program_path;
    }
    std::cout << seeds.size() << " configurations\n";
  }

  /// Every second group's have few queries. `qv`: scores are sums of two products.
  void run_row_invariant_seeds(LimitsOf limits_of, LimitsOf few_queries_limits_of, bool qv = false) {
    const std::vector<std::uint64_t> seeds = chosen_seeds(400);
    for (const std::uint64_t seed : seeds) {
      const std::uint64_t group = seed / kSeedsPerKernel;
      EngineLimits limits = group % 2 == 1 ? few_queries_limits_of(group) : limits_of(group);
      limits.bias = limits.block_mask = limits.dropout = false;
      AttentionCase attention = as_row_invariant(gpu_case(seed, limits));
      if (qv) attention = with_query_values(attention, limits, group);
      SCOPED_TRACE(describe(attention));
      const TestedVariants variants(number_from("STROBE_DEBUG_KERNELS", 0) != 0);
      CaseTensors tensors(attention);
      // Keys that no row sees, but some rows' blocks hold: where their values are not finite, rows are recomputed.
      for (GuardedTensor* const rows : {&tensors.k, &tensors.v}) {
        for (std::int64_t index = 0; index < rows->size(); ++index) {
          if (!std::isfinite(rows->get(index))) rows->set(index, 1.0);
        }
      }
      expect_row_invariance(attention, tensors.forward_arguments(), seed);
      if (HasFailure()) FAIL() << "reproduce with: STROBE_SEED=" << seed << ' ' << program_path;
    }
    std::cout << seeds.size() << " configurations\n";
  }

 private:
  /// Poisons the outputs once more: another run gives the same bits.
  template <class Run>
  static void expect_the_same_again(const std::vector<GuardedTensor*>& outputs, DeviceCase& one, const Run& run) {
    const DeviceCase::Bits first = one.bits(outputs);
    one.poison(outputs);
    run();
    EXPECT_TRUE(one.bits(outputs) == first) << "another run gave other bits";
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuRandom, kFamilies, family_name);

TEST_P(GpuRandom, MatchReference) { run_seeds(gpu_limits, 400, true); }

/// Keys in pages or chosen entries, half of them behind padding.
TEST_P(GpuRandom, CachesMatchReference) { run_cached_seeds(gpu_limits, few_queries_limits); }

/// Row-invariant calls: of some rows by themselves, and on the same keys in pages or chosen entries.
TEST_P(GpuRandom, RowInvariantCallsMatchReferenceAndTheirParts) {
  run_row_invariant_seeds(gpu_limits, few_queries_limits);
}

TEST_P(GpuRandom, RowInvariantCallsOfWideHeadsMatchReferenceAndTheirParts) {
  run_row_invariant_seeds(wide_limits, few_wide_queries_limits);
}

TEST_P(GpuRandom, RowInvariantCallsOfQueryValuesMatchReferenceAndTheirParts) {
  run_row_invariant_seeds(query_values_limits, query_values_limits, true);
}

TEST_P(GpuRandom, FewQueriesMatchReference) { run_seeds(few_queries_limits, 400, false); }

TEST_P(GpuRandom, QueryValuesMatchReference) { run_query_values_seeds(400); }

TEST_P(GpuRandom, WideHeadsMatchReference) { run_wide_seeds(wide_limits, 400, false); }

TEST_P(GpuRandom, WideHeadsBackwardMatchesReference) { run_wide_seeds(wide_backward_limits, 400, true); }

TEST_P(GpuRandom, CachesOfWideHeadsMatchReference) { run_cached_seeds(wide_limits, few_wide_queries_limits); }

TEST_P(GpuRandom, CachesOfLatentRowsMatchReference) { run_latent_seeds(8); }

TEST_P(GpuRandom, FewQueriesOfWideHeadsMatchReference) { run_wide_seeds(few_wide_queries_limits, 400, false); }

}  // namespace
}  // namespace strobe::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  strobe::test::program_path = argv[0];
  return RUN_ALL_TESTS();
}
