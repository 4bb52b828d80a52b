// SPDX-License-Identifier: Apache-2.0
// Random calls on K and V stored in 8 bits on a GPU against the float64 reference: units of scales, options, packed
// keys and used lengths, few queries and many. seeds.h says how seeds are chosen.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "attention/cache_copy.h"
#include "attention/random.h"
#include "attention/seeds.h"
#include "call/arithmetic.h"
#include "device_cache.h"
#include "eight_bit/stored_case.h"
#include "gpu_test.h"

namespace strobe::test {
namespace {

// Kernels are compiled on first use: so many seeds in a row share what tells them apart.
constexpr std::uint64_t kSeedsOfStored = 16;

/// Options and dtypes of the seed's group, with shapes, lengths and data of its own. Every other group has few queries.
StoredCase gpu_stored_case(std::uint64_t seed) {
  const std::uint64_t group = seed / kSeedsOfStored;
  Random of_group(group);
  StoredCase c = random_stored_case(group);
  c.qv = false;
  c.dtype = of_group.one_of({DType::float16, DType::bfloat16});
  c.head_dim = of_group.one_of<std::int64_t>({32, 64, 96, 128, 128, 192, 256});
  c.head_dim_v = of_group.chance(0.8) ? c.head_dim : 64;
  Random random(seed);
  const bool few = group % 2 == 1;
  if (few) {
    c.bias = false;
    c.options.dropout = 0.0F;
  }
  const auto longest = static_cast<std::int64_t>(number_from("STROBE_LONGEST", 1500));
  c.batch = random.integer(1, 3);
  c.heads_kv = random.integer(1, 2);
  c.heads_q = c.heads_kv * of_group.one_of<std::int64_t>({1, 2, 4, few ? 8 : 3});
  c.seqlen_q = few ? random.integer(1, 5) : random.integer(1, longest / 5);
  c.seqlen_k = random.integer(10, few ? 3 * longest : longest);
  const auto rows = [&] { return random.one_of<std::int64_t>({1, 32, 128, c.seqlen_k}); };
  c.k_rows = rows();
  c.v_rows = rows();
  c.fill(seed);
  return c;
}

/// Heads of more than 256 columns, whose cache is converted first.
StoredCase wide_stored_case(std::uint64_t seed) {
  StoredCase c = gpu_stored_case(seed);
  Random of_group(seed / kSeedsOfStored);
  std::tie(c.head_dim, c.head_dim_v) =
      of_group.one_of<std::pair<std::int64_t, std::int64_t>>({{512, 512}, {576, 512}, {320, 256}, {64, 512}});
  c.fill(seed);
  return c;
}

std::string describe(const StoredCase& c) {
  return "batch " + std::to_string(c.batch) + ", heads " + std::to_string(c.heads_q) + "/" +
         std::to_string(c.heads_kv) + ", queries " + std::to_string(c.seqlen_q) + ", keys " +
         std::to_string(c.seqlen_k) + ", head_dim " + std::to_string(c.head_dim) + "/" + std::to_string(c.head_dim_v) +
         (c.element == DType::int8 ? ", int8" : ", e4m3") + ", scales of " + std::to_string(c.k_rows) + " and " +
         std::to_string(c.v_rows) + (c.packed ? ", packed" : "") + (c.used ? ", used lengths" : "");
}

class GpuStored : public FamilyTest {
 protected:
  /// False where it fails. `shares`: V is K's first columns.
  bool matches_reference(const ForwardArguments& arguments, const StoredCase& c, std::uint64_t seed,
                         bool shares = false) const {
    SCOPED_TRACE(describe(c));
    const TestedVariants variants(number_from("STROBE_DEBUG_KERNELS", 0) != 0);
    DeviceCache call(arguments, device());
    if (shares) {
      call.share_rows();
      call.arguments().v_descale.data = call.arguments().k_descale.data;
    }
    call.run(c.options, stream());
    if (!HasFailure()) call.expect_matches(arguments, c.options);
    if (HasFailure()) ADD_FAILURE() << "reproduce with: STROBE_SEED=" << seed << '\n' << call.explained();
    return !HasFailure();
  }

  /// In pages of any size, by TMA and row by row, with left padding and without.
  bool pages_match_reference(StoredCase c, std::uint64_t seed) const {
    c.packed = c.used = c.bias = false;
    c.k_rows = c.v_rows = c.seqlen_k;
    c.fill(seed);
    Random random(seed);
    return matches_reference(CacheCopy(c.with_outputs(c.stored()), CacheKind::pages, random).arguments(), c, seed);
  }
};

INSTANTIATE_TEST_SUITE_P(, GpuStored, kFamilies, family_name);

TEST_P(GpuStored, RandomCallsMatchReference) {
  const std::vector<std::uint64_t> seeds = chosen_seeds(200);
  for (const std::uint64_t seed : seeds) {
    StoredCase c = gpu_stored_case(seed);
    if (!matches_reference(c.with_outputs(c.stored()), c, seed)) return;
  }
  std::cout << seeds.size() << " configurations\n";
}

TEST_P(GpuStored, PagesMatchReference) {
  const std::vector<std::uint64_t> seeds = chosen_seeds(100);
  for (const std::uint64_t seed : seeds) {
    if (!pages_match_reference(gpu_stored_case(seed), seed)) return;
  }
  std::cout << seeds.size() << " configurations\n";
}

/// Scales of rows, or of groups of them, that a cache in pages has: NaN behind those of its keys.
io::HostTensor scales_of_pages(const io::HostTensor& scales, const ForwardArguments& pages, std::int64_t rows) {
  const std::int64_t units = ceil_div(pages.page_table.shape[1] * pages.k.shape[1], rows);
  io::HostTensor all = io::make_tensor(DType::float32, {scales.shape[0], scales.shape[1], units});
  std::fill_n(floats_of(all), io::element_count(all), std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(io::element_count(scales)); ++i) {
    floats_of(all)[i / scales.shape[2] * units + i % scales.shape[2]] = floats_of(scales)[i];
  }
  return all;
}

TEST_P(GpuStored, PagesWithScalesOfRowsMatchReference) {
  const std::vector<std::uint64_t> seeds = chosen_seeds(60);
  for (const std::uint64_t seed : seeds) {
    Random random(seed);
    StoredCase c = seed % 5 == 0 ? wide_stored_case(seed) : gpu_stored_case(seed);
    c.packed = c.used = c.bias = false;
    c.k_rows = random.one_of<std::int64_t>({1, 1, 32, 128});
    c.v_rows = random.one_of<std::int64_t>({1, 1, 32, c.k_rows});
    c.fill(seed);
    std::unique_ptr<CacheCopy> pages;
    do {
      pages = std::make_unique<CacheCopy>(c.with_outputs(c.stored()), CacheKind::pages, random);
    } while (pages->arguments().sequences.leftpad_k.given());
    ForwardArguments arguments = pages->arguments();
    const io::HostTensor k_scales = scales_of_pages(c.k.scales, arguments, c.k_rows);
    const io::HostTensor v_scales = scales_of_pages(c.v.scales, arguments, c.v_rows);
    arguments.k_descale = io::view(k_scales);
    arguments.v_descale = io::view(v_scales);
    if (!matches_reference(arguments, c, seed)) return;
  }
  std::cout << seeds.size() << " configurations\n";
}

/// Row-invariant calls have the bits of one on K and V converted to q's dtype, contiguous and in pages of any size.
TEST_P(GpuStored, RowInvariantCallsHaveTheBitsOfConvertedTensors) {
  const std::vector<std::uint64_t> seeds = chosen_seeds(100);
  for (const std::uint64_t seed : seeds) {
    StoredCase c = seed / kSeedsOfStored % 4 == 3 ? wide_stored_case(seed) : gpu_stored_case(seed);
    c.bias = false;
    c.options.dropout = 0.0F;
    c.options.row_invariant = true;
    const bool in_pages = seed % 2 == 0;
    if (in_pages) {
      c.packed = c.used = false;
      c.k_rows = c.v_rows = c.seqlen_k;
    }
    c.fill(seed);
    SCOPED_TRACE(describe(c));
    const TestedVariants variants(number_from("STROBE_DEBUG_KERNELS", 0) != 0);
    const auto run = [&](const ForwardArguments& arguments) {
      DeviceCache call(arguments, device());
      call.run(c.options, stream());
      EXPECT_NE(call.explained().find("row-invariant"), std::string::npos) << call.explained();
    };
    const StoredCase::Converted tensors = c.converted_keys();
    run(c.with_outputs(c.with(tensors)));
    const auto expected = c.results();
    const ForwardArguments stored = c.with_outputs(c.stored());
    run(stored);
    EXPECT_TRUE(c.results() == expected);
    if (in_pages) {
      Random random(seed);
      const CacheCopy pages(stored, CacheKind::pages, random);
      run(pages.arguments());
      EXPECT_TRUE(pages.has_the_same_bits());
    }
    if (HasFailure()) FAIL() << "reproduce with: STROBE_SEED=" << seed;
  }
  std::cout << seeds.size() << " configurations\n";
}

/// There is nothing to convert then.
TEST_P(GpuStored, RowInvariantCallsWithoutKeys) {
  StoredCase c;
  c.seqlen_k = 0;
  c.options.row_invariant = true;
  c.fill(1);
  c.k.scales = c.v.scales = io::make_tensor(DType::float32, {c.batch, c.heads_kv, 1});
  matches_reference(c.with_outputs(c.stored()), c, 1);
}

TEST_P(GpuStored, WideHeadsMatchReference) {
  const std::vector<std::uint64_t> seeds = chosen_seeds(100);
  for (const std::uint64_t seed : seeds) {
    StoredCase c = wide_stored_case(seed);
    if (!matches_reference(c.with_outputs(c.stored()), c, seed)) return;
    if (!pages_match_reference(c, seed)) return;
  }
  std::cout << seeds.size() << " configurations\n";
}

TEST_P(GpuStored, WideHeadsUnderABlockMask) {
  for (const std::uint64_t seed : chosen_seeds(40)) {
    StoredCase c = wide_stored_case(seed);
    c.packed = false;
    c.seqlen_q += 64;  // few queries have no blocks
    c.fill(seed);
    const std::int64_t q_blocks = ceil_div<std::int64_t>(c.seqlen_q, 64),
                       k_blocks = ceil_div<std::int64_t>(c.seqlen_k, 64);
    io::HostTensor blocks = io::make_tensor(DType::uint8, {1, 1, q_blocks, k_blocks});
    Random random(seed);
    for (std::byte& block : blocks.bytes) block = static_cast<std::byte>(random.integer(0, 1));
    ForwardArguments arguments = c.with_outputs(c.stored());
    arguments.modifiers.block_mask = io::view(blocks);
    arguments.modifiers.block_size = 64;
    if (!matches_reference(arguments, c, seed)) return;
  }
}

/// Of latent rows, which are key and value.
StoredCase latent_stored_case(std::uint64_t seed) {
  StoredCase c = wide_stored_case(seed);
  c.head_dim = 576;
  c.head_dim_v = 512;
  c.heads_q = 8;
  c.heads_kv = 1;
  c.v_rows = c.k_rows;
  c.bias = false;
  c.options = {.causal = CausalMask::bottom_right};
  c.fill(seed);
  return c;
}

ForwardArguments with_values_in_keys(ForwardArguments arguments, const StoredCase& c) {
  arguments.v = arguments.k;
  arguments.v.shape[static_cast<std::size_t>(arguments.v.rank - 1)] = c.head_dim_v;
  arguments.v_descale = arguments.k_descale;
  return arguments;
}

TEST_P(GpuStored, LatentRowsMatchReference) {
  const std::vector<std::uint64_t> seeds = chosen_seeds(20);
  for (const std::uint64_t seed : seeds) {
    StoredCase c = latent_stored_case(seed);
    if (!matches_reference(with_values_in_keys(c.with_outputs(c.stored()), c), c, seed, true)) return;
  }
  std::cout << seeds.size() << " configurations\n";
}

/// Of a cache in pages, whose rows scales of a sequence belong to.
StoredCase latent_page_case(std::uint64_t seed, std::int64_t heads, std::int64_t queries) {
  StoredCase c = latent_stored_case(seed);
  c.heads_q = heads;
  c.seqlen_q = queries;
  c.used = false;
  c.k_rows = c.v_rows = c.seqlen_k;
  c.options = {};
  c.fill(seed);
  return c;
}

// Of pages of any size, which the sm90 kernels convert where they lie where one tile has all query rows, or a pair.
TEST_P(GpuStored, LatentPagesMatchReference) {
  const std::vector<std::uint64_t> seeds = chosen_seeds(20);
  for (const std::uint64_t seed : seeds) {
    StoredCase c = latent_page_case(seed, std::array{64, 128, 16}[seed % 3], seed % 4 == 0 ? 3 : 1);
    Random random(seed);
    const CacheCopy pages(c.with_outputs(c.stored()), CacheKind::pages, random);
    if (!matches_reference(with_values_in_keys(pages.arguments(), c), c, seed, true)) return;
  }
  std::cout << seeds.size() << " configurations\n";
}

// Several tiles to each CTA, or pair of them, and more sequences than a table holds.
TEST_P(GpuStored, LatentPagesOfManySequences) {
  for (const auto& [batch, heads, keys] : {std::tuple{140, 64, 150}, {140, 128, 150}, {420, 128, 70}}) {
    StoredCase c = latent_page_case(1, heads, 1);
    c.batch = batch;
    c.seqlen_k = c.k_rows = c.v_rows = keys;
    c.fill(1);
    Random random(3);
    const CacheCopy pages(c.with_outputs(c.stored()), CacheKind::pages, random, 32);
    if (!matches_reference(with_values_in_keys(pages.arguments(), c), c, 1, true)) return;
  }
}

/// Table of pages for so many keys that no copy in 16 bits is made, of which sequences use as many as before.
class LargeTable {
 public:
  static constexpr std::int64_t kPages = 65536;

  explicit LargeTable(const ForwardArguments& from) : arguments_(from) {
    const ConstTensorView& table = from.page_table;
    numbers_.assign(static_cast<std::size_t>(table.shape[0] * kPages), -1);
    for (std::int64_t b = 0; b < table.shape[0]; ++b) {
      for (std::int64_t page = 0; page < table.shape[1]; ++page) {
        numbers_[static_cast<std::size_t>(b * kPages + page)] =
            static_cast<const std::int32_t*>(table.data)[b * table.strides[0] + page * table.strides[1]];
      }
    }
    arguments_.page_table = tensor(numbers_.data(), {table.shape[0], kPages});
  }

  const ForwardArguments& arguments() const { return arguments_; }

 private:
  ForwardArguments arguments_;
  std::vector<std::int32_t> numbers_;
};

// Of caches that are too large to be converted, whatever the query rows.
TEST_P(GpuStored, LatentRowsOfALargeCacheStay) {
  StoredCase c = latent_page_case(1, 128, 2);
  Random random(3);
  const CacheCopy pages(c.with_outputs(c.stored()), CacheKind::pages, random, 64);
  ASSERT_FALSE(pages.arguments().sequences.leftpad_k.given());  // another seed would do
  const LargeTable table(with_values_in_keys(pages.arguments(), c));
  if (GetParam() == Family::sm90) {
    EXPECT_TRUE(matches_reference(table.arguments(), c, 1, true));
  }
  DeviceCache apart(table.arguments(), device());
  const Result<Plan> plan = make_plan(apart.arguments(), c.options, tested_execution());
  const Status status = plan.ok() ? plan->run(apart.arguments(), {.stream = stream().get()}) : plan.status();
  EXPECT_EQ(status.code(), StatusCode::unsupported) << status.message();
}

}  // namespace
}  // namespace strobe::test
