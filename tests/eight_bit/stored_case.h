// SPDX-License-Identifier: Apache-2.0
// Calls on K and V stored in 8 bits beside a q that is not.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "eight_bit/host_tensors.h"
#include "reference/bound/arithmetic.h"
#include "reference/bound/reference.h"
#include "strobe/plan.h"

namespace strobe::test {

inline io::HostTensor int32_tensor(const std::vector<std::int32_t>& values) {
  io::HostTensor tensor = io::make_tensor(DType::int32, {static_cast<std::int64_t>(values.size())});
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

/// K or V: any bytes that are finite elements, and any scales.
struct Stored {
  io::HostTensor elements, scales;

  /// Scales of `rows` rows; of packed elements ([total, heads, columns]) one for each of `batch` sequences.
  void fill(DType dtype, std::vector<std::int64_t> shape, std::int64_t batch, std::int64_t rows, Random& random) {
    const bool packed = shape.size() == 3;
    elements = io::make_tensor(dtype, shape);
    for (std::byte& byte : elements.bytes) {
      do byte = static_cast<std::byte>(random.integer(0, 255));
      while (dtype == DType::float8_e4m3 && (byte & std::byte{0x7F}) == std::byte{0x7F});
    }
    const std::int64_t heads = shape[packed ? 1 : 2];
    const std::int64_t units = packed ? 1 : (shape[1] + rows - 1) / rows;
    scales = io::make_tensor(DType::float32, {random.chance(0.3) ? 1 : batch, random.chance(0.3) ? 1 : heads, units});
    const double typical = dtype == DType::int8 ? 0.02 : 0.01;
    for (std::size_t i = 0; i < io::element_count(scales); ++i) {
      floats_of(scales)[i] = static_cast<float>(typical * (0.5 + random.uniform()));
    }
  }

  float element(std::int64_t index) const {
    const std::byte byte = elements.bytes[static_cast<std::size_t>(index)];
    if (elements.dtype == DType::int8) return static_cast<float>(static_cast<std::int8_t>(byte));
    return to_float(float8_e4m3{static_cast<std::uint8_t>(byte)});
  }

  /// In `dtype`, products rounded; `rows` of them share a scale. `sequence_of` says whose row of packed elements.
  template <class SequenceOf>
  io::HostTensor wide(DType dtype, std::int64_t rows, const SequenceOf& sequence_of) const {
    const auto& shape = elements.shape;
    const bool packed = shape.size() == 3;
    const std::int64_t heads = shape[packed ? 1 : 2];
    const std::int64_t columns = shape.back();
    io::HostTensor to = io::make_tensor(DType::float32, shape);
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(io::element_count(elements)); ++i) {
      const std::int64_t row = i / columns / heads;
      const std::int64_t batch = packed ? sequence_of(row) : row / shape[1];
      const std::int64_t unit = packed ? 0 : row % shape[1] / rows;
      const std::int64_t at_batch = scales.shape[0] == 1 ? 0 : batch;
      const std::int64_t at_head = scales.shape[1] == 1 ? 0 : i / columns % heads;
      const auto* all = reinterpret_cast<const float*>(scales.bytes.data());
      const float scale = all[(at_batch * scales.shape[1] + at_head) * scales.shape[2] + unit];
      floats_of(to)[i] = element(i) * scale;
    }
    return converted(to, dtype);
  }
};

struct StoredCase {
  std::int64_t batch = 2, heads_q = 4, heads_kv = 2, seqlen_q = 70, seqlen_k = 150, head_dim = 64, head_dim_v = 64;
  DType dtype = DType::bfloat16;
  DType element = DType::int8;
  std::int64_t k_rows = 1, v_rows = 32;  // that share a scale
  bool packed = false, used = false, sink = false, alibi = false, bias = false, qv = false;
  AttentionOptions options;
  int threads = 1;
  Stored k, v;

  void fill(std::uint64_t seed) {
    Random random(seed);
    const std::int64_t total_k = batch * seqlen_k - (packed ? 7 : 0);
    const auto of_keys = [&](std::int64_t columns) {
      return packed ? std::vector<std::int64_t>{total_k, heads_kv, columns}
                    : std::vector<std::int64_t>{batch, seqlen_k, heads_kv, columns};
    };
    q_ = converted(normal_numbers({batch, seqlen_q, heads_q, head_dim}, random), dtype);
    k.fill(element, of_keys(head_dim), batch, k_rows, random);
    v.fill(element, of_keys(head_dim_v), batch, v_rows, random);
    std::vector<std::int32_t> starts, lengths;
    for (std::int64_t b = 0; b < batch; ++b) {
      starts.push_back(static_cast<std::int32_t>(b * total_k / batch));
      lengths.push_back(static_cast<std::int32_t>(random.integer(0, total_k / batch)));
    }
    starts.push_back(static_cast<std::int32_t>(total_k));
    cu_seqlens_ = int32_tensor(starts);
    seqused_ = int32_tensor(lengths);
    slopes_ = normal_numbers({heads_q}, random);
    for (std::int64_t h = 0; h < heads_q; ++h) floats_of(slopes_)[h] = std::fabs(0.05F * floats_of(slopes_)[h]);
    sinks_ = normal_numbers({heads_q}, random);
    qv_ = converted(normal_numbers({batch, seqlen_q, heads_q, head_dim_v}, random), dtype);
    bias_ = normal_numbers({1, heads_q, seqlen_q, seqlen_k}, random);
  }

  /// The same with outputs.
  ForwardArguments with_outputs(ForwardArguments arguments) {
    o_ = io::make_tensor(dtype, {batch, seqlen_q, heads_q, head_dim_v});
    lse_ = io::make_tensor(DType::float32, {batch, heads_q, seqlen_q});
    arguments.o = io::view(o_);
    arguments.lse = io::view(lse_);
    return arguments;
  }

  /// o and lse of these keys and values.
  void run(const ForwardArguments& inputs, io::HostBytes& o, io::HostBytes& lse) {
    const ForwardArguments arguments = with_outputs(inputs);
    const Status status = forward(arguments, options, {.threads = threads});
    ASSERT_TRUE(status.ok()) << status.message();
    o = o_.bytes;
    lse = lse_.bytes;
  }

  ForwardArguments common() const {
    ForwardArguments arguments;
    arguments.q = io::view(q_);
    if (qv) arguments.qv = io::view(qv_);
    if (packed) arguments.sequences.cu_seqlens_k = io::view(cu_seqlens_);
    if (used) arguments.sequences.seqused_k = io::view(seqused_);
    if (alibi) arguments.modifiers.alibi_slopes = io::view(slopes_);
    if (sink) arguments.modifiers.sink = io::view(sinks_);
    if (bias) arguments.modifiers.bias = io::view(bias_);
    arguments.random = {.seed = 3, .offset = 4};
    return arguments;
  }

  ForwardArguments stored() const {
    ForwardArguments arguments = common();
    arguments.k = io::view(k.elements);
    arguments.v = io::view(v.elements);
    arguments.k_descale = io::view(k.scales);
    arguments.v_descale = io::view(v.scales);
    return arguments;
  }

  /// K and V in q's dtype, products rounded.
  struct Converted {
    io::HostTensor k, v;
  };

  Converted converted_keys() const {
    const auto sequence_of = [&](std::int64_t row) {
      const auto* starts = reinterpret_cast<const std::int32_t*>(cu_seqlens_.bytes.data());
      std::int64_t b = 0;
      while (row >= starts[b + 1]) ++b;
      return b;
    };
    return {.k = k.wide(dtype, k_rows, sequence_of), .v = v.wide(dtype, v_rows, sequence_of)};
  }

  ForwardArguments with(const Converted& tensors) const {
    ForwardArguments arguments = common();
    arguments.k = io::view(tensors.k);
    arguments.v = io::view(tensors.v);
    return arguments;
  }

  /// What a call with outputs has written.
  std::pair<io::HostBytes, io::HostBytes> results() const { return {o_.bytes, lse_.bytes}; }

  void expect_the_bits_of_converted_tensors() {
    const Converted tensors = converted_keys();
    io::HostBytes o, lse, expected_o, expected_lse;
    run(with(tensors), expected_o, expected_lse);
    run(stored(), o, lse);
    EXPECT_TRUE(o == expected_o);
    EXPECT_TRUE(lse == expected_lse);
  }

  void expect_matches_reference() {
    io::HostBytes o, lse;
    run(stored(), o, lse);
    ForwardArguments arguments = stored();
    arguments.o = io::view(o_);
    arguments.lse = io::view(lse_);
    const Result<Plan> plan = make_plan(arguments, options);
    ASSERT_TRUE(plan.ok());
    const reference::ForwardResult expected =
        reference::forward(arguments, options, reference::arithmetic_of(*plan), 1);
    const ConstTensorView o_view = io::view(std::as_const(o_));
    const reference::WorstElement worst = reference::worst_element(o_view, expected.o);
    EXPECT_LE(worst.ratio, 1.0) << reference::describe(worst, o_view);
  }

 private:
  io::HostTensor q_, qv_, o_, lse_, cu_seqlens_, seqused_, slopes_, sinks_, bias_;
};

inline StoredCase random_stored_case(std::uint64_t seed) {
  Random random(seed);
  StoredCase c;
  c.batch = random.integer(1, 3);
  c.heads_kv = random.integer(1, 2);
  c.heads_q = c.heads_kv * random.integer(1, 4);
  c.seqlen_q = random.chance(0.3) ? 1 : random.integer(1, 140);
  c.seqlen_k = random.integer(10, 700);
  c.head_dim = random.one_of({8, 33, 64, 96, 128, 576});
  c.head_dim_v = random.chance(0.5) ? std::min<std::int64_t>(c.head_dim, 512) : random.one_of({16, 40, 128, 512});
  c.dtype = random.one_of({DType::bfloat16, DType::float16, DType::float32});
  c.element = random.one_of({DType::int8, DType::float8_e4m3});
  const auto rows = [&] { return random.one_of<std::int64_t>({1, 32, 128, c.seqlen_k}); };
  c.k_rows = rows();
  c.v_rows = rows();
  c.packed = random.chance(0.25);
  c.used = random.chance(0.25);
  c.sink = random.chance(0.2);
  c.alibi = random.chance(0.2);
  c.bias = !c.packed && random.chance(0.2);
  c.options.causal = random.one_of({CausalMask::none, CausalMask::bottom_right, CausalMask::top_left});
  if (random.chance(0.3)) c.options.window = {random.integer(0, 200), random.integer(0, 100)};
  if (random.chance(0.2)) c.options.softcap = 5.0F;
  if (random.chance(0.2)) c.options.dropout = 0.25F;
  c.qv = random.chance(0.2);
  c.threads = static_cast<int>(random.integer(1, 3));
  c.fill(seed);
  return c;
}

}  // namespace strobe::test
