// SPDX-License-Identifier: Apache-2.0
// Random configurations on a GPU against the float64 reference: every option of the engine in any combination,
// sequences up to STROBE_LONGEST (2,000), outputs and their guards poisoned, NaN wherever a result must not depend on
// it. seeds.h says how seeds are chosen. STROBE_DEBUG_KERNELS=1 takes kernels whose waits trap and whose shared memory
// starts as NaN. STROBE_ISOLATED=1 takes memory beside which nothing is mapped.
#include <algorithm>
#include <array>
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
#include "reference/bound/arithmetic.h"
#include "sm90/backward_parts.h"
#include "tested_engine.h"

namespace strobe::test {
namespace {

std::string program_path;

// Kernels are compiled on first use: so many seeds in a row share dtype, compiled head_dims and options.
constexpr std::uint64_t kSeedsPerKernel = 32;

/// head_dims up to 256 that are multiples of 8, of float32 up to 128; rows aligned to 16 bytes. STROBE_FLOAT32=1: that
/// dtype alone.
EngineLimits gpu_limits(std::uint64_t group) {
  Random random(group);
  EngineLimits limits;
  limits.text = false;  // see add_text()
  limits.normalize = false;
  limits.dtypes = {random.one_of({DType::float16, DType::bfloat16, DType::float32})};
  if (number_from("STROBE_FLOAT32", 0) != 0) limits.dtypes = {DType::float32};
  limits.alignment = 8;
  limits.row_invariant = false;
  limits.tree_mask = false;  // see add_tree()
  limits.qv = false;
  limits.offsets = false;  // see has_offsets()
  using HeadDims = std::array<std::int64_t, 2>;
  limits.head_dims = {random.one_of({HeadDims{32, 32}, HeadDims{64, 64}, HeadDims{64, 64}, HeadDims{96, 96},
                                     HeadDims{128, 128}, HeadDims{128, 128}, HeadDims{192, 128}, HeadDims{192, 192},
                                     HeadDims{256, 256}, HeadDims{64, 256}})};
  if (limits.dtypes[0] == DType::float32) {
    for (std::int64_t& head_dim : limits.head_dims[0]) head_dim = std::min<std::int64_t>(head_dim, 128);
    limits.dropout = limits.head_dims[0][1] <= 64;  // with bias and windows, too
  }
  limits.longest = static_cast<std::int64_t>(number_from("STROBE_LONGEST", 2000));
  return limits;
}

/// Whether the calls of a group of few queries have tree masks.
bool has_trees(std::uint64_t group) { return group / 2 % 2 == 1; }

/// Whether the sequences of a group are parts of longer ones. STROBE_OFFSETS=1: of all groups without trees.
bool has_offsets(std::uint64_t group, const EngineLimits& limits) {
  if (limits.most_queries > 0 && has_trees(group)) return false;
  return group % 5 == 4 || number_from("STROBE_OFFSETS", 0) != 0;
}

/// A few queries and a long cache: keys are split among CTAs.
EngineLimits few_queries_limits(std::uint64_t group) {
  EngineLimits limits = gpu_limits(group);
  limits.most_queries = has_trees(group) ? 64 : 20;
  limits.longest *= 3;
  limits.bias = limits.block_mask = limits.dropout = false;  // of calls that are not split
  return limits;
}

/// Heads of more than 256 columns.
EngineLimits wide_limits(std::uint64_t group) {
  EngineLimits limits = gpu_limits(group);
  Random random(group);
  limits.dtypes = {random.one_of({DType::float16, DType::bfloat16})};
  limits.dropout = true;
  using HeadDims = std::array<std::int64_t, 2>;
  limits.head_dims = {random.one_of({HeadDims{512, 512}, HeadDims{512, 512}, HeadDims{576, 512}, HeadDims{320, 256},
                                     HeadDims{288, 288}, HeadDims{384, 384}, HeadDims{64, 512}, HeadDims{448, 64}})};
  return limits;
}

/// The same of which there are gradients.
EngineLimits wide_backward_limits(std::uint64_t group) {
  EngineLimits limits = wide_limits(group);
  for (std::int64_t& head_dim : limits.head_dims[0]) head_dim = std::min<std::int64_t>(head_dim, 512);
  return limits;
}

EngineLimits few_wide_queries_limits(std::uint64_t group) {
  EngineLimits limits = wide_limits(group);
  limits.most_queries = 20;
  limits.longest *= 2;
  limits.bias = limits.block_mask = limits.dropout = false;
  return limits;
}

/// Latent rows, read as key and value, under the few options with which they are loaded once. Every second case has few
/// queries of long sequences, whose keys are split among CTAs.
AttentionCase latent_case(std::uint64_t seed) {
  EngineLimits limits = wide_limits(seed % 2);
  limits.most_queries = seed % 2 == 1 ? 4 : 0;
  limits.longest = seed % 2 == 1 ? 6000 : 600;
  limits.bias = limits.block_mask = limits.dropout = limits.alibi = limits.chunk = limits.max_logits = false;
  limits.any_scale = false;
  AttentionCase attention = random_case(seed, limits);
  attention.tree.reset();
  attention.options = {.causal = seed % 4 == 2 ? CausalMask::bottom_right : CausalMask::none};
  attention.dtype = DType::bfloat16;
  attention.has_sink = false;
  attention.head_dim = 576;
  attention.head_dim_v = 512;
  attention.heads_kv = 1;
  attention.heads_q *= 4;
  return attention;
}

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

 protected:
  /// Forwards of keys in pages or chosen entries; every second group's have few queries.
  void run_cached_seeds(LimitsOf limits_of, LimitsOf few_queries_limits_of) {
    const std::vector<std::uint64_t> seeds = chosen_seeds(400);
    for (const std::uint64_t seed : seeds) {
      const std::uint64_t group = seed / kSeedsPerKernel;
      AttentionCase attention = gpu_case(seed, group % 2 == 1 ? few_queries_limits_of(group) : limits_of(group));
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
      if (HasFailure())
        FAIL() << "reproduce with: STROBE_SEED=" << seed << ' ' << program_path << '\n' << cache.explained();
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
      cache.arguments().v.data = cache.arguments().k.data;
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

  /// Every second group's have few queries.
  void run_row_invariant_seeds(LimitsOf limits_of, LimitsOf few_queries_limits_of) {
    const std::vector<std::uint64_t> seeds = chosen_seeds(400);
    for (const std::uint64_t seed : seeds) {
      const std::uint64_t group = seed / kSeedsPerKernel;
      EngineLimits limits = group % 2 == 1 ? few_queries_limits_of(group) : limits_of(group);
      limits.bias = limits.block_mask = limits.dropout = false;
      const AttentionCase attention = as_row_invariant(gpu_case(seed, limits));
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

TEST_P(GpuRandom, FewQueriesMatchReference) { run_seeds(few_queries_limits, 400, false); }

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
