// SPDX-License-Identifier: Apache-2.0
// A forward on 8-bit operands with all that it points to, in host memory, and random ones.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/random.h"
#include "io/quantized.h"
#include "reference/bound/arithmetic.h"
#include "reference/bound/reference.h"
#include "strobe/plan.h"

namespace strobe::test {

inline io::HostTensor normal_tensor(std::vector<std::int64_t> shape, Random& random, double deviation = 1.0) {
  io::HostTensor tensor = io::make_tensor(DType::float32, std::move(shape));
  auto* data = reinterpret_cast<float*>(tensor.bytes.data());
  for (std::size_t i = 0; i < io::element_count(tensor); ++i) data[i] = static_cast<float>(deviation * random.normal());
  return tensor;
}

inline std::span<float> floats(io::HostTensor& tensor) {
  return {reinterpret_cast<float*>(tensor.bytes.data()), io::element_count(tensor)};
}

/// One call with all that it points to.
struct EightBitCase {
  std::int64_t batch = 1, heads_q = 2, heads_kv = 1, seqlen_q = 70, seqlen_k = 300, head_dim = 64, head_dim_v = 64;
  DType output = DType::float32;
  QuantizeOptions quantize;
  AttentionOptions options;
  bool alibi = false, sink = false;
  std::vector<std::int32_t> used_q, used_k;  // of each sequence; empty: all
  int threads = 1;
  io::HostTensor q, k, v, slopes, sinks;

  void fill(std::uint64_t seed) {
    Random random(seed);
    q = normal_tensor({batch, seqlen_q, heads_q, head_dim}, random, 1.5);
    k = normal_tensor({batch, seqlen_k, heads_kv, head_dim}, random);
    v = normal_tensor({batch, seqlen_k, heads_kv, head_dim_v}, random);
    slopes = normal_tensor({heads_q}, random, 0.05);
    for (float& slope : floats(slopes)) slope = std::fabs(slope);
    sinks = normal_tensor({heads_q}, random, 3.0);
  }

  /// Quantises; o and lse are NaN.
  Status prepare() {
    Result<io::Quantized> quantised = io::quantized(io::view(q), io::view(k), io::view(v), quantize);
    if (!quantised.ok()) return quantised.status();
    operands = *quantised;
    o = io::make_tensor(output, {batch, seqlen_q, heads_q, head_dim_v});
    lse = io::make_tensor(DType::float32, {batch, heads_q, seqlen_q});
    std::ranges::fill(o.bytes, std::byte{0xff});
    std::ranges::fill(lse.bytes, std::byte{0xff});
    return {};
  }

  /// The same, and runs; o and lse are set.
  Status run() {
    if (Status status = prepare(); !status.ok()) return status;
    return forward(arguments(), options, {.threads = threads});
  }

  ForwardArguments arguments() {
    ForwardArguments a = operands.arguments();
    a.o = io::view(o);
    a.lse = io::view(lse);
    if (alibi) a.modifiers.alibi_slopes = io::view(std::as_const(slopes));
    if (sink) a.modifiers.sink = io::view(std::as_const(sinks));
    a.sequences.seqused_q = lengths(used_q);
    a.sequences.seqused_k = lengths(used_k);
    return a;
  }

  void expect_matches_reference() {
    const Status status = run();
    ASSERT_TRUE(status.ok()) << status.message();
    const Result<Plan> plan = make_plan(arguments(), options);
    ASSERT_TRUE(plan.ok());
    expect_within_bound(reference::arithmetic_of(*plan));
  }

  /// What o and lse hold, of an engine of that arithmetic.
  void expect_within_bound(const reference::ArithmeticModel& model) {
    const reference::ForwardResult expected = reference::forward(arguments(), options, model, 1);
    const ConstTensorView o_view = io::view(o);
    const ConstTensorView lse_view = io::view(lse);
    const reference::WorstElement worst_o = reference::worst_element(o_view, expected.o);
    EXPECT_LE(worst_o.ratio, 1.0) << "o " << reference::describe(worst_o, o_view);
    const reference::WorstElement worst_lse = reference::worst_element(lse_view, expected.lse);
    EXPECT_LE(worst_lse.ratio, 1.0) << "lse " << reference::describe(worst_lse, lse_view);
  }

  io::Quantized operands;
  io::HostTensor o, lse;

 private:
  static ConstTensorView lengths(const std::vector<std::int32_t>& used) {
    if (used.empty()) return {};
    return {.data = used.data(),
            .dtype = DType::int32,
            .rank = 1,
            .shape = {static_cast<std::int64_t>(used.size())},
            .strides = {1}};
  }
};

/// One call of any that the CPU engine takes.
inline EightBitCase random_eight_bit_case(std::uint64_t seed) {
  Random random(seed);
  EightBitCase c;
  c.batch = random.integer(1, 2);
  c.heads_kv = random.integer(1, 2);
  c.heads_q = c.heads_kv * random.integer(1, 3);
  c.seqlen_q = random.integer(1, 140);
  c.seqlen_k = random.integer(1, 400);
  c.head_dim = random.one_of({16, 32, 64, 80, 96, 128, 256, 576});
  c.head_dim_v = random.chance(0.5) ? std::min<std::int64_t>(c.head_dim, 512) : random.one_of({16, 64, 72, 128, 512});
  c.output = random.one_of({DType::float32, DType::float16, DType::bfloat16});
  const auto unit = [&] {
    return random.one_of({ScaleUnit::tensor, ScaleUnit::head, ScaleUnit::block, ScaleUnit::group, ScaleUnit::row});
  };
  c.quantize = {.element = random.chance(0.5) ? DType::int8 : DType::float8_e4m3,
                .q_scales = unit(),
                .k_scales = unit(),
                .v_scales = unit(),
                .rotate_qk = random.chance(0.5),
                .rotate_v = random.chance(0.5),
                .seed = seed,
                .center_k = random.chance(0.5)};
  c.options.causal = random.one_of({CausalMask::none, CausalMask::bottom_right, CausalMask::top_left});
  if (random.chance(0.3)) c.options.window = {random.integer(0, 200), random.integer(0, 100)};
  if (random.chance(0.2)) c.options.chunk = random.integer(20, 200);
  if (random.chance(0.3)) c.options.softcap = 5.0F;
  if (random.chance(0.2)) c.options.scale = random.chance(0.5) ? -0.1F : 0.3F;
  c.alibi = random.chance(0.3);
  c.sink = random.chance(0.3);
  if (random.chance(0.3)) {
    for (std::int64_t b = 0; b < c.batch; ++b) {
      c.used_q.push_back(static_cast<std::int32_t>(random.integer(0, c.seqlen_q)));
      c.used_k.push_back(static_cast<std::int32_t>(random.integer(0, c.seqlen_k)));
    }
  }
  c.threads = static_cast<int>(random.integer(1, 3));
  c.fill(seed);
  return c;
}

}  // namespace strobe::test
