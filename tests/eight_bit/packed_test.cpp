// SPDX-License-Identifier: Apache-2.0
// Packed sequences in 8 bits: what quantize() writes of each is what it writes of the sequence alone, and so is the
// forward's result.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attention/seeds.h"
#include "eight_bit/packed_case.h"

namespace strobe::test {
namespace {

/// Bytes [first, first + count) of two tensors.
void expect_same(const io::HostTensor& a, std::int64_t first_a, const io::HostTensor& b, std::int64_t first_b,
                 std::int64_t count, const char* what) {
  if (count == 0) return;  // then there may be no bytes to point to
  EXPECT_EQ(std::memcmp(a.bytes.data() + first_a, b.bytes.data() + first_b, static_cast<std::size_t>(count)), 0)
      << what;
}

/// Elements [first, first + count).
void expect_zeros(const io::HostTensor& a, std::int64_t first, std::int64_t count, const char* what) {
  const std::int64_t size = static_cast<std::int64_t>(size_of(a.dtype));
  for (std::int64_t i = first * size; i < (first + count) * size; ++i) {
    ASSERT_EQ(a.bytes[static_cast<std::size_t>(i)], std::byte{0}) << what << " " << i;
  }
}

/// Scales of a sequence: those of its own units, and 2^-80 behind them.
void expect_same_scales(const io::HostTensor& packed, const io::HostTensor& alone, std::int64_t sequence,
                        const char* what) {
  const std::int64_t units = packed.shape[2];
  const std::int64_t own = alone.shape[2];
  for (std::int64_t head = 0; head < packed.shape[1]; ++head) {
    const std::int64_t first = (sequence * packed.shape[1] + head) * units;
    expect_same(packed, 4 * first, alone, 4 * head * own, 4 * own, what);
    for (std::int64_t unit = own; unit < units; ++unit) {
      ASSERT_EQ(reinterpret_cast<const float*>(packed.bytes.data())[first + unit], 0x1p-80F) << what;
    }
  }
}

/// V's columns of a sequence.
void expect_same_values(const PackedCase& c, const io::Quantized& alone, std::int64_t sequence) {
  const io::HostTensor& v8 = c.operands.v8;
  if (!c.packed_k) {
    const std::int64_t size = static_cast<std::int64_t>(alone.v8.bytes.size());
    expect_same(v8, sequence * size, alone.v8, 0, size, "v8");
    return;
  }
  const auto at = static_cast<std::size_t>(sequence);
  const std::int64_t own = alone.v8.shape[3];
  const std::int64_t first = packed_value_start(c.cu_k[at], sequence);
  const std::int64_t end = packed_value_start(c.cu_k[at + 1], sequence + 1);
  ASSERT_EQ(first % 32, 0);
  ASSERT_LE(first + own, end);
  for (std::int64_t row = 0; row < v8.shape[0] * v8.shape[1]; ++row) {
    expect_same(v8, row * v8.shape[2] + first, alone.v8, row * own, own, "v8");
    expect_zeros(v8, row * v8.shape[2] + first + own, end - first - own, "v8 behind a sequence");
  }
}

/// q8, k8, scales and q_shift of a sequence.
void expect_same_operands(const PackedCase& c, const io::Quantized& alone, std::int64_t sequence) {
  const auto at = static_cast<std::size_t>(sequence);
  const io::Quantized& packed = c.operands;
  expect_same(packed.q8, c.cu_q[at] * c.heads_q * c.head_dim, alone.q8, 0,
              static_cast<std::int64_t>(alone.q8.bytes.size()), "q8");
  expect_same(packed.k8, c.cu_k[at] * c.heads_kv * c.head_dim, alone.k8, 0,
              static_cast<std::int64_t>(alone.k8.bytes.size()), "k8");
  expect_same_values(c, alone, sequence);
  expect_same_scales(packed.q_descale, alone.q_descale, sequence, "q_descale");
  expect_same_scales(packed.k_descale, alone.k_descale, sequence, "k_descale");
  expect_same_scales(packed.v_descale, alone.v_descale, sequence, "v_descale");
  if (!c.quantize.center_k) return;
  const std::int64_t rows = packed.q_shift.shape[2];
  const std::int64_t own = alone.q_shift.shape[2];
  for (std::int64_t head = 0; head < c.heads_q; ++head) {
    const std::int64_t first = (sequence * c.heads_q + head) * rows;
    expect_same(packed.q_shift, 4 * first, alone.q_shift, 4 * head * own, 4 * own, "q_shift");
    expect_zeros(packed.q_shift, first + own, rows - own, "q_shift behind a sequence");
  }
}

void expect_zeros_behind(const PackedCase& c) {
  const io::Quantized& packed = c.operands;
  if (c.packed_q)
    expect_zeros(packed.q8, c.cu_q.back() * c.heads_q * c.head_dim, c.behind * c.heads_q * c.head_dim, "q8");
  if (!c.packed_k) return;
  expect_zeros(packed.k8, c.cu_k.back() * c.heads_kv * c.head_dim, c.behind * c.heads_kv * c.head_dim, "k8");
  const std::int64_t end = packed_value_start(c.cu_k.back(), c.batch());
  const std::int64_t columns = packed.v8.shape[2];
  for (std::int64_t row = 0; row < packed.v8.shape[0] * packed.v8.shape[1]; ++row) {
    expect_zeros(packed.v8, row * columns + end, columns - end, "v8");
  }
}

/// O and LSE of a sequence.
void expect_same_results(const PackedCase& c, EightBitCase& alone, std::int64_t sequence) {
  const auto at = static_cast<std::size_t>(sequence);
  const std::int64_t row = c.heads_q * c.head_dim_v * static_cast<std::int64_t>(size_of(c.output));
  expect_same(c.o, c.cu_q[at] * row, alone.o, 0, static_cast<std::int64_t>(alone.o.bytes.size()), "o");
  const std::int64_t own = alone.seqlen_q;
  for (std::int64_t head = 0; head < c.heads_q; ++head) {
    const std::int64_t first =
        c.packed_q ? head * c.q.shape[0] + c.cu_q[at] : (sequence * c.heads_q + head) * c.q.shape[1];
    expect_same(c.lse, 4 * first, alone.lse, 4 * head * own, 4 * own, "lse");
  }
}

bool shares_a_scale(const QuantizeOptions& options) {
  return options.q_scales == ScaleUnit::tensor || options.k_scales == ScaleUnit::tensor ||
         options.v_scales == ScaleUnit::tensor;
}

TEST(EightBitPacked, EverySequenceHasTheBitsOfACallOnItAlone) {
  int compared = 0;
  for (const std::uint64_t seed : chosen_seeds(300)) {
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed));
    PackedCase c = random_packed_case(seed);
    const Status status = c.run();
    ASSERT_TRUE(status.ok()) << status.message();
    expect_zeros_behind(c);
    if (shares_a_scale(c.quantize)) continue;
    for (std::int64_t b = 0; b < c.batch(); ++b) {
      SCOPED_TRACE("sequence " + std::to_string(b));
      EightBitCase alone = c.alone(b);
      const Status ran = alone.run();
      ASSERT_TRUE(ran.ok()) << ran.message();
      expect_same_operands(c, alone.operands, b);
      expect_same_results(c, alone, b);
      ++compared;
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(compared, 0);
}

TEST(EightBitPacked, RandomCallsStayWithinTheBound) {
  for (const std::uint64_t seed : chosen_seeds(150)) {
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed));
    PackedCase c = random_packed_case(seed);
    const Status status = c.run();
    ASSERT_TRUE(status.ok()) << status.message();
    const Result<Plan> plan = make_plan(c.arguments(), c.options);
    ASSERT_TRUE(plan.ok());
    const reference::ForwardResult expected =
        reference::forward(c.arguments(), c.options, reference::arithmetic_of(*plan), 1);
    const ConstTensorView o = io::view(std::as_const(c.o));
    const ConstTensorView lse = io::view(std::as_const(c.lse));
    const reference::WorstElement worst_o = reference::worst_element(o, expected.o);
    EXPECT_LE(worst_o.ratio, 1.0) << "o " << reference::describe(worst_o, o);
    const reference::WorstElement worst_lse = reference::worst_element(lse, expected.lse);
    EXPECT_LE(worst_lse.ratio, 1.0) << "lse " << reference::describe(worst_lse, lse);
  }
}

TEST(EightBitPacked, ThreadsDoNotChangeTheBits) {
  PackedCase c;
  c.seqlens_q = {40, 0, 170};
  c.seqlens_k = {77, 12, 200};
  c.fill(3);
  ASSERT_TRUE(c.run().ok());
  const io::HostBytes o = c.o.bytes, v8 = c.operands.v8.bytes, k_descale = c.operands.k_descale.bytes;
  c.threads = 4;
  ASSERT_TRUE(c.run().ok());
  EXPECT_EQ(o, c.o.bytes);
  EXPECT_EQ(v8, c.operands.v8.bytes);
  EXPECT_EQ(k_descale, c.operands.k_descale.bytes);
}

TEST(EightBitPacked, OneScaleForAllIsThatOfTheLargestElement) {
  PackedCase c;
  c.seqlens_q = c.seqlens_k = {5, 40, 9};
  c.quantize = {.q_scales = ScaleUnit::tensor,
                .k_scales = ScaleUnit::tensor,
                .v_scales = ScaleUnit::tensor,
                .rotate_qk = false,
                .rotate_v = false,
                .center_k = false};
  c.fill(2);
  floats(c.q)[static_cast<std::size_t>(44 * c.heads_q * c.head_dim)] = -254.0F;
  ASSERT_TRUE(c.run().ok());
  EXPECT_EQ(floats(c.operands.q_descale)[0], 2.0F);
}

/// Rows of `o` that hold a NaN.
std::vector<std::int64_t> rows_with_nan(PackedCase& c) {
  std::vector<std::int64_t> rows;
  const std::int64_t row = c.heads_q * c.head_dim_v;
  for (std::int64_t i = 0; i < c.q.shape[0]; ++i) {
    bool has = false;
    for (std::int64_t x = 0; x < row; ++x) has = has || std::isnan(floats(c.o)[static_cast<std::size_t>(i * row + x)]);
    if (has) rows.push_back(i);
  }
  return rows;
}

// Sequence 1 has rows 20 to 39; its key 10 is not finite.
TEST(EightBitPacked, NotANumberStaysInItsSequence) {
  for (const DType element : {DType::int8, DType::float8_e4m3}) {
    for (const bool in_v : {false, true}) {
      PackedCase c;
      c.seqlens_q = c.seqlens_k = {20, 20, 20};
      c.quantize.element = element;
      c.options.causal = CausalMask::bottom_right;
      c.fill(8);
      floats(in_v ? c.v : c.k)[static_cast<std::size_t>(30 * 64 + 5)] = std::numeric_limits<float>::quiet_NaN();
      ASSERT_TRUE(c.run().ok());
      std::vector<std::int64_t> expected(10);
      std::iota(expected.begin(), expected.end(), 30);
      EXPECT_EQ(rows_with_nan(c), expected);
    }
  }
}

TEST(EightBitPacked, QueryThatIsNotFiniteSpoilsItsRowAlone) {
  PackedCase c;
  c.seqlens_q = c.seqlens_k = {20, 20, 20};
  c.fill(8);
  floats(c.q)[static_cast<std::size_t>(30 * 128 + 5)] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(c.run().ok());
  EXPECT_EQ(rows_with_nan(c), std::vector<std::int64_t>{30});
}

struct PackedMisuse {
  const char* name = nullptr;
  std::function<void(ForwardArguments&)> make;
  const char* message = nullptr;
};

class EightBitPackedMisuse : public testing::TestWithParam<PackedMisuse> {};

const std::vector<std::int32_t> kShort{0, 20};
const std::vector<std::int32_t> kFalling{0, 30, 20};

TEST_P(EightBitPackedMisuse, IsReported) {
  PackedCase c;
  c.seqlens_q = {20, 30};
  c.seqlens_k = {40, 33};
  c.fill(1);
  ASSERT_TRUE(c.prepare().ok());
  ForwardArguments a = c.arguments();
  GetParam().make(a);
  const Status status = forward(a, c.options);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_EQ(status.message().substr(0, std::strlen(GetParam().message)), GetParam().message);
}

std::vector<PackedMisuse> packed_misuses() {
  return {
      {"ValuesAsRows", [](ForwardArguments& a) { a.v.shape = {73, 1, 64}; },
       "v has shape [73, 1, 64]: it must be [1, 1, 128]"},
      {"ValuesTooShort", [](ForwardArguments& a) { a.v.shape[2] = 96; },
       "v has shape [1, 64, 96]: it must be [1, 64, 128]"},
      {"ScalesOfAnotherLength", [](ForwardArguments& a) { a.sequences.max_seqlen_k = 33; },
       "v_descale has shape [2, 1, 40]: it must be [2 or 1, 1 or 1, n], with n = 1, 1, 2 or 33"},
      {"ShiftOfAnotherLength", [](ForwardArguments& a) { a.q_shift.shape[2] = 29; },
       "q_shift has shape [2, 2, 29]: it must be [2, 2, 30]"},
      {"KeysAreNotPacked", [](ForwardArguments& a) { a.sequences.cu_seqlens_k = {}; }, "k has rank 3"},
      {"QueriesAreNotPacked", [](ForwardArguments& a) { a.sequences.cu_seqlens_q = {}; }, "q has rank 3"},
      {"AnotherBatch", [](ForwardArguments& a) { a.sequences.cu_seqlens_q = lengths_view(kShort); },
       "q has batch 1 and k has batch 2: they must be equal"},
      {"FallingLengths", [](ForwardArguments& a) { a.sequences.cu_seqlens_k = lengths_view(kFalling); },
       "cu_seqlens_k[2] is 20 after 30: cumulative lengths must not decrease"},
      {"LongerThanTheBound",
       [](ForwardArguments& a) { a.sequences.max_seqlen_q = 29, a.q_descale.shape[2] = a.q_shift.shape[2] = 29; },
       "sequence 1 has length 30 in cu_seqlens_q: max_seqlen_q is 29"},
  };
}

std::string packed_misuse_name(const testing::TestParamInfo<PackedMisuse>& one) { return one.param.name; }

INSTANTIATE_TEST_SUITE_P(Forward, EightBitPackedMisuse, testing::ValuesIn(packed_misuses()), packed_misuse_name);

/// What quantize() says of a call on two sequences, changed by `change`.
std::string quantize_message(const std::function<void(PackedCase&, Sequences&)>& change) {
  PackedCase c;
  c.seqlens_q = {20, 30};
  c.seqlens_k = {40, 33};
  c.fill(1);
  Sequences s = c.sequences();
  change(c, s);
  return io::quantized(io::view(std::as_const(c.q)), io::view(std::as_const(c.k)), io::view(std::as_const(c.v)),
                       c.quantize, {}, s)
      .status()
      .message();
}

TEST(QuantizePackedMisuse, IsReported) {
  EXPECT_EQ(quantize_message([](PackedCase&, Sequences& s) { s.seqused_k = lengths_view(kShort); }),
            "seqused_k is given: quantize() takes all rows of its sequences");
  EXPECT_EQ(quantize_message([](PackedCase&, Sequences& s) { s.max_seqlen_q = -2; }),
            "max_seqlen_q is -2: it must be 0 or more, or -1 for unknown");
  EXPECT_EQ(quantize_message([](PackedCase&, Sequences& s) { s.max_seqlen_k = 39; }),
            "sequence 0 has length 40 in cu_seqlens_k: max_seqlen_k is 39");
  EXPECT_EQ(quantize_message([](PackedCase&, Sequences& s) { s.cu_seqlens_k = lengths_view(kFalling); }),
            "cu_seqlens_k[2] is 20 after 30: cumulative lengths must not decrease");
  EXPECT_EQ(quantize_message([](PackedCase&, Sequences& s) { s.cu_seqlens_q = lengths_view(kShort); }),
            "q has batch 1 and k has batch 2: they must be equal");
  EXPECT_EQ(quantize_message([](PackedCase& c, Sequences&) { c.v.shape = {72, 1, 64}; }),
            "v has shape [72, 1, 64]: it must be [73, 1, 64] [total_k, heads_kv, head_dim_v]");
}

}  // namespace
}  // namespace strobe::test
