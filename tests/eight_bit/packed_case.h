// SPDX-License-Identifier: Apache-2.0
// Packed sequences as 8-bit operands, in host memory, and each of them as a batch of its own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "call/eight_bit.h"
#include "eight_bit/eight_bit_case.h"

namespace strobe::test {

/// int32 in host memory; not given where there are none.
inline ConstTensorView lengths_view(const std::vector<std::int32_t>& lengths) {
  if (lengths.empty()) return {};
  return {.data = lengths.data(),
          .dtype = DType::int32,
          .rank = 1,
          .shape = {static_cast<std::int64_t>(lengths.size())},
          .strides = {1}};
}

/// One call with all that it points to.
struct PackedCase {
  std::vector<std::int32_t> seqlens_q, seqlens_k;  // of each sequence; without cu_seqlens all are the first
  bool packed_q = true, packed_k = true;
  bool tight = true;  // max_seqlen is given
  std::int64_t heads_q = 2, heads_kv = 1, head_dim = 64, head_dim_v = 64;
  std::int64_t behind = 0;  // rows that no sequence has, at the end
  DType output = DType::float32;
  QuantizeOptions quantize;
  AttentionOptions options;
  std::vector<std::int32_t> used_q, used_k;
  bool alibi = false, sink = false;
  int threads = 1;
  std::vector<std::int32_t> cu_q, cu_k;
  io::HostTensor q, k, v, slopes, sinks;
  io::Quantized operands;
  io::HostTensor o, lse;

  std::int64_t batch() const { return static_cast<std::int64_t>(seqlens_q.size()); }

  void fill(std::uint64_t seed) {
    Random random(seed);
    const auto rows = [&](const std::vector<std::int32_t>& seqlens, std::vector<std::int32_t>& cu, bool packed) {
      cu.assign(1, 0);
      for (const std::int32_t n : seqlens) cu.push_back(cu.back() + n);
      const std::int64_t total = cu.back();
      if (!packed) return std::vector<std::int64_t>{batch(), seqlens.front()};
      return std::vector<std::int64_t>{total + behind};
    };
    const auto make = [&](std::vector<std::int64_t> shape, std::int64_t heads, std::int64_t columns, double deviation) {
      shape.insert(shape.end(), {heads, columns});
      return normal_tensor(std::move(shape), random, deviation);
    };
    q = make(rows(seqlens_q, cu_q, packed_q), heads_q, head_dim, 1.5);
    k = make(rows(seqlens_k, cu_k, packed_k), heads_kv, head_dim, 1.0);
    v = make(rows(seqlens_k, cu_k, packed_k), heads_kv, head_dim_v, 1.0);
    slopes = normal_tensor({heads_q}, random, 0.05);
    for (float& slope : floats(slopes)) slope = std::fabs(slope);
    sinks = normal_tensor({heads_q}, random, 3.0);
  }

  Sequences sequences() const {
    Sequences s;
    if (packed_q) s.cu_seqlens_q = lengths_view(cu_q);
    if (packed_k) s.cu_seqlens_k = lengths_view(cu_k);
    if (tight) s.max_seqlen_q = *std::ranges::max_element(seqlens_q);
    if (tight) s.max_seqlen_k = *std::ranges::max_element(seqlens_k);
    return s;
  }

  /// Into `operands`, which have their memory.
  QuantizeArguments quantize_arguments() {
    io::Quantized& to = operands;
    QuantizeArguments a{.q = io::view(std::as_const(q)),
                        .k = io::view(std::as_const(k)),
                        .v = io::view(std::as_const(v)),
                        .q8 = io::view(to.q8),
                        .k8 = io::view(to.k8),
                        .v8 = io::view(to.v8),
                        .q_descale = io::view(to.q_descale),
                        .k_descale = io::view(to.k_descale),
                        .v_descale = io::view(to.v_descale),
                        .q_shift = {},
                        .sequences = sequences()};
    if (quantize.center_k) a.q_shift = io::view(to.q_shift);
    return a;
  }

  /// Once more, into memory that held something else.
  Status quantize_poisoned() {
    io::Quantized& to = operands;
    for (io::HostTensor* tensor : {&to.q8, &to.k8, &to.v8, &to.q_descale, &to.k_descale, &to.v_descale, &to.q_shift}) {
      std::ranges::fill(tensor->bytes, std::byte{0xff});
    }
    return strobe::quantize(quantize_arguments(), quantize, {.threads = threads});
  }

  /// Quantises; o and lse are NaN.
  Status prepare() {
    Result<io::Quantized> quantised =
        io::quantized(io::view(std::as_const(q)), io::view(std::as_const(k)), io::view(std::as_const(v)), quantize,
                      {.threads = threads}, sequences());
    if (!quantised.ok()) return quantised.status();
    operands = *quantised;
    if (Status status = quantize_poisoned(); !status.ok()) return status;
    std::vector<std::int64_t> shape = q.shape;
    shape.back() = head_dim_v;
    o = io::make_tensor(output, std::move(shape));
    lse = packed_q ? io::make_tensor(DType::float32, {heads_q, q.shape[0]})
                   : io::make_tensor(DType::float32, {batch(), heads_q, q.shape[1]});
    std::ranges::fill(o.bytes, std::byte{0xff});
    std::ranges::fill(lse.bytes, std::byte{0xff});
    return {};
  }

  ForwardArguments arguments() {
    ForwardArguments a = operands.arguments();
    a.o = io::view(o);
    a.lse = io::view(lse);
    a.sequences = sequences();
    if (alibi) a.modifiers.alibi_slopes = io::view(std::as_const(slopes));
    if (sink) a.modifiers.sink = io::view(std::as_const(sinks));
    a.sequences.seqused_q = lengths_view(used_q);
    a.sequences.seqused_k = lengths_view(used_k);
    return a;
  }

  Status run() {
    if (Status status = prepare(); !status.ok()) return status;
    return forward(arguments(), options, {.threads = threads});
  }

  /// Sequence `index` as a batch of one.
  EightBitCase alone(std::int64_t index) const {
    const auto at = static_cast<std::size_t>(index);
    EightBitCase c;
    c.batch = 1;
    c.heads_q = heads_q;
    c.heads_kv = heads_kv;
    c.seqlen_q = seqlens_q[at];
    c.seqlen_k = seqlens_k[at];
    c.head_dim = head_dim;
    c.head_dim_v = head_dim_v;
    c.output = output;
    c.quantize = quantize;
    c.options = options;
    c.alibi = alibi;
    c.sink = sink;
    c.fill(1);
    c.slopes = slopes;
    c.sinks = sinks;
    if (!used_q.empty()) c.used_q = {used_q[at]};
    if (!used_k.empty()) c.used_k = {used_k[at]};
    const auto take = [](io::HostTensor& to, const io::HostTensor& from, std::int64_t first) {
      const std::int64_t row = to.shape[2] * to.shape[3] * static_cast<std::int64_t>(sizeof(float));
      std::copy_n(from.bytes.begin() + first * row, to.bytes.size(), to.bytes.begin());
    };
    take(c.q, q, cu_q[at]);
    take(c.k, k, cu_k[at]);
    take(c.v, v, cu_k[at]);
    return c;
  }
};

/// One call of any that the CPU engine takes.
inline PackedCase random_packed_case(std::uint64_t seed) {
  Random random(seed);
  const EightBitCase like = random_eight_bit_case(seed);
  PackedCase c;
  const std::int64_t sequences = random.integer(1, 4);
  c.packed_q = random.chance(0.85);
  c.packed_k = !c.packed_q || random.chance(0.85);
  const auto lengths = [&](std::vector<std::int32_t>& of, bool packed, std::int64_t most) {
    for (std::int64_t i = 0; i < sequences; ++i) {
      const std::int64_t any = random.one_of({std::int64_t{0}, std::int64_t{1}, std::int64_t{32}, std::int64_t{33},
                                              random.integer(0, most), random.integer(0, most)});
      of.push_back(packed || i == 0 ? static_cast<std::int32_t>(any) : of.front());
    }
  };
  lengths(c.seqlens_q, c.packed_q, 140);
  lengths(c.seqlens_k, c.packed_k, 300);
  c.tight = random.chance(0.7);
  c.behind = random.chance(0.3) ? random.integer(1, 40) : 0;
  c.heads_q = like.heads_q;
  c.heads_kv = like.heads_kv;
  c.head_dim = like.head_dim;
  c.head_dim_v = like.head_dim_v;
  c.output = like.output;
  c.quantize = like.quantize;
  c.options = like.options;
  c.alibi = like.alibi;
  c.sink = like.sink;
  c.threads = like.threads;
  if (random.chance(0.3)) {
    for (std::size_t b = 0; b < c.seqlens_q.size(); ++b) {
      c.used_q.push_back(static_cast<std::int32_t>(random.integer(0, c.seqlens_q[b])));
      c.used_k.push_back(static_cast<std::int32_t>(random.integer(0, c.seqlens_k[b])));
    }
  }
  c.fill(seed);
  return c;
}

}  // namespace strobe::test
