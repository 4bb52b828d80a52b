// SPDX-License-Identifier: Apache-2.0
#include "encoder.h"

#include <cblas.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>

#include "row_kernels.h"

namespace sentence_search {
namespace {

// Tokens that go through a layer's products together: 256 x 1536 intermediate values stay in a core's caches.
constexpr std::size_t kBlockTokens = 256;

/// outputs = inputs weight^T, on the calling thread alone.
void multiply(const float* inputs, const Linear& linear, Rows outputs) {
  const auto width_in = static_cast<blasint>(linear.inputs);
  const auto width_out = static_cast<blasint>(linear.outputs);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(outputs.count), width_out, width_in, 1.0F,
              inputs, width_in, linear.weight, width_in, 0.0F, outputs.data, width_out);
}

/// One batch on its way through the layers.
class Pass {
 public:
  Pass(const Model& model, const TokenBatch& batch, int threads, Operands operands)
      : model_(model),
        batch_(batch),
        hidden_size_(model.config().hidden_size),
        threads_(threads),
        operands_(operands),
        arena_(threads),
        hidden_(batch.tokens() * hidden_size_),
        qkv_(batch.tokens() * 3 * hidden_size_),
        context_(batch.tokens() * hidden_size_) {}

  void embed();
  strobe::Status run_layer(const Layer& layer, std::size_t index, const AttentionObserver& observer);
  std::vector<float> pooled() const;

 private:
  /// Calls body(first, count) for blocks of tokens, in parallel.
  template <class Body>
  void for_each_block(const Body& body) {
    const std::size_t blocks = (batch_.tokens() + kBlockTokens - 1) / kBlockTokens;
    arena_.execute([&] {
      oneapi::tbb::parallel_for(std::size_t{0}, blocks, [&](std::size_t block) {
        const std::size_t first = block * kBlockTokens;
        body(first, std::min(kBlockTokens, batch_.tokens() - first));
      });
    });
  }

  strobe::ForwardArguments attention_arguments();
  void finish_layer(const Layer& layer, std::size_t first, std::size_t count);

  const Model& model_;
  const TokenBatch& batch_;
  std::size_t hidden_size_;
  int threads_;
  Operands operands_;
  oneapi::tbb::task_arena arena_;
  std::vector<float> hidden_;   // [tokens, hidden_size]
  std::vector<float> qkv_;      // [tokens, 3, hidden_size]
  std::vector<float> context_;  // [tokens, hidden_size]
};

void Pass::embed() {
  const Embeddings& tables = model_.embeddings();
  for (std::size_t sentence = 0; sentence < batch_.sentences(); ++sentence) {
    const auto begin = static_cast<std::size_t>(batch_.cu_seqlens[sentence]);
    const auto end = static_cast<std::size_t>(batch_.cu_seqlens[sentence + 1]);
    for (std::size_t token = begin; token < end; ++token) {
      const float* word = tables.word + static_cast<std::size_t>(batch_.token_ids[token]) * hidden_size_;
      std::copy_n(word, hidden_size_, hidden_.data() + token * hidden_size_);
    }
    add_and_normalize({hidden_.data() + begin * hidden_size_, end - begin, hidden_size_}, tables.type, tables.position,
                      tables.norm);
  }
}

/// Strobe reads q, k and v where the stacked projection wrote them: as strided views, without a copy.
strobe::ForwardArguments Pass::attention_arguments() {
  const auto tokens = static_cast<std::int64_t>(batch_.tokens());
  const auto heads = static_cast<std::int64_t>(model_.config().heads);
  const auto head_dim = static_cast<std::int64_t>(model_.config().head_dim());
  const auto projection = [&](std::size_t which) {
    auto view = strobe::tensor<const float>(qkv_.data() + which * hidden_size_, {tokens, heads, head_dim});
    view.strides[0] = static_cast<std::int64_t>(3 * hidden_size_);
    return view;
  };
  const auto cu_seqlens = strobe::tensor<const std::int32_t>(batch_.cu_seqlens.data(),
                                                             {static_cast<std::int64_t>(batch_.cu_seqlens.size())});
  return {.q = projection(0),
          .k = projection(1),
          .v = projection(2),
          .o = strobe::tensor(context_.data(), {tokens, heads, head_dim}),
          .lse = {},
          .sequences = {.cu_seqlens_q = cu_seqlens,
                        .cu_seqlens_k = cu_seqlens,
                        .seqused_q = {},
                        .seqused_k = {},
                        .max_seqlen_q = batch_.max_seqlen,
                        .max_seqlen_k = batch_.max_seqlen},
          .q_descale = {},
          .k_descale = {},
          .v_descale = {},
          .page_table = {}};
}

strobe::Status Pass::run_layer(const Layer& layer, std::size_t index, const AttentionObserver& observer) {
  for_each_block([&](std::size_t first, std::size_t count) {
    const Rows qkv{qkv_.data() + first * layer.qkv.outputs, count, layer.qkv.outputs};
    multiply(hidden_.data() + first * hidden_size_, layer.qkv, qkv);
    add_bias(qkv, layer.qkv.bias);
  });

  const strobe::ForwardArguments arguments = attention_arguments();
  if (observer) observer(index, arguments);
  strobe::Status status = attend(arguments, operands_, threads_);
  if (!status.ok()) return status;

  for_each_block([&](std::size_t first, std::size_t count) { finish_layer(layer, first, count); });
  return {};
}

/// What follows the attention, for one block of tokens: output projection and feed-forward, each with its residual.
void Pass::finish_layer(const Layer& layer, std::size_t first, std::size_t count) {
  const auto scratch = std::make_unique_for_overwrite<float[]>(count * (hidden_size_ + layer.intermediate.outputs));
  const Rows attended{scratch.get(), count, hidden_size_};
  const Rows inner{scratch.get() + count * hidden_size_, count, layer.intermediate.outputs};
  const Rows hidden{hidden_.data() + first * hidden_size_, count, hidden_size_};

  multiply(context_.data() + first * hidden_size_, layer.attention_output, attended);
  add_and_normalize(attended, layer.attention_output.bias, hidden.data, layer.attention_norm);
  multiply(attended.data, layer.intermediate, inner);
  add_bias_gelu(inner, layer.intermediate.bias);
  multiply(inner.data, layer.output, hidden);
  add_and_normalize(hidden, layer.output.bias, attended.data, layer.output_norm);
}

/// The mean of each sentence's tokens, scaled to length 1.
std::vector<float> Pass::pooled() const {
  std::vector<float> embeddings(batch_.sentences() * hidden_size_);
  for (std::size_t sentence = 0; sentence < batch_.sentences(); ++sentence) {
    const std::span<float> embedding(embeddings.data() + sentence * hidden_size_, hidden_size_);
    for (auto token = batch_.cu_seqlens[sentence]; token < batch_.cu_seqlens[sentence + 1]; ++token) {
      const float* row = hidden_.data() + static_cast<std::size_t>(token) * hidden_size_;
      for (std::size_t i = 0; i < hidden_size_; ++i) embedding[i] += row[i];
    }
    float squares = 0.0F;
    for (const float value : embedding) squares += value * value;
    const float scale = squares > 0.0F ? 1.0F / std::sqrt(squares) : 0.0F;
    for (float& value : embedding) value *= scale;
  }
  return embeddings;
}

}  // namespace

strobe::Result<std::vector<float>> Encoder::encode(const TokenBatch& batch, const AttentionObserver& observer) const {
  // Blocks of tokens run in parallel, so each product keeps to its own thread.
  openblas_set_num_threads(1);
  Pass pass(model_, batch, threads_, operands_);
  pass.embed();
  for (std::size_t i = 0; i < model_.layers().size(); ++i) {
    if (strobe::Status status = pass.run_layer(model_.layers()[i], i, observer); !status.ok()) return status;
  }
  return pass.pooled();
}

}  // namespace sentence_search
