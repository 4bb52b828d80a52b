// SPDX-License-Identifier: Apache-2.0
// Keys in pages, behind left padding and in chosen entries, on a GPU against the float64 reference. What belongs to no
// key holds NaN, and the kernels are debug variants: a wait that never ends traps, and shared memory that nobody wrote
// is NaN, too.
#include <limits>
#include <utility>
#include <vector>

#include "attention/cache_copy.h"
#include "device_cache.h"
#include "device_case.h"
#include "gpu_test.h"

namespace strobe::test {
namespace {

class GpuCache : public FamilyTest {
 protected:
  /// Drawn until the copy has left padding, or none; returns what the plan says.
  /// `latent`: V is K's first columns.
  std::string expect_matches(const AttentionCase& attention, CacheKind kind, std::int64_t page_size, bool padded,
                             std::uint64_t seed = 1, bool latent = false) {
    SCOPED_TRACE(describe(attention));
    SCOPED_TRACE(page_size);
    const TestedVariants variants(true);
    const CaseTensors tensors(attention);
    for (;; ++seed) {
      Random random(seed);
      const CacheCopy copy(tensors.forward_arguments(), kind, random, page_size);
      if (copy.arguments().sequences.leftpad_k.given() != padded) continue;
      ForwardArguments arguments = copy.arguments();
      if (latent) {
        arguments.v = arguments.k;
        arguments.v.shape[3] = attention.head_dim_v;
      }
      DeviceCache cache(arguments, device());
      if (latent) cache.arguments().v.data = cache.arguments().k.data;
      cache.run(attention.options, stream());
      if (!HasFailure()) cache.expect_matches(arguments, attention.options);
      return cache.explained();
    }
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuCache, kFamilies, family_name);

/// Three sequences, the second without keys, six query heads on two key heads.
AttentionCase cached_case(std::int64_t queries, std::int64_t keys, std::int64_t head_dim, CausalMask causal) {
  AttentionCase attention = plain_case(0, head_dim, causal);
  attention.batch = 3;
  attention.heads_q = 6;
  attention.q.rows = queries;
  attention.k.rows = keys;
  attention.k.seqused = {static_cast<std::int32_t>(keys), 0, static_cast<std::int32_t>(keys / 2 + 1)};
  attention.wants_lse = true;
  return attention;
}

TEST_P(GpuCache, PagesOfEverySize) {
  for (const std::int64_t page_size : {1, 2, 7, 8, 16, 24, 33, 48, 64, 80, 100, 127, 128, 129, 256, 257}) {
    for (const std::int64_t queries : {1, 130}) {
      const std::string plan =
          expect_matches(cached_case(queries, 530, 128, CausalMask::bottom_right), CacheKind::pages, page_size, false);
      if (HasFailure()) FAIL() << plan;
      const bool by_tma = tested_family() == Family::sm90 && page_size % 8 == 0;
      EXPECT_EQ(plan.find("by TMA") != std::string::npos, by_tma) << plan;
    }
  }
}

TEST_P(GpuCache, PagesOfEveryHeadDim) {
  for (const std::int64_t head_dim : {24, 64, 72, 96, 128, 192, 256}) {
    for (const std::int64_t page_size : {5, 32}) {
      expect_matches(cached_case(70, 333, head_dim, CausalMask::none), CacheKind::pages, page_size, false);
      expect_matches(cached_case(2, 1500, head_dim, CausalMask::bottom_right), CacheKind::pages, page_size, false);
      if (HasFailure()) return;
    }
  }
}

AttentionCase wide_case(std::int64_t queries, std::int64_t keys, std::int64_t head_dim, std::int64_t head_dim_v) {
  AttentionCase attention = cached_case(queries, keys, head_dim, CausalMask::bottom_right);
  attention.head_dim_v = head_dim_v;
  return attention;
}

class GpuWideCache : public GpuCache {};

INSTANTIATE_TEST_SUITE_P(, GpuWideCache, kFamilies, family_name);

TEST_P(GpuWideCache, PagesOfEverySize) {
  for (const std::int64_t page_size : {1, 7, 8, 16, 24, 33, 64, 100, 128, 257}) {
    for (const std::int64_t queries : {1, 70}) {
      const std::string plan = expect_matches(wide_case(queries, 530, 576, 512), CacheKind::pages, page_size, false);
      if (HasFailure()) FAIL() << plan;
      const bool by_tma = tested_family() == Family::sm90 && page_size % 8 == 0;
      EXPECT_EQ(plan.find("by TMA") != std::string::npos, by_tma) << plan;
    }
  }
}

TEST_P(GpuWideCache, PagesOfEveryWidth) {
  for (const auto& [head_dim, head_dim_v] : {std::pair{512, 512}, {64, 512}, {320, 256}, {288, 264}, {576, 8}}) {
    for (const std::int64_t page_size : {5, 32}) {
      expect_matches(wide_case(3, 700, head_dim, head_dim_v), CacheKind::pages, page_size, false);
      if (HasFailure()) return;
    }
  }
}

TEST_P(GpuWideCache, PagesAndEntriesBehindPadding) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    expect_matches(wide_case(33, 400, 576, 512), CacheKind::pages, 16, true, seed);
    expect_matches(wide_case(33, 400, 576, 512), CacheKind::entries, 0, true, seed);
    expect_matches(wide_case(1, 900, 576, 512), CacheKind::entries, 0, false, seed);
    if (HasFailure()) return;
  }
}

AttentionCase latent_case(std::int64_t queries, std::int64_t keys, std::int64_t head_dim, std::int64_t heads) {
  AttentionCase attention = cached_case(queries, keys, head_dim, CausalMask::none);
  attention.head_dim_v = 512;
  attention.heads_kv = 1;
  attention.heads_q = heads;
  return attention;
}

/// Few enough for racecheck, and CTAs have a second tile.
class GpuLatentCache : public GpuCache {
 protected:
  void expect_few_blocks_match(CacheKind kind, std::int64_t page_size, bool padded) {
    for (const std::int64_t queries : {2, 140}) {
      expect_matches(latent_case(queries, 200, 576, 32), kind, page_size, padded, 1, true);
      if (HasFailure()) return;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuLatentCache, kFamilies, family_name);

TEST_P(GpuLatentCache, PagesByTma) { expect_few_blocks_match(CacheKind::pages, 16, false); }
TEST_P(GpuLatentCache, PagesByRows) { expect_few_blocks_match(CacheKind::pages, 1, false); }
TEST_P(GpuLatentCache, PagesBehindPadding) { expect_few_blocks_match(CacheKind::pages, 16, true); }
TEST_P(GpuLatentCache, Entries) { expect_few_blocks_match(CacheKind::entries, 0, true); }

/// One row a token, read as key and value, by query heads that fill some of a tile or two of them.
TEST_P(GpuWideCache, ValuesThatAreKeys) {
  for (const std::int64_t head_dim : {512, 576}) {
    for (const std::int64_t queries : {1, 70}) {
      const AttentionCase attention = latent_case(queries, 530, head_dim, queries == 1 ? 128 : 5);
      for (const std::int64_t page_size : {1, 7, 16, 64, 100}) {
        const std::string plan = expect_matches(attention, CacheKind::pages, page_size, false, 1, true);
        EXPECT_EQ(plan.find("where v is a view of k") != std::string::npos, tested_family() == Family::sm90) << plan;
        if (HasFailure()) return;
      }
      expect_matches(attention, CacheKind::pages, 16, true, 1, true);
      expect_matches(attention, CacheKind::entries, 0, true, 1, true);
      if (HasFailure()) return;
    }
  }
}

TEST_P(GpuCache, PagesBehindPadding) {
  for (const std::int64_t page_size : {1, 16, 100}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      expect_matches(cached_case(33, 400, 64, CausalMask::bottom_right), CacheKind::pages, page_size, true, seed);
      expect_matches(cached_case(1, 3000, 128, CausalMask::bottom_right), CacheKind::pages, page_size, true, seed);
      if (HasFailure()) return;
    }
  }
}

TEST_P(GpuCache, Entries) {
  for (const bool padded : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      expect_matches(cached_case(33, 400, 64, CausalMask::bottom_right), CacheKind::entries, 0, padded, seed);
      expect_matches(cached_case(1, 3000, 128, CausalMask::bottom_right), CacheKind::entries, 0, padded, seed);
      if (HasFailure()) return;
    }
  }
}

TEST_P(GpuCache, PackedQueriesOfAMixedBatch) {
  for (const std::int64_t page_size : {1, 16, 64}) {
    AttentionCase attention = cached_case(0, 700, 128, CausalMask::bottom_right);
    attention.k.seqused = {700, 41, 300};
    attention.q = {.rows = 342, .cu_seqlens = {0, 1, 42, 342}};
    expect_matches(attention, CacheKind::pages, page_size, false);
  }
}

TEST_P(GpuCache, WindowsSoftcapAlibiAndSinks) {
  for (const std::int64_t page_size : {3, 16}) {
    AttentionCase attention = cached_case(130, 600, 128, CausalMask::none);
    attention.options.window = {100, 0};
    attention.has_sink = true;
    expect_matches(attention, CacheKind::pages, page_size, false);
    attention.options.softcap = 5.0F;
    expect_matches(attention, CacheKind::pages, page_size, false);
  }
}

/// Bad numbers of pages in use: their rows are zeros, and nothing else is read.
TEST_P(GpuCache, PagesThatDoNotExistAreZeros) {
  constexpr std::int64_t kHeadDim = 64, kHeads = 2, kPages = 4;
  constexpr std::int32_t kZeros = 3;
  constexpr auto kMost = std::numeric_limits<std::int32_t>::max();
  const std::vector<std::int32_t> bad{1, -1, 0, kPages, 2, kMost, std::numeric_limits<std::int32_t>::min(), 1};
  const std::vector<std::int32_t> good{1, kZeros, 0, kZeros, 2, kZeros, kZeros, 1};
  const auto entries = static_cast<std::int64_t>(good.size());
  for (const std::int64_t page_size : {std::int64_t{1}, std::int64_t{12}, std::int64_t{16}, std::int64_t{128}}) {
    const TestedVariants variants(true);
    Random random(7);
    const auto numbers = [&](std::int64_t count) {
      std::vector<std::uint16_t> bits(static_cast<std::size_t>(count));
      for (std::uint16_t& one : bits) one = static_cast<std::uint16_t>(0x3c00 + random.integer(0, 0x3ff));  // 1 to 2
      return bits;
    };
    const std::vector<std::uint16_t> q = numbers(kHeads * kHeadDim);
    std::vector<std::uint16_t> k = numbers(kPages * page_size * kHeads * kHeadDim);
    std::vector<std::uint16_t> v = numbers(kPages * page_size * kHeads * kHeadDim);
    std::vector<std::uint16_t> o(q.size(), 0xffff);
    for (std::vector<std::uint16_t>* const rows : {&k, &v}) {
      std::fill(rows->begin() + kZeros * page_size * kHeads * kHeadDim, rows->end(), std::uint16_t{0});
    }
    ForwardArguments host;
    const auto view = [](auto& rows, std::int64_t count, std::int64_t size) {
      TensorView tensor{.data = rows.data(), .dtype = DType::float16, .device = {}, .rank = 4};
      tensor.shape = {count, size, kHeads, kHeadDim};
      tensor.strides = {size * kHeads * kHeadDim, kHeads * kHeadDim, kHeadDim, 1};
      return tensor;
    };
    std::vector<std::uint16_t> queries = q;
    host.q = view(queries, 1, 1);
    host.k = view(k, kPages, page_size);
    host.v = view(v, kPages, page_size);
    host.o = view(o, 1, 1);
    host.page_table = tensor(good.data(), {1, entries});
    DeviceCache cache(host, device());
    cache.arguments().page_table = cache.on_device(tensor(bad.data(), {1, entries}));
    cache.run({}, stream());
    if (!HasFailure()) cache.expect_matches(host, {});
  }
}

}  // namespace
}  // namespace strobe::test
