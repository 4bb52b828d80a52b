// SPDX-License-Identifier: Apache-2.0
#include "sm90/pack.h"

#include <string_view>

#include "gpu/auxiliary/backward_variant.h"
#include "gpu/auxiliary/pack.h"
#include "gpu/plan/known_devices.h"
#include "gpu/plan/supported.h"
#include "gpu/variant/architecture.h"
#include "sm90/idle_calls.h"
#include "sm90/list_kernels.h"

namespace strobe::sm90 {
namespace {

constexpr gpu::DeviceShape kH200 = gpu::device_named("H200");

/// The calls that the pack answers without a compiler: what most models ask for. Training and prefill of any length,
/// batched and packed, and a query at a time over pages of narrow rows in bfloat16; other calls of few queries are in
/// the list of sm80.
std::vector<AttentionProblem> common_problems() {
  std::vector<AttentionProblem> problems;
  AttentionProblem problem;
  problem.batch = problem.heads_q = problem.heads_kv = 1;
  problem.scale = 1.0F;
  const auto add = [&](std::int64_t seqlen, bool packed) {
    problem.seqlen_q = problem.total_q = problem.seqlen_k = problem.total_k = seqlen;
    problem.packed_q = problem.packed_k = packed;
    problems.push_back(problem);
  };
  gpu::for_common_shapes([&](DType dtype, std::int64_t head_dim, CausalMask causal) {
    problem.dtype = dtype;
    problem.head_dim = problem.head_dim_v = head_dim;
    problem.causal = causal;
    for (const std::int64_t seqlen : {64, 128}) {
      if (seqlen == 128 || head_dim <= 128) add(seqlen, false);
    }
    for (const std::int64_t seqlen : {512, 16384}) {  // short and long calls may take different tiles
      for (const bool packed : {false, true}) add(seqlen, packed);
    }
    if (head_dim > 64 || dtype != DType::bfloat16 || causal != CausalMask::none) return;
    AttentionProblem decode = problem;
    decode.seqlen_q = decode.total_q = 1;
    decode.seqlen_k = decode.total_k = 4096;
    decode.packed_q = decode.packed_k = false;
    decode.has_seqused_k = true;
    decode.page_size = 16;
    for (const std::int64_t group : {1, 4, 8}) {
      decode.heads_q = group;
      problems.push_back(decode);
    }
  });
  return problems;
}

/// One head in bfloat16.
AttentionProblem plain_problem() {
  AttentionProblem plain;
  plain.dtype = DType::bfloat16;
  plain.batch = plain.heads_q = plain.heads_kv = 1;
  plain.seqlen_q = plain.seqlen_k = plain.total_q = plain.total_k = 4096;
  plain.scale = 1.0F;
  return plain;
}

/// Options that models are known for: windows with and without sinks, softcap, dropout in training.
std::vector<AttentionProblem> options_of_models() {
  AttentionProblem plain = plain_problem();
  plain.causal = CausalMask::bottom_right;
  std::vector<AttentionProblem> problems;
  const auto add = [&](std::int64_t head_dim, auto change) {
    AttentionProblem& problem = problems.emplace_back(plain);
    problem.head_dim = problem.head_dim_v = head_dim;
    change(problem);
  };
  add(128, [](AttentionProblem& p) { p.window.left = 4095; });  // Mistral
  for (const std::int64_t window : {-1, 4095}) {                // Gemma 2
    add(256, [=](AttentionProblem& p) {
      p.softcap = 50.0F;
      p.window.left = window;
    });
  }
  for (const std::int64_t window : {-1, 127}) {  // gpt-oss
    add(64, [=](AttentionProblem& p) {
      p.modifiers.has_sink = true;
      p.window.left = window;
    });
  }
  for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
    for (const std::int64_t head_dim : {64, 128}) {
      add(head_dim, [=](AttentionProblem& p) {
        p.dropout = 0.1F;
        p.causal = causal;
      });
    }
  }
  return problems;
}

/// Masks that are texts, of positions alone, which the host knows, and of captures: the kernels are the same for all
/// texts, but for the one that looks at the text first.
std::vector<AttentionProblem> text_mask_problems() {
  std::vector<AttentionProblem> problems;
  AttentionProblem problem = plain_problem();
  for (const std::int64_t head_dim : {64, 128}) {
    for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
      problem.head_dim = problem.head_dim_v = head_dim;
      problem.causal = causal;
      for (const std::string_view mask : {"(q + k) % 2 == 0", "document[q] == document[k]"}) {
        problems.push_back(gpu::with_text_mask(problem, mask));
      }
    }
  }
  return problems;
}

/// 8-bit operands as quantize() makes them by default, and e4m3 as an error budget's fast mode does; O in bfloat16.
std::vector<AttentionProblem> eight_bit_problems() {
  std::vector<AttentionProblem> problems;
  AttentionProblem problem;
  problem.batch = problem.heads_q = problem.heads_kv = 1;
  problem.scale = 1.0F;
  for (const DType dtype : {DType::int8, DType::float8_e4m3}) {
    for (const std::int64_t head_dim : {64, 128, 256}) {
      for (const CausalMask causal : {CausalMask::none, CausalMask::bottom_right}) {
        problem.dtype = dtype;
        problem.head_dim = problem.head_dim_v = head_dim;
        problem.causal = causal;
        for (const auto& [seqlen, packed] : {std::pair{2048, false}, {16384, false}, {16384, true}}) {
          problem.seqlen_q = problem.seqlen_k = problem.total_q = problem.total_k = seqlen;
          problem.packed_q = problem.packed_k = packed;
          if (packed && dtype != DType::int8 && causal != CausalMask::none) continue;  // it spills
          problem.eight_bit = {.q_rows = 1, .k_rows = 32, .v_rows = 1, .output = DType::bfloat16, .v_rotated = true};
          if (dtype == DType::int8 || head_dim < 256) problems.push_back(problem);  // else it spills
          if (dtype == DType::int8) continue;
          problem.eight_bit.k_rows = problem.eight_bit.v_rows = 128;
          problem.eight_bit.v_rotated = false;
          problems.push_back(problem);
        }
      }
    }
  }
  return problems;
}

/// Prompts over a cache in 8 bits, in pages, batched and packed: its conversion, and the kernels of used lengths.
std::vector<AttentionProblem> stored_problems() {
  std::vector<AttentionProblem> problems;
  AttentionProblem problem;
  problem.batch = problem.heads_q = problem.heads_kv = 1;
  problem.scale = 1.0F;
  problem.has_seqused_k = true;
  problem.page_size = 16;
  for (const DType stored : {DType::int8, DType::float8_e4m3}) {
    gpu::for_common_shapes([&](DType dtype, std::int64_t head_dim, CausalMask causal) {
      problem.dtype = dtype;
      problem.head_dim = problem.head_dim_v = head_dim;
      problem.causal = causal;
      for (const std::int64_t seqlen : {512, 16384}) {
        problem.seqlen_q = problem.total_q = problem.seqlen_k = problem.total_k = seqlen;
        problem.stored = {stored, seqlen, seqlen};
        for (const bool packed : {false, true}) {
          problem.packed_q = packed;
          problems.push_back(problem);
        }
      }
    });
  }
  return problems;
}

/// Steps of a server over a cache of heads of 512 columns, as Gemma 4 has: prompts, and a query at a time of few
/// sequences, whose keys are split, of many, which CTAs sort, and of more than they sort, over pages of one row, of 16
/// and of whole blocks.
std::vector<AttentionProblem> paged_wide_problems() {
  AttentionProblem paged = plain_problem();
  paged.head_dim = paged.head_dim_v = 512;
  paged.has_seqused_k = true;
  std::vector<AttentionProblem> problems;
  for (const std::int64_t page_size : {1, 16, 64}) {
    paged.page_size = page_size;
    AttentionProblem& prompts = problems.emplace_back(paged);
    prompts.causal = CausalMask::bottom_right;
    for (const std::int64_t group : {4, 8}) {
      for (const std::int64_t sequences : {1, 256, 1024}) {
        AttentionProblem& decode = problems.emplace_back(paged);
        decode.heads_q = group;
        decode.batch = decode.total_q = sequences;
        decode.seqlen_q = 1;
      }
    }
  }
  return problems;
}

/// Heads of 512 columns, as Gemma 4 trains, and absorbed latent attention of few heads on a device and of
/// many, as strobe.mla calls it: prompts, and a query at a time over rows, pages of 64 and pages of one; of few heads
/// over pages in e4m3, too.
std::vector<AttentionProblem> wide_problems() {
  AttentionProblem plain = plain_problem();
  plain.head_dim_v = 512;
  std::vector<AttentionProblem> problems;
  for (const bool packed : {false, true}) {
    AttentionProblem& gemma = problems.emplace_back(plain);
    gemma.head_dim = 512;
    gemma.causal = CausalMask::bottom_right;
    gemma.packed_q = gemma.packed_k = packed;
  }
  for (const std::int64_t heads : {16, 128}) {
    AttentionProblem latent = plain;
    latent.head_dim = 64;
    latent.has_qv = true;
    latent.heads_q = heads;
    latent.has_seqused_k = true;
    latent = gpu::with_joined_columns(latent);
    for (const std::int64_t page_size : {0, 1, 64}) {
      latent.page_size = page_size;
      AttentionProblem& prompts = problems.emplace_back(latent);
      prompts.causal = CausalMask::bottom_right;
      for (const std::int64_t sequences : {1, 1024}) {  // few, whose keys are split, and many
        AttentionProblem& decode = problems.emplace_back(latent);
        decode.batch = decode.total_q = sequences;
        decode.seqlen_q = 1;
        if (heads > 16 || page_size != 64) continue;
        AttentionProblem& stored = problems.emplace_back(decode);
        stored.has_qv = false;  // 576 columns of q
        stored.stored = {DType::float8_e4m3, stored.seqlen_k, stored.seqlen_k};
      }
    }
  }
  return problems;
}

/// With the tiles of the rule, as a call of many such sequences is planned. Calls that the kernels lack are left out:
/// they need none.
void add(AttentionProblem problem, Pass pass, bool deterministic, gpu::PackList& list) {
  problem.pass = pass;
  problem.deterministic = deterministic;
  static_cast<void>(list_kernels(problem, kH200, rule_left(problem, kH200).value_or(gpu::Choice()), list));
}

void add_forward(const AttentionProblem& problem, gpu::PackList& list) { add(problem, Pass::forward, false, list); }

void add_backward(const AttentionProblem& problem, bool deterministic, gpu::PackList& list) {
  add(problem, Pass::backward, deterministic, list);
}

/// Training in bfloat16 with many query heads a key head, or without a mask with few items: they share blocks of keys.
void add_grouped_backwards(gpu::PackList& list) {
  AttentionProblem problem;
  problem.dtype = DType::bfloat16;
  problem.batch = 1;
  problem.heads_q = 64;
  problem.heads_kv = 8;
  problem.scale = 1.0F;
  problem.causal = CausalMask::bottom_right;
  for (const std::int64_t head_dim : {64, 128}) {
    problem.head_dim = problem.head_dim_v = head_dim;
    for (const std::int64_t seqlen : {4096, 16384}) {
      problem.seqlen_q = problem.seqlen_k = problem.total_q = problem.total_k = seqlen;
      for (const bool packed : {false, true}) {
        problem.packed_q = problem.packed_k = packed;
        add_backward(problem, false, list);
        if (!packed) add_backward(problem, true, list);
      }
    }
    problem.packed_q = problem.packed_k = false;
    AttentionProblem full = problem;
    full.causal = CausalMask::none;
    full.heads_kv = 1;
    full.seqlen_q = full.seqlen_k = full.total_q = full.total_k = 2048;
    add_backward(full, false, list);
  }
}

}  // namespace

std::vector<runtime::CommonVariant> pack() {
  gpu::PackList list;
  for (const AttentionProblem& problem : common_problems()) {
    add_forward(problem, list);
    if (problem.seqlen_q != problem.seqlen_k) continue;  // no training
    add_backward(problem, false, list);
    if (!problem.packed_q) add_backward(problem, true, list);
  }
  add_grouped_backwards(list);
  add_idle_calls(list);
  for (const AttentionProblem& problem : options_of_models()) {
    add_forward(problem, list);
    if (problem.seqlen_q == problem.seqlen_k) add_backward(problem, false, list);
    if (problem.modifiers.has_sink) list.add(gpu::sink_variant(gpu::kSm90a), 0);
  }
  for (const AttentionProblem& problem : text_mask_problems()) {
    add_forward(problem, list);
    add_backward(problem, false, list);
  }
  for (const AttentionProblem& problem : wide_problems()) {
    add_forward(problem, list);
    if (!problem.has_qv) add_backward(problem, false, list);
  }
  for (const AttentionProblem& problem : paged_wide_problems()) add_forward(problem, list);
  for (const AttentionProblem& problem : eight_bit_problems()) add_forward(problem, list);
  for (const AttentionProblem& problem : stored_problems()) add_forward(problem, list);
  gpu::add_quantizers(gpu::kSm90a, list);
  gpu::add_merges(gpu::kSm90a, list);
  gpu::add_appends(gpu::kSm90a, list);
  return list.take();
}

}  // namespace strobe::sm90
