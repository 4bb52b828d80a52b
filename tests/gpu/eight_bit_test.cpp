// SPDX-License-Identifier: Apache-2.0
// Random calls on 8-bit operands on a GPU against the float64 reference on what the operands stand for: units of
// scales, masks, options, used lengths, O of every dtype; outputs poisoned. seeds.h says how seeds are chosen.
#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "attention/seeds.h"
#include "device_cache.h"
#include "eight_bit/eight_bit_case.h"
#include "gpu_test.h"

namespace strobe::test {
namespace {

// Kernels are compiled on first use: so many seeds in a row share what tells them apart.
constexpr std::uint64_t kSeedsPerVariant = 16;

/// Options and dtypes of the seed's group, with shapes, lengths and data of its own.
EightBitCase gpu_eight_bit_case(std::uint64_t seed) {
  EightBitCase c = random_eight_bit_case(seed / kSeedsPerVariant * kSeedsPerVariant);
  Random random(seed);
  Random group(seed / kSeedsPerVariant);
  const auto head_dim = [&] { return group.one_of<std::int64_t>({64, 64, 128, 128, 256, 256, 16, 80, 96, 192, 208}); };
  c.head_dim = head_dim();
  c.head_dim_v = group.chance(0.7) ? c.head_dim : head_dim();
  if (c.quantize.k_scales == ScaleUnit::row) c.quantize.k_scales = ScaleUnit::group;
  c.batch = random.integer(1, 3);
  c.heads_kv = random.integer(1, 2);
  c.heads_q = c.heads_kv * random.integer(1, 3);
  const auto longest = static_cast<std::int64_t>(number_from("STROBE_LONGEST", 700));
  c.seqlen_q = random.integer(1, random.chance(0.5) ? 140 : longest);
  c.seqlen_k = random.integer(1, random.chance(0.2) ? 60 : longest);
  const bool used = !c.used_q.empty();
  c.used_q.clear();
  c.used_k.clear();
  for (std::int64_t b = 0; used && b < c.batch; ++b) {
    c.used_q.push_back(static_cast<std::int32_t>(random.integer(0, c.seqlen_q)));
    c.used_k.push_back(static_cast<std::int32_t>(random.integer(0, c.seqlen_k)));
  }
  c.fill(seed);
  return c;
}

std::string describe(const EightBitCase& c) {
  return "batch " + std::to_string(c.batch) + ", heads " + std::to_string(c.heads_q) + "/" +
         std::to_string(c.heads_kv) + ", queries " + std::to_string(c.seqlen_q) + ", keys " +
         std::to_string(c.seqlen_k) + ", head_dim " + std::to_string(c.head_dim) + "/" + std::to_string(c.head_dim_v) +
         (c.quantize.element == DType::int8 ? ", int8" : ", e4m3") + (c.used_q.empty() ? "" : ", used lengths");
}

class GpuEightBit : public GpuTest {
 protected:
  void run_case(EightBitCase& c) {
    const Status prepared = c.prepare();
    ASSERT_TRUE(prepared.ok()) << prepared.message();
    DeviceCache call(c.arguments(), device());
    call.run(c.options, stream());
    if (HasFailure()) return;
    const DType probabilities = c.quantize.element == DType::int8 ? DType::uint8 : DType::float8_e4m3;
    c.expect_within_bound(reference::arithmetic_of("sm90", probabilities));
    if (HasFailure()) std::cout << call.explained() << '\n';
  }
};

TEST_F(GpuEightBit, RandomCallsMatchReference) {
  const std::vector<std::uint64_t> seeds = chosen_seeds(200);
  for (const std::uint64_t seed : seeds) {
    EightBitCase c = gpu_eight_bit_case(seed);
    SCOPED_TRACE(describe(c));
    const TestedVariants variants(number_from("STROBE_DEBUG_KERNELS", 0) != 0);
    run_case(c);
    if (HasFailure()) FAIL() << "reproduce with: STROBE_SEED=" << seed;
  }
  std::cout << seeds.size() << " configurations\n";
}

// What lies behind a sequence's used rows is in no result.
TEST_F(GpuEightBit, RowsThatAreNotUsedLeaveNoTrace) {
  for (const DType element : {DType::int8, DType::float8_e4m3}) {
    EightBitCase c;
    c.seqlen_q = 200;
    c.quantize.element = element;
    c.quantize.center_k = false;  // its mean is of all keys
    c.used_q = {150};
    c.used_k = {160};
    c.fill(11);
    const TestedVariants variants(number_from("STROBE_DEBUG_KERNELS", 0) != 0);
    run_case(c);
    if (HasFailure()) return;
    const io::HostBytes first = c.o.bytes;
    for (std::size_t i = 160 * 64; i < 300 * 64; ++i) floats(c.k)[i] = floats(c.v)[i] = 100.0F;
    run_case(c);
    EXPECT_EQ(c.o.bytes, first);
    for (std::size_t i = 150 * 128; i < 200 * 128; ++i) ASSERT_EQ(floats(c.o)[i], 0.0F) << i;
  }
}

}  // namespace
}  // namespace strobe::test
