// SPDX-License-Identifier: Apache-2.0
// K and V stored in 8 bits beside a q that is not: the same bits as on converted tensors.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "seeds.h"
#include "stored_case.h"

namespace strobe::test {
namespace {

TEST(StoredIn8Bits, HasTheBitsOfConvertedTensors) {
  for (const std::uint64_t seed : chosen_seeds(200)) {
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed));
    random_stored_case(seed).expect_the_bits_of_converted_tensors();
  }
}

TEST(StoredIn8Bits, MatchesTheReference) {
  for (const std::uint64_t seed : chosen_seeds(30)) {
    SCOPED_TRACE("STROBE_SEED=" + std::to_string(seed));
    random_stored_case(seed).expect_matches_reference();
  }
}

// Whatever a hidden key and its scales hold: keys beyond the diagonal leave no trace in a row.
TEST(StoredIn8Bits, HiddenKeysLeaveNoTrace) {
  for (const bool in_v : {false, true}) {
    StoredCase c;
    c.seqlen_q = c.seqlen_k = 100;
    c.dtype = DType::float32;
    c.v_rows = 1;
    c.options.causal = CausalMask::bottom_right;
    c.fill(6);
    io::HostTensor& scales = in_v ? c.v.scales : c.k.scales;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(io::element_count(scales)); ++i) {
      if (i % 100 >= 60) floats_of(scales)[i] = std::numeric_limits<float>::quiet_NaN();
    }
    io::HostBytes o, lse;
    c.run(c.stored(), o, lse);
    const auto* values = reinterpret_cast<const float*>(o.data());
    for (std::int64_t i = 0; i < c.batch * c.seqlen_q * c.heads_q * c.head_dim_v; ++i) {
      const std::int64_t row = i / (c.heads_q * c.head_dim_v) % c.seqlen_q;
      ASSERT_EQ(std::isnan(values[i]), row >= 60) << row;
    }
  }
}

TEST(StoredIn8Bits, PlanSaysSo) {
  StoredCase c;
  c.fill(1);
  ForwardArguments arguments = c.stored();
  io::HostTensor o = io::make_tensor(DType::bfloat16, {c.batch, c.seqlen_q, c.heads_q, c.head_dim_v});
  arguments.o = io::view(o);
  const Result<Plan> plan = make_plan(arguments);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_NE(plan->explain().find("stored K, V   int8; each tile is converted to bfloat16"), std::string::npos);
}

TEST(StoredIn8Bits, MisuseIsReported) {
  StoredCase c;
  c.fill(1);
  io::HostTensor o = io::make_tensor(DType::bfloat16, {c.batch, c.seqlen_q, c.heads_q, c.head_dim_v});
  const auto message = [&](const auto& change) {
    ForwardArguments arguments = c.stored();
    arguments.o = io::view(o);
    change(arguments);
    return forward(arguments).message();
  };
  EXPECT_EQ(message([](ForwardArguments& a) { a.v_descale = {}; }),
            "v_descale is not given: k and v are int8 and need scales");
  EXPECT_EQ(message([](ForwardArguments& a) { a.v.dtype = DType::float8_e4m3; }),
            "v is float8_e4m3: it must be int8, as k is");
  EXPECT_EQ(message([](ForwardArguments& a) { a.q_descale = a.k_descale; }),
            "q_descale is given, but q is bfloat16: it belongs to 8-bit inputs");
  EXPECT_EQ(message([](ForwardArguments& a) { a.v_rotation.given = true; }),
            "v_rotation is given, but q is bfloat16: it belongs to 8-bit inputs");
  EXPECT_EQ(message([](ForwardArguments& a) { a.k_descale.shape[2] = 9; }).substr(0, 12), "k_descale ha");
  StoredCase packed;
  packed.packed = true;
  packed.fill(2);
  ForwardArguments arguments = packed.stored();
  arguments.o = io::view(o);
  arguments.sequences.max_seqlen_k = packed.k.elements.shape[0];
  arguments.k_descale.shape[2] = packed.k.elements.shape[0];
  EXPECT_EQ(forward(arguments).message().find("packed keys take one scale") != std::string::npos, true)
      << forward(arguments).message();
}

}  // namespace
}  // namespace strobe::test
