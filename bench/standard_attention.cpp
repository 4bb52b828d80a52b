// SPDX-License-Identifier: Apache-2.0
#include "standard_attention.h"

#include <fmt/format.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <new>
#include <numeric>

#include "products.h"
#include "rows.h"

namespace strobe::bench {
namespace {

using Buffer = std::unique_ptr<float[]>;

Buffer allocate(std::int64_t rows, std::int64_t columns) {
  return std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(rows * columns));
}

/// One call as plain numbers.
struct Problem {
  std::int64_t batch, heads_q, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v;
  DType dtype;
  float scale;
  AttentionOptions options;
};

bool given(const ScoreModifiers& modifiers) {
  return modifiers.alibi_slopes.given() || modifiers.bias.given() || modifiers.sink.given() ||
         modifiers.block_mask.given() || modifiers.function != nullptr;
}

Result<Problem> make_problem(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                             const Sequences& sequences, const ScoreModifiers& modifiers,
                             const AttentionOptions& options) {
  const auto failure = [](const char* message) { return Status(StatusCode::unsupported, message); };
  if (q.rank != 4 || k.rank != 4 || v.rank != 4) return failure("standard attention takes rank 4 tensors only");
  if (sequences.cu_seqlens_q.given() || sequences.cu_seqlens_k.given() || sequences.seqused_q.given() ||
      sequences.seqused_k.given()) {
    return failure("standard attention takes sequences of equal length only");
  }
  if (q.dtype != DType::float32 && q.dtype != DType::float16 && q.dtype != DType::bfloat16) {
    return failure("standard attention takes float32, float16 and bfloat16 only");
  }
  if (given(modifiers) || options.chunk != 0 || options.dropout != 0.0F) {
    return failure("standard attention has no score modifiers, chunks or dropout here");
  }
  const float scale = options.scale.value_or(1.0F / std::sqrt(static_cast<float>(q.shape[3])));
  return Problem{q.shape[0], q.shape[2], k.shape[2], q.shape[1], k.shape[1],
                 q.shape[3], v.shape[3], q.dtype,    scale,      options};
}

KeyRange visible_keys(const Problem& problem, std::int64_t query) {
  const AttentionOptions& options = problem.options;
  const bool top_left = options.causal == CausalMask::top_left;
  const std::int64_t center = top_left ? query : query + problem.seqlen_k - problem.seqlen_q;
  std::int64_t begin = 0;
  std::int64_t end = problem.seqlen_k;
  if (options.window.left >= 0) begin = std::max(begin, center - options.window.left);
  if (options.window.right >= 0) end = std::min(end, center + options.window.right + 1);
  if (options.causal != CausalMask::none) end = std::min(end, center + 1);
  end = std::max<std::int64_t>(end, 0);
  return {std::min(begin, end), end};
}

/// Element (b, position, head, 0) of a batched tensor; Pointer is const std::byte* or std::byte*.
template <class Pointer, class View>
Pointer row_of(const View& view, std::int64_t b, std::int64_t position, std::int64_t head) {
  const std::int64_t offset = b * view.strides[0] + position * view.strides[1] + head * view.strides[2];
  return static_cast<Pointer>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
}

/// One head, widened to float32, rows one after another.
void load_head(const ConstTensorView& view, std::int64_t b, std::int64_t head, float* to) {
  const std::int64_t columns = view.shape[3];
  for (std::int64_t i = 0; i < view.shape[1]; ++i, to += columns) {
    const auto* const row = row_of<const std::byte*>(view, b, i, head);
    const auto widen = [&](const auto* from) {
      std::transform(from, from + columns, to, [](auto value) { return to_float(value); });
    };
    if (view.dtype == DType::float32) widen(reinterpret_cast<const float*>(row));
    if (view.dtype == DType::bfloat16) widen(reinterpret_cast<const bfloat16*>(row));
    if (view.dtype == DType::float16) widen(reinterpret_cast<const float16*>(row));
  }
}

void store_head(const float* from, const TensorView& view, std::int64_t b, std::int64_t head) {
  const std::int64_t columns = view.shape[3];
  for (std::int64_t i = 0; i < view.shape[1]; ++i, from += columns) {
    auto* const row = row_of<std::byte*>(view, b, i, head);
    const float* const end = from + columns;
    if (view.dtype == DType::float32) std::copy(from, end, reinterpret_cast<float*>(row));
    if (view.dtype == DType::bfloat16) std::transform(from, end, reinterpret_cast<bfloat16*>(row), to_bfloat16);
    if (view.dtype == DType::float16) std::transform(from, end, reinterpret_cast<float16*>(row), to_float16);
  }
}

/// Element (b, head, 0) of lse [batch, heads, seqlen], and the stride between queries.
struct LseRow {
  float* data = nullptr;
  std::int64_t stride = 0;
  float& operator[](std::int64_t query) const { return data[query * stride]; }
};

LseRow lse_row(const ConstTensorView& view, std::int64_t b, std::int64_t head) {
  auto* const data = static_cast<float*>(const_cast<void*>(view.data));
  return {data + b * view.strides[0] + head * view.strides[1], view.strides[2]};
}

/// Slices rows over threads, each of which multiplies by itself, so that two pools never share the cores.
class Workers {
 public:
  explicit Workers(int threads) : arena_(concurrency(threads)), product_threads_(set_product_threads(1)) {}
  ~Workers() { set_product_threads(product_threads_); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void for_slices(std::int64_t rows, const std::function<void(std::int64_t begin, std::int64_t end)>& body) {
    const std::int64_t slices = arena_.max_concurrency();
    arena_.execute([&] {
      oneapi::tbb::parallel_for(std::int64_t{0}, slices,
                                [&](std::int64_t slice) { body(rows * slice / slices, rows * (slice + 1) / slices); });
    });
  }

 private:
  /// oneTBB has no more than one worker for each hardware thread, and says so on standard error when asked for more.
  static int concurrency(int threads) {
    const int most = oneapi::tbb::info::default_concurrency();
    return threads > 0 ? std::min(threads, most) : most;
  }

  oneapi::tbb::task_arena arena_;
  int product_threads_;  // before
};

/// Rows [begin, end) of S = softcap(scale Q K^T), rounded where a 16-bit tensor would hold them.
void score_rows(const Problem& problem, const float* q, const float* k, std::int64_t begin, std::int64_t end,
                float* s) {
  const std::int64_t keys = problem.seqlen_k;
  const std::int64_t d = problem.head_dim;
  float* const slice = s + begin * keys;
  multiply(end - begin, keys, d, problem.scale, {q + begin * d, d}, {k, d, true}, 0.0F, slice);
  const std::int64_t elements = (end - begin) * keys;
  round_row(problem.dtype, slice, elements);
  if (problem.options.softcap > 0.0F) {
    softcap_row(problem.options.softcap, slice, elements);
    round_row(problem.dtype, slice, elements);
  }
}

class StandardForward {
 public:
  StandardForward(const Problem& problem, const ForwardArguments& arguments)
      : problem_(problem),
        arguments_(arguments),
        q_(allocate(problem.seqlen_q, problem.head_dim)),
        k_(allocate(problem.seqlen_k, problem.head_dim)),
        v_(allocate(problem.seqlen_k, problem.head_dim_v)),
        o_(allocate(problem.seqlen_q, problem.head_dim_v)),
        s_(allocate(problem.seqlen_q, problem.seqlen_k)),
        p_(allocate(problem.seqlen_q, problem.seqlen_k)) {}

  void run(Workers& workers) {
    const std::int64_t group = problem_.heads_q / problem_.heads_kv;
    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      for (std::int64_t h = 0; h < problem_.heads_q; ++h) {
        load_head(arguments_.q, b, h, q_.get());
        load_head(arguments_.k, b, h / group, k_.get());
        load_head(arguments_.v, b, h / group, v_.get());
        const LseRow lse = arguments_.lse.given() ? lse_row(arguments_.lse, b, h) : LseRow{};
        workers.for_slices(problem_.seqlen_q, [&](auto begin, auto end) { run_queries(begin, end, lse); });
        store_head(o_.get(), arguments_.o, b, h);
      }
    }
  }

 private:
  void run_queries(std::int64_t begin, std::int64_t end, LseRow lse) {
    const std::int64_t keys = problem_.seqlen_k;
    const std::int64_t dv = problem_.head_dim_v;
    score_rows(problem_, q_.get(), k_.get(), begin, end, s_.get());
    for (std::int64_t i = begin; i < end; ++i) {
      const float row_lse = softmax_row(&s_[i * keys], visible_keys(problem_, i), &p_[i * keys], keys);
      if (lse.data != nullptr) lse[i] = row_lse;
    }
    round_row(problem_.dtype, &p_[begin * keys], (end - begin) * keys);
    multiply(end - begin, dv, keys, 1.0F, {&p_[begin * keys], keys}, {v_.get(), dv}, 0.0F, &o_[begin * dv]);
  }

  const Problem& problem_;
  const ForwardArguments& arguments_;
  Buffer q_, k_, v_, o_, s_, p_;
};

class StandardBackward {
 public:
  StandardBackward(const Problem& problem, const BackwardArguments& arguments)
      : problem_(problem),
        arguments_(arguments),
        q_(allocate(problem.seqlen_q, problem.head_dim)),
        k_(allocate(problem.seqlen_k, problem.head_dim)),
        v_(allocate(problem.seqlen_k, problem.head_dim_v)),
        o_(allocate(problem.seqlen_q, problem.head_dim_v)),
        d_o_(allocate(problem.seqlen_q, problem.head_dim_v)),
        dq_(allocate(problem.seqlen_q, problem.head_dim)),
        dk_(allocate(problem.seqlen_k, problem.head_dim)),
        dv_(allocate(problem.seqlen_k, problem.head_dim_v)),
        s_(allocate(problem.seqlen_q, problem.seqlen_k)),
        p_(allocate(problem.seqlen_q, problem.seqlen_k)),
        ds_(allocate(problem.seqlen_q, problem.seqlen_k)) {}

  void run(Workers& workers) {
    const std::int64_t group = problem_.heads_q / problem_.heads_kv;
    for (std::int64_t b = 0; b < problem_.batch; ++b) {
      for (std::int64_t head_kv = 0; head_kv < problem_.heads_kv; ++head_kv) {
        load_head(arguments_.k, b, head_kv, k_.get());
        load_head(arguments_.v, b, head_kv, v_.get());
        for (std::int64_t member = 0; member < group; ++member) {
          run_query_head(b, head_kv * group + member, member == 0 ? 0.0F : 1.0F, workers);
        }
        store_head(dk_.get(), arguments_.dk, b, head_kv);
        store_head(dv_.get(), arguments_.dv, b, head_kv);
      }
    }
  }

 private:
  /// One query head: dQ, and its part of dK and dV on top of `beta` times what they hold.
  void run_query_head(std::int64_t b, std::int64_t head, float beta, Workers& workers) {
    load_head(arguments_.q, b, head, q_.get());
    load_head(arguments_.o, b, head, o_.get());
    load_head(arguments_.d_o, b, head, d_o_.get());
    const LseRow lse = lse_row(arguments_.lse, b, head);
    const LseRow d_lse = arguments_.d_lse.given() ? lse_row(arguments_.d_lse, b, head) : LseRow{};
    workers.for_slices(problem_.seqlen_q, [&](auto begin, auto end) { run_queries(begin, end, lse, d_lse); });
    workers.for_slices(problem_.seqlen_k, [&](auto begin, auto end) { run_keys(begin, end, beta); });
    store_head(dq_.get(), arguments_.dq, b, head);
  }

  /// Rows [begin, end) of S, P, dP, dS and dQ.
  void run_queries(std::int64_t begin, std::int64_t end, LseRow lse, LseRow d_lse) {
    const std::int64_t keys = problem_.seqlen_k;
    const std::int64_t d = problem_.head_dim;
    const std::int64_t dv = problem_.head_dim_v;
    const std::int64_t elements = (end - begin) * keys;
    float* const ds = &ds_[begin * keys];
    score_rows(problem_, q_.get(), k_.get(), begin, end, s_.get());
    for (std::int64_t i = begin; i < end; ++i) {
      probability_row(&s_[i * keys], lse[i], visible_keys(problem_, i), &p_[i * keys], keys);
    }
    round_row(problem_.dtype, &p_[begin * keys], elements);
    multiply(end - begin, keys, dv, 1.0F, {&d_o_[begin * dv], dv}, {v_.get(), dv, true}, 0.0F, ds);
    round_row(problem_.dtype, ds, elements);
    for (std::int64_t i = begin; i < end; ++i) {
      float delta = std::inner_product(&o_[i * dv], &o_[(i + 1) * dv], &d_o_[i * dv], 0.0F);
      if (d_lse.data != nullptr) delta -= d_lse[i];
      softmax_gradient_row(&p_[i * keys], &ds_[i * keys], delta, &ds_[i * keys], keys);
    }
    if (problem_.options.softcap > 0.0F) {
      softcap_gradient_row(problem_.options.softcap, &s_[begin * keys], ds, elements);
    }
    round_row(problem_.dtype, ds, elements);
    multiply(end - begin, d, keys, problem_.scale, {ds, keys}, {k_.get(), d}, 0.0F, &dq_[begin * d]);
  }

  /// Rows [begin, end) of dK and dV: columns of dS and P.
  void run_keys(std::int64_t begin, std::int64_t end, float beta) {
    const std::int64_t queries = problem_.seqlen_q;
    const std::int64_t keys = problem_.seqlen_k;
    const std::int64_t d = problem_.head_dim;
    const std::int64_t dv = problem_.head_dim_v;
    multiply(end - begin, dv, queries, 1.0F, {&p_[begin], keys, true}, {d_o_.get(), dv}, beta, &dv_[begin * dv]);
    multiply(end - begin, d, queries, problem_.scale, {&ds_[begin], keys, true}, {q_.get(), d}, beta, &dk_[begin * d]);
  }

  const Problem& problem_;
  const BackwardArguments& arguments_;
  Buffer q_, k_, v_, o_, d_o_, dq_, dk_, dv_, s_, p_, ds_;
};

/// Plans, then runs Pass on `threads` workers; memory that cannot be had becomes a Status.
template <class Pass, class Arguments>
Status run_standard(const Arguments& arguments, const AttentionOptions& options, int threads) {
  const Result<Problem> problem =
      make_problem(arguments.q, arguments.k, arguments.v, arguments.sequences, arguments.modifiers, options);
  if (!problem.ok()) return problem.status();
  try {
    Workers workers(threads);
    Pass(*problem, arguments).run(workers);
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory,
            fmt::format("standard attention needs S and P of {} x {} in memory, which is more than there is",
                        problem->seqlen_q, problem->seqlen_k)};
  }
  return {};
}

}  // namespace

Status standard_forward(const ForwardArguments& arguments, const AttentionOptions& options, int threads) {
  return run_standard<StandardForward>(arguments, options, threads);
}

Status standard_backward(const BackwardArguments& arguments, const AttentionOptions& options, int threads) {
  return run_standard<StandardBackward>(arguments, options, threads);
}

}  // namespace strobe::bench
