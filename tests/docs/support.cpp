// SPDX-License-Identifier: Apache-2.0
// Checks a page's table of what each engine supports against the library: support PAGE.md. Each row is a call, or a set
// of them, that is asked of the checks that every call goes through; where the page differs, the table is printed as it
// has to be.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "api/problem.h"
#include "sm80/cache_conversion.h"
#include "sm80/supported.h"
#include "sm90/cache_conversion.h"
#include "sm90/supported.h"
#include "strobe/attention.h"

namespace strobe {
namespace {

constexpr std::int64_t kBatch = 2, kRows = 128, kHeads = 4;
constexpr std::array kEngines = {"CPU", "GPU of compute capability 9.0 (sm90)", "other GPUs from 8.0 on (sm80)"};
using Answers = std::array<std::string, kEngines.size()>;

template <class View>
View view_of(DType dtype, std::vector<std::int64_t> shape) {
  View view{.dtype = dtype, .rank = static_cast<int>(shape.size())};
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    view.shape[axis] = shape[axis];
    view.strides[axis] = stride;
    stride *= shape[axis];
  }
  return view;
}
ConstTensorView in(DType dtype, std::vector<std::int64_t> shape) {
  return view_of<ConstTensorView>(dtype, std::move(shape));
}
TensorView out(DType dtype, std::vector<std::int64_t> shape) { return view_of<TensorView>(dtype, std::move(shape)); }

/// One call of each pass, with the same options.
struct Calls {
  ForwardArguments forward;
  BackwardArguments backward;
  AttentionOptions options;
};

Calls plain(DType dtype, std::int64_t head_dim, std::int64_t head_dim_v) {
  const std::vector<std::int64_t> shape = {kBatch, kRows, kHeads, head_dim};
  const std::vector<std::int64_t> shape_v = {kBatch, kRows, kHeads, head_dim_v};
  const std::vector<std::int64_t> lse = {kBatch, kHeads, kRows};
  Calls calls;
  calls.forward = {.q = in(dtype, shape), .k = in(dtype, shape), .v = in(dtype, shape_v), .o = out(dtype, shape_v)};
  calls.backward = {.q = in(dtype, shape),
                    .k = in(dtype, shape),
                    .v = in(dtype, shape_v),
                    .o = in(dtype, shape_v),
                    .lse = in(DType::float32, lse),
                    .d_o = in(dtype, shape_v),
                    .dq = out(dtype, shape),
                    .dk = out(dtype, shape),
                    .dv = out(dtype, shape_v)};
  return calls;
}
Calls plain(DType dtype, std::int64_t head_dim) { return plain(dtype, head_dim, head_dim); }
Calls plain() { return plain(DType::bfloat16, 64); }

/// Q, K and V of 8 bits, with a scale for each head.
Calls eight_bit(DType dtype, std::int64_t head_dim) {
  Calls calls = plain(dtype, head_dim);
  calls.forward.v = in(dtype, {kBatch, kHeads, head_dim, kRows});
  calls.forward.o = out(DType::bfloat16, {kBatch, kRows, kHeads, head_dim});
  calls.forward.q_descale = calls.forward.k_descale = calls.forward.v_descale = in(DType::float32, {1, kHeads, 1});
  return calls;
}

/// K and V of 8 bits beside a 16-bit q.
Calls stored() {
  Calls calls = plain();
  for (const auto tensor : {&ForwardArguments::k, &ForwardArguments::v}) (calls.forward.*tensor).dtype = DType::int8;
  calls.forward.k_descale = calls.forward.v_descale = in(DType::float32, {1, kHeads, 1});
  calls.backward.k.dtype = calls.backward.v.dtype = DType::int8;
  return calls;
}

template <class Arguments>
std::array<bool, kEngines.size()> takers(const Arguments& arguments, const AttentionOptions& options) {
  const Result<AttentionProblem> problem = api::make_problem(arguments, options);
  if (!problem.ok()) return {};
  return {true, sm90::check_supported(sm90::kernels_problem(*problem)).ok(),
          sm80::check_supported(sm80::kernels_problem(*problem)).ok()};
}

/// "yes" where both passes take the call.
Answers passes(const Calls& calls, bool has_backward = true) {
  const auto forward = takers(calls.forward, calls.options);
  const auto backward = has_backward ? takers(calls.backward, calls.options) : decltype(forward){};
  Answers answers;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    answers[i] = forward[i] && backward[i] ? "yes" : forward[i] ? "forward" : "no";
  }
  return answers;
}

/// The head_dims among 1 to 1024 whose forward, or whose backward, an engine takes, in words.
Answers head_dims(const std::function<Calls(std::int64_t)>& calls_of, bool of_backward = false) {
  std::array<std::vector<std::int64_t>, kEngines.size()> taken;
  for (std::int64_t head_dim = 1; head_dim <= 1024; ++head_dim) {
    const Calls calls = calls_of(head_dim);
    const auto engines = of_backward ? takers(calls.backward, calls.options) : takers(calls.forward, calls.options);
    for (std::size_t i = 0; i < taken.size(); ++i) {
      if (engines[i]) taken[i].push_back(head_dim);
    }
  }
  Answers answers;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    if (taken[i].empty()) {
      answers[i] = "no";
      continue;
    }
    const std::int64_t step = taken[i].front(), last = taken[i].back();
    const bool multiples = last == step * static_cast<std::int64_t>(taken[i].size());
    answers[i] = !multiples  ? fmt::format("{} sizes up to {}", taken[i].size(), last)
                 : step == 1 ? fmt::format("1 to {}", last)
                             : fmt::format("multiples of {} up to {}", step, last);
  }
  return answers;
}

Answers dtypes() {
  Answers answers;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const Answers taken = passes(plain(dtype, 64));
    for (std::size_t i = 0; i < answers.size(); ++i) {
      if (taken[i] == "yes") answers[i] += fmt::format("{}{}", answers[i].empty() ? "" : ", ", name_of(dtype));
    }
  }
  return answers;
}

using Change = std::function<void(Calls&)>;

Answers with(const Change& change, Calls calls = plain()) {
  change(calls);
  return passes(calls);
}

Answers forward_with(const Change& change, Calls calls = plain()) {
  change(calls);
  return passes(calls, false);
}

/// What several rows of the table have in common: their answers, which have to be the same.
Answers all_of(const std::vector<Change>& changes) {
  Answers common = with(changes.front());
  for (const Change& change : changes) {
    const Answers answers = with(change);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      if (answers[i] != common[i]) common[i] = "differs: split the row";
    }
  }
  return common;
}

/// The same modifier for both passes.
template <class Member>
Change modifier(Member member, ConstTensorView view) {
  return [member, view](Calls& calls) {
    calls.forward.modifiers.*member = view;
    calls.backward.modifiers.*member = view;
  };
}

void page(Calls& calls) {
  const std::vector<std::int64_t> pool = {32, 16, kHeads, 64};
  calls.forward.k = in(calls.forward.k.dtype, pool);
  calls.forward.v = in(calls.forward.v.dtype, pool);
  calls.forward.page_table = in(DType::int32, {kBatch, 8});
}

void make_grouped(Calls& calls) {
  for (ConstTensorView* view : {&calls.forward.k, &calls.forward.v, &calls.backward.k, &calls.backward.v}) {
    *view = in(view->dtype, {kBatch, kRows, 1, 64});
  }
  for (TensorView* view : {&calls.backward.dk, &calls.backward.dv}) *view = out(view->dtype, {kBatch, kRows, 1, 64});
}

void make_packed(Calls& calls) {
  const std::vector<std::int64_t> shape = {kBatch * kRows, kHeads, 64};
  for (ConstTensorView* view : {&calls.forward.q, &calls.forward.k, &calls.forward.v, &calls.backward.q,
                                &calls.backward.k, &calls.backward.v, &calls.backward.o, &calls.backward.d_o}) {
    *view = in(view->dtype, shape);
  }
  for (TensorView* view : {&calls.forward.o, &calls.backward.dq, &calls.backward.dk, &calls.backward.dv}) {
    *view = out(view->dtype, shape);
  }
  calls.backward.lse = in(DType::float32, {kHeads, kBatch * kRows});
  for (Sequences* sequences : {&calls.forward.sequences, &calls.backward.sequences}) {
    sequences->cu_seqlens_q = sequences->cu_seqlens_k = in(DType::int32, {kBatch + 1});
  }
}

void use_lengths(Calls& calls) {
  for (Sequences* sequences : {&calls.forward.sequences, &calls.backward.sequences}) {
    sequences->seqused_q = sequences->seqused_k = in(DType::int32, {kBatch});
  }
}

/// A mask, or what else is a number among the options.
template <class Member, class Value>
Change option(Member member, Value value) {
  return [member, value](Calls& calls) { calls.options.*member = value; };
}

struct Row {
  std::string title;
  Answers answers;
};

std::vector<Row> rows() {
  const Change alibi = modifier(&ScoreModifiers::alibi_slopes, in(DType::float32, {kHeads}));
  const Change sink = modifier(&ScoreModifiers::sink, in(DType::float32, {kHeads}));
  const Change bias = modifier(&ScoreModifiers::bias, in(DType::float32, {1, kHeads, kRows, kRows}));
  const Change block_mask = modifier(&ScoreModifiers::block_mask, in(DType::uint8, {1, 1, 1, 1}));
  const Change dropout = option(&AttentionOptions::dropout, 0.1F);
  const Change invariant = option(&AttentionOptions::row_invariant, true);
  const auto both = [](const Change& first, const Change& second) {
    return [first, second](Calls& calls) { first(calls), second(calls); };
  };
  const auto invariant_with = [&](const Change& change) { return forward_with(both(invariant, change)); };
  const auto of_dtype = [](DType dtype) { return [dtype](std::int64_t d) { return plain(dtype, d); }; };
  const auto of_eight_bit = [](DType dtype) { return [dtype](std::int64_t d) { return eight_bit(dtype, d); }; };
  return {
      {"dtypes", dtypes()},
      {"head_dim ([wide heads and MLA](docs/wide-heads.md))",
       head_dims([](std::int64_t d) { return plain(DType::bfloat16, d, 64); })},
      {"head_dim_v, independent of it", head_dims([](std::int64_t d) { return plain(DType::bfloat16, 64, d); })},
      {"both with gradients", head_dims([](std::int64_t d) { return plain(DType::bfloat16, d); }, true)},
      {"both of float32, which the sm80 kernels compute on 9.0, too", head_dims(of_dtype(DType::float32))},
      {"int8 and float8 q, k and v ([8 bits](docs/eight-bit.md))", passes(eight_bit(DType::int8, 64))},
      {"their head_dim and head_dim_v: int8", head_dims(of_eight_bit(DType::int8))},
      {"their head_dim and head_dim_v: float8", head_dims(of_eight_bit(DType::float8_e4m3))},
      {"grouped heads; packed sequences; used lengths", all_of({make_grouped, make_packed, use_lengths})},
      {"causal; windows; chunks; softcap; scale",
       all_of({option(&AttentionOptions::causal, CausalMask::bottom_right),
               option(&AttentionOptions::causal, CausalMask::top_left),
               option(&AttentionOptions::window, Window{16, 16}), option(&AttentionOptions::chunk, 32),
               option(&AttentionOptions::softcap, 30.0F), option(&AttentionOptions::scale, 0.5F)})},
      {"ALiBi; attention sinks and bias, with their gradients",
       all_of(
           {alibi, both(sink, [](Calls& calls) { calls.backward.d_sink = out(DType::float32, {kHeads}); }),
            both(bias, [](Calls& calls) { calls.backward.d_bias = out(DType::float32, {1, kHeads, kRows, kRows}); })})},
      {"dropout; block-sparse masks", all_of({dropout, block_mask})},
      {"[score and mask expressions](docs/expressions.md), with gradients of what they read", with([](Calls& calls) {
         static const Result<ScoreFunction> function =
             ScoreFunction::parse("score + slope[head] * (k - q)", "k <= q", {{"slope", DType::float32, 1}});
         static const ConstTensorView captures[] = {in(DType::float32, {kHeads})};
         static const TensorView gradients[] = {out(DType::float32, {kHeads})};
         calls.forward.modifiers.function = calls.backward.modifiers.function = &*function;
         calls.forward.modifiers.captures = calls.backward.modifiers.captures = captures;
         calls.backward.d_captures = gradients;
       })},
      {"[scores that are not normalized](docs/options.md#normalize): sigmoid attention, HSTU, linear attention",
       with([](Calls& calls) {
         calls.options.normalize = Normalization::none;
         calls.backward.lse = {};
       })},
      {"[`qv`](docs/wide-heads.md#qv), a second product of the scores", with([](Calls& calls) {
         calls.forward.qv = calls.forward.q;
         calls.backward.qv = calls.backward.q;
         calls.backward.dqv = calls.backward.dq;
       })},
      {"LSE and its gradient", with([](Calls& calls) {
         calls.forward.lse = out(DType::float32, {kBatch, kHeads, kRows});
         calls.backward.d_lse = in(DType::float32, {kBatch, kHeads, kRows});
       })},
      {"max logits",
       forward_with([](Calls& calls) { calls.forward.max_logits = out(DType::float32, {kBatch, kHeads}); })},
      {"k and v stored in int8 or float8, beside a 16-bit q", passes(stored())},
      {"[parts of sequences](docs/options.md#parts-of-sequences), by offsets", with([](Calls& calls) {
         const ConstTensorView offsets = in(DType::int32, {kBatch});
         calls.forward.sequences.offset_q = calls.backward.sequences.offset_q = offsets;
         calls.forward.sequences.offset_k = calls.backward.sequences.offset_k = offsets;
       })},
      {"[paged caches](docs/serving.md)", forward_with(page)},
      {"left padding",
       forward_with([](Calls& calls) { calls.forward.sequences.leftpad_k = in(DType::int32, {kBatch}); })},
      {"[tree masks](docs/serving.md#trees-of-draft-tokens), for speculative decoding", forward_with([](Calls& calls) {
         calls.forward.q = in(DType::bfloat16, {kBatch, 8, kHeads, 64});
         calls.forward.o = out(DType::bfloat16, {kBatch, 8, kHeads, 64});
         calls.forward.tree_mask = in(DType::int64, {kBatch, 8});
       })},
      {"[row-invariant](docs/serving.md#the-same-bits-in-every-batch): a row's bits do not depend on the batch",
       forward_with(invariant)},
      {"row-invariant with a bias", invariant_with(bias)},
      {"row-invariant with dropout", invariant_with(dropout)},
      {"row-invariant with a block mask", invariant_with(block_mask)},
  };
}

std::string line_of(const std::string& title, const Answers& answers) {
  return fmt::format("| {} | {} |\n", title, fmt::join(answers, " | "));
}

}  // namespace

std::string table() {
  std::string text = fmt::format("| | {} |\n|---|---|---|---|\n", fmt::join(kEngines, " | "));
  for (const Row& row : rows()) text += line_of(row.title, row.answers);
  return text;
}

}  // namespace strobe

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream page(argv[1]);
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  const std::string table = strobe::table();
  if (text.find(table + "\n") != std::string::npos) return 0;
  std::printf("%s does not have this table:\n\n%s", argv[1], table.c_str());
  return 1;
}
