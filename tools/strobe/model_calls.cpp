// SPDX-License-Identifier: Apache-2.0
#include "model_calls.h"

#include <cstdint>

#include "gpu/auxiliary/served_steps.h"

namespace strobe::program {
namespace {

using Calls = std::vector<AttentionProblem>;

/// What all calls of a kind of layer have.
AttentionProblem plain_call(const ModelConfig& model, const ModelLayer& layer) {
  AttentionProblem call;
  call.dtype = model.dtype;
  call.batch = 1;
  call.heads_q = model.heads_q;
  call.heads_kv = layer.heads_kv;
  call.head_dim = layer.head_dim;
  call.head_dim_v = layer.head_dim_v;
  call.scale = model.scale;
  call.softcap = model.softcap;
  call.causal = CausalMask::bottom_right;
  call.window.left = layer.window;
  call.chunk = layer.chunk;
  call.modifiers.has_sink = model.has_sink;
  return call;
}

/// Whole sequences, as they come from a loader: batched, or packed one behind another.
void add_prefills(const AttentionProblem& plain, Pass pass, Calls& calls) {
  for (const std::int64_t seqlen : {128, 512, 2048, 8192, 32768}) {  // tiles depend on the length
    for (const bool packed : {false, true}) {
      AttentionProblem& call = calls.emplace_back(plain);
      call.pass = pass;
      call.seqlen_q = call.seqlen_k = call.total_q = call.total_k = seqlen;
      call.packed_q = call.packed_k = packed;
      call.wants_lse = pass == Pass::forward;
      call.wants_d_sink = pass == Pass::backward && plain.modifiers.has_sink;
    }
  }
}

/// The call over a cache in 8 bits, with a scale for all of it.
AttentionProblem with_stored(AttentionProblem call, std::optional<DType> dtype) {
  if (!dtype.has_value()) return call;
  call.stored = {*dtype, call.seqlen_k, call.seqlen_k};
  if (call.has_qv) call.head_dim += call.head_dim_v;  // a second query meets 16 bits alone: strobe.mla joins both
  call.has_qv = false;
  return call;
}

/// A token at a time over a cache of used lengths, for few sequences and for many.
void add_decodes(const AttentionProblem& plain, const ModelUse& use, Calls& calls) {
  for (const std::int64_t batch : {1, 8, 64, 256}) {
    for (const std::int64_t page_size : {0, 16, 64, 256}) {
      AttentionProblem call = plain;
      call.batch = call.total_q = batch;
      call.seqlen_q = 1;
      call.seqlen_k = 4096;
      call.total_k = batch * call.seqlen_k;
      call.has_seqused_k = true;
      call.page_size = page_size;
      calls.push_back(with_stored(call, use.kv_cache_dtype));
    }
  }
}

void add_served_steps(const AttentionProblem& plain, const ModelUse& use, Calls& calls) {
  for (const gpu::ServedStep& step : gpu::kServedSteps) {
    if (plain.has_qv && step.longest > 1) continue;  // prompts read no latent rows
    calls.push_back(with_stored(gpu::served_step(plain, step), use.kv_cache_dtype));
  }
}

void add_cache_calls(const AttentionProblem& plain, const ModelUse& use, Calls& calls) {
  add_decodes(plain, use, calls);
  if (use.served_steps) add_served_steps(plain, use, calls);
}

/// What serves latent attention beside prefills: prompts' parts that see all of an earlier part, and absorbed queries
/// over the rows themselves. Tiles depend on the heads of one GPU, where 1 to 8 share the model's.
void add_latent_calls(const AttentionProblem& plain, const ModelConfig& model, const ModelUse& use, Calls& calls) {
  AttentionProblem context = plain;
  context.causal = CausalMask::none;
  add_prefills(context, Pass::forward, calls);
  AttentionProblem absorbed = plain;
  absorbed.heads_kv = 1;
  absorbed.head_dim = model.row.rope;
  absorbed.head_dim_v = model.row.latent;
  absorbed.has_qv = true;
  for (const std::int64_t gpus : {1, 2, 4, 8}) {
    if (model.heads_q % gpus != 0) break;
    absorbed.heads_q = model.heads_q / gpus;
    add_cache_calls(absorbed, use, calls);
  }
}

}  // namespace

std::vector<AttentionProblem> model_calls(const ModelConfig& model, const ModelUse& use) {
  Calls calls;
  for (const ModelLayer& layer : model.layers) {
    const AttentionProblem plain = plain_call(model, layer);
    add_prefills(plain, Pass::forward, calls);
    if (use.training) {
      add_prefills(plain, Pass::backward, calls);
    } else if (model.row.latent > 0) {
      add_latent_calls(plain, model, use, calls);
    } else {
      add_cache_calls(plain, use, calls);
    }
  }
  return calls;
}

}  // namespace strobe::program
