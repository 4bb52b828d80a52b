// SPDX-License-Identifier: Apache-2.0
#include "option_calls.h"

#include <array>
#include <cstdint>

namespace strobe::program {
namespace {

using Problems = std::vector<AttentionProblem>;

/// A change of a call, one of several that exclude one another.
using Change = void (*)(AttentionProblem&);

constexpr Change kNone = [](AttentionProblem&) {};

constexpr std::array kMasks = {
    kNone,
    Change([](AttentionProblem& call) { call.causal = CausalMask::bottom_right; }),
    Change([](AttentionProblem& call) { call.window = {.left = 127, .right = 127}; }),
    Change([](AttentionProblem& call) {
      call.causal = CausalMask::bottom_right;
      call.window.left = 127;
    }),
    Change([](AttentionProblem& call) {
      call.causal = CausalMask::bottom_right;
      call.chunk = 8192;
    }),
};

constexpr std::array kScores = {
    Change([](AttentionProblem& call) { call.softcap = 50.0F; }),
    Change([](AttentionProblem& call) { call.modifiers.has_alibi = true; }),
    Change([](AttentionProblem& call) { call.modifiers.has_sink = true; }),
    Change([](AttentionProblem& call) {
      call.modifiers.has_bias = true;
      call.modifiers.bias_dtype = call.dtype;
    }),
};

constexpr Change kDropout = [](AttentionProblem& call) { call.dropout = 0.1F; };

constexpr std::array kLayouts = {
    kNone,
    Change([](AttentionProblem& call) { call.packed_q = call.packed_k = true; }),
    Change([](AttentionProblem& call) { call.has_seqused_q = call.has_seqused_k = true; }),
};

AttentionProblem plain(DType dtype, std::int64_t head_dim, std::int64_t seqlen_q, std::int64_t seqlen_k) {
  AttentionProblem call;
  call.dtype = dtype;
  call.batch = call.heads_q = call.heads_kv = 1;
  call.head_dim = call.head_dim_v = head_dim;
  call.seqlen_q = call.total_q = seqlen_q;
  call.seqlen_k = call.total_k = seqlen_k;
  call.scale = 1.0F;
  return call;
}

/// The call by each of the changes, and by none of them and two of them where `pairs`.
Problems with_scores(const AttentionProblem& call) {
  Problems calls = {call};
  for (std::size_t first = 0; first < kScores.size(); ++first) {
    kScores[first](calls.emplace_back(call));
    for (std::size_t second = 0; second < first; ++second) {
      AttentionProblem& both = calls.emplace_back(call);
      kScores[first](both);
      kScores[second](both);
    }
  }
  kDropout(calls.emplace_back(call));
  return calls;
}

template <class Changes>
Problems with_each(const Problems& calls, const Changes& changes) {
  Problems all;
  for (const AttentionProblem& call : calls) {
    for (const Change change : changes) change(all.emplace_back(call));
  }
  return all;
}

void append(const Problems& more, Problems& calls) { calls.insert(calls.end(), more.begin(), more.end()); }

void add_passes(const Problems& forwards, Problems& calls) {
  for (AttentionProblem call : forwards) {
    calls.push_back(call);
    call.pass = Pass::backward;
    calls.push_back(call);
    call.deterministic = true;
    calls.push_back(call);
  }
}

Problems training() {
  Problems calls;
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) {
      for (const std::int64_t seqlen : {512, 16384}) {
        const AttentionProblem call = plain(dtype, head_dim, seqlen, seqlen);
        add_passes(with_each(with_each(with_scores(call), kMasks), kLayouts), calls);
      }
    }
  }
  return calls;
}

constexpr std::array kCaches = {
    Change([](AttentionProblem& call) { call.has_seqused_k = true; }),
    Change([](AttentionProblem& call) {
      call.has_seqused_k = true;
      call.page_size = 16;
    }),
    Change([](AttentionProblem& call) {
      call.has_seqused_k = true;
      call.page_size = 64;
    }),
};

constexpr std::array kStored = {
    kNone,
    Change([](AttentionProblem& call) { call.stored = {DType::int8, call.seqlen_k, call.seqlen_k}; }),
    Change([](AttentionProblem& call) { call.stored = {DType::float8_e4m3, call.seqlen_k, call.seqlen_k}; }),
};

constexpr std::array kDecodeOptions = {
    kNone,
    kScores[0],
    kScores[1],
    kScores[2],
    Change([](AttentionProblem& call) { call.window.left = 127; }),
    Change([](AttentionProblem& call) {
      call.window.left = 127;
      call.modifiers.has_sink = true;
    }),
};

/// One query, and as many as a draft model guesses.
Problems decode() {
  Problems calls;
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const std::int64_t queries : {1, 4}) {
        AttentionProblem call = plain(dtype, head_dim, queries, 4096);
        if (queries > 1) call.causal = CausalMask::bottom_right;
        for (const std::int64_t group : {1, 4, 8}) {
          call.heads_q = group;
          for (const std::int64_t batch : {1, 1024}) {  // few sequences, whose keys are split, and many
            call.batch = batch;
            const Problems caches = with_each(with_each({call}, kCaches), kDecodeOptions);
            append(dtype == DType::bfloat16 ? with_each(caches, kStored) : caches, calls);
          }
        }
      }
    }
  }
  return calls;
}

}  // namespace

std::vector<AttentionProblem> option_calls() {
  Problems calls = training();
  append(decode(), calls);
  return calls;
}

}  // namespace strobe::program
