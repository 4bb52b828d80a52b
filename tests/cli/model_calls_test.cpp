// SPDX-License-Identifier: Apache-2.0
// The calls that follow from the config.json of known models, of which only the fields that are read stand here.
#include "tools/strobe/model_calls.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "gpu/auxiliary/served_steps.h"
#include "gpu/compile_ahead.h"
#include "gpu/plan/known_devices.h"
#include "program.h"
#include "runtime/temporary_folder.h"

namespace strobe::program {
namespace {

constexpr const char* kLlama31 = R"({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32,
  "num_key_value_heads": 8, "num_hidden_layers": 32, "torch_dtype": "bfloat16"})";

constexpr const char* kGemma3 = R"({"model_type": "gemma3", "torch_dtype": "bfloat16", "text_config": {
  "model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376, "num_attention_heads": 32,
  "num_key_value_heads": 16, "num_hidden_layers": 62, "query_pre_attn_scalar": 168, "sliding_window": 1024}})";

constexpr const char* kGemma4 = R"({"model_type": "gemma4", "dtype": "bfloat16",
  "audio_config": {"attention_chunk_size": 12}, "text_config": {"model_type": "gemma4_text", "dtype": "bfloat16",
  "head_dim": 256, "global_head_dim": 512, "hidden_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 8,
  "num_global_key_value_heads": 2, "attention_k_eq_v": true, "sliding_window": 1024, "layer_types": [
  "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention", "sliding_attention",
  "full_attention"]}})";

constexpr const char* kGptOss = R"({"model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880,
  "num_attention_heads": 64, "num_key_value_heads": 8, "sliding_window": 128,
  "layer_types": ["sliding_attention", "full_attention"]})";

constexpr const char* kDeepSeekV3 = R"({"model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128,
  "num_key_value_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
  "v_head_dim": 128, "torch_dtype": "bfloat16"})";

constexpr const char* kLlama4 = R"({"model_type": "llama4", "torch_dtype": "bfloat16", "text_config": {
  "model_type": "llama4_text", "attention_chunk_size": 8192, "head_dim": 128, "hidden_size": 5120,
  "num_attention_heads": 40, "num_key_value_heads": 8, "num_hidden_layers": 48, "torch_dtype": "bfloat16"}})";

Result<ModelConfig> read(const std::string& json) {
  const test::TemporaryFolder folder;
  const auto path = folder / "config.json";
  std::ofstream(path) << json;
  return read_model_config(path);
}

std::string error_of(const std::string& json) {
  const Result<ModelConfig> model = read(json);
  if (model.ok()) return "";
  const std::string message = model.status().message();
  return message.substr(message.find("' ") + 2);  // after the file's name
}

std::vector<ModelLayer> layers_of(const std::string& json) {
  const Result<ModelConfig> model = read(json);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? std::vector(model->layers.begin(), model->layers.end()) : std::vector<ModelLayer>();
}

/// Each of them has kernels on an H100.
std::vector<AttentionProblem> calls_of(const std::string& json, const ModelUse& use = {}) {
  const Result<ModelConfig> model = read(json);
  EXPECT_TRUE(model.ok()) << model.status().message();
  if (!model.ok()) return {};
  EXPECT_EQ(model->not_read, "");
  std::vector<AttentionProblem> calls = model_calls(*model, use);
  for (const AttentionProblem& call : calls) {
    EXPECT_EQ(call.dtype, DType::bfloat16);
    const auto kernels = gpu::kernels_of(call, "H100", gpu::device_named("H100"));
    EXPECT_TRUE(kernels.ok()) << kernels.status().message();
  }
  return calls;
}

template <class Has>
std::int64_t count(const std::vector<AttentionProblem>& calls, const Has& has) {
  return std::ranges::count_if(calls, has);
}

bool is_prefill(const AttentionProblem& call) { return call.pass == Pass::forward && !call.has_seqused_k; }
bool is_backward(const AttentionProblem& call) { return call.pass == Pass::backward; }
bool is_decode(const AttentionProblem& call) { return call.has_seqused_k && !call.packed_q; }
bool is_served_step(const AttentionProblem& call) { return call.has_seqused_k && call.packed_q; }

TEST(ModelCalls, OfLlama31ArePrefillsDecodesAndServedSteps) {
  EXPECT_EQ(layers_of(kLlama31), (std::vector<ModelLayer>{{8, 128, 128}}));
  const auto calls = calls_of(kLlama31);
  EXPECT_EQ(calls.size(), 30);
  EXPECT_EQ(count(calls, is_prefill), 10);
  EXPECT_EQ(count(calls, is_decode), 16);
  EXPECT_EQ(count(calls, is_served_step), 4);
  for (const AttentionProblem& call : calls) {
    EXPECT_EQ(call.heads_q, 32);
    EXPECT_EQ(call.causal, CausalMask::bottom_right);
    EXPECT_FLOAT_EQ(call.scale, 1.0F / std::sqrt(128.0F));
    EXPECT_TRUE(!is_served_step(call) || call.page_size == 16);
  }
  const auto mixed = [](const AttentionProblem& call) { return call.batch == 64 && call.seqlen_q == 2048; };
  EXPECT_EQ(count(calls, mixed), 1);
}

TEST(ModelCalls, ToTrainAreForwardsAndBackwards) {
  const auto calls = calls_of(kLlama31, {.training = true});
  EXPECT_EQ(calls.size(), 20);
  EXPECT_EQ(count(calls, is_prefill), 10);
  EXPECT_EQ(count(calls, is_backward), 10);
}

TEST(ModelCalls, OfGemma3AreWithItsWindowAndWithout) {
  EXPECT_EQ(layers_of(kGemma3), (std::vector<ModelLayer>{{16, 128, 128, -1}, {16, 128, 128, 1023}}));
  const auto calls = calls_of(kGemma3);
  EXPECT_EQ(calls.size(), 60);
  EXPECT_EQ(count(calls, [](const AttentionProblem& call) { return call.window.left == 1023; }), 30);
  EXPECT_FLOAT_EQ(calls.front().scale, 1.0F / std::sqrt(168.0F));
}

TEST(ModelCalls, OfGemma4HaveTheSizesOfGlobalLayers) {
  const std::vector<ModelLayer> layers{{2, 512, 512, -1}, {8, 256, 256, 1023}};
  EXPECT_EQ(layers_of(kGemma4), layers);
  EXPECT_EQ(calls_of(kGemma4).size(), 60);
  // As newer versions write it.
  EXPECT_EQ(layers_of(R"({"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "sliding_window": 1024,
                          "layer_types": ["sliding_attention", "full_attention"],
                          "per_layer_config": {"1": {"head_dim": 512, "num_key_value_heads": 2}}})"),
            layers);
  EXPECT_EQ(layers_of(R"({"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,
                          "num_global_key_value_heads": 2, "attention_k_eq_v": false})"),
            (std::vector<ModelLayer>{{1, 512, 512}}));
}

TEST(ModelCalls, OfGptOssHaveSinks) {
  EXPECT_EQ(layers_of(kGptOss), (std::vector<ModelLayer>{{8, 64, 64, -1}, {8, 64, 64, 127}}));
  const auto calls = calls_of(kGptOss, {.training = true});
  EXPECT_EQ(calls.size(), 40);
  for (const AttentionProblem& call : calls) {
    EXPECT_TRUE(call.modifiers.has_sink);
    EXPECT_EQ(call.wants_d_sink, is_backward(call));
  }
  EXPECT_EQ(calls_of(kGptOss).size(), 60);
}

TEST(ModelCalls, OfLlama4AreInChunksAndWithout) {
  EXPECT_EQ(layers_of(kLlama4), (std::vector<ModelLayer>{{8, 128, 128, -1, 0}, {8, 128, 128, -1, 8192}}));
  EXPECT_EQ(calls_of(kLlama4).size(), 60);
}

TEST(ModelCalls, OfDeepSeekV3ReadLatentRows) {
  const auto calls = calls_of(kDeepSeekV3);
  const auto contexts = [](const AttentionProblem& call) { return call.causal == CausalMask::none; };
  EXPECT_EQ(count(calls, is_prefill), 20);
  EXPECT_EQ(count(calls, contexts), 10);
  EXPECT_EQ(count(calls, is_decode), 4 * 16);
  EXPECT_EQ(count(calls, is_served_step), 4 * 2);
  for (const AttentionProblem& call : calls) {
    const bool absorbed = call.has_seqused_k;
    EXPECT_EQ(call.has_qv, absorbed);
    EXPECT_EQ(call.head_dim, absorbed ? 64 : 192);
    EXPECT_EQ(call.head_dim_v, absorbed ? 512 : 128);
    EXPECT_EQ(call.heads_kv, absorbed ? 1 : 128);
    EXPECT_FLOAT_EQ(call.scale, 1.0F / std::sqrt(192.0F));
  }
  for (const std::int64_t heads : {128, 64, 32, 16}) {
    EXPECT_EQ(count(calls, [&](const AttentionProblem& call) { return call.heads_q == heads && call.has_qv; }), 18);
  }
  const auto training = calls_of(kDeepSeekV3, {.training = true});
  EXPECT_EQ(count(training, is_backward), 10);
  EXPECT_EQ(training.size(), 20);
}

TEST(ModelCalls, ReadCachesInEightBits) {
  for (const DType dtype : {DType::float8_e4m3, DType::int8}) {
    const auto calls = calls_of(kLlama31, {.kv_cache_dtype = dtype});
    const auto stored = [&](const AttentionProblem& call) {
      return call.stored == StoredShape{dtype, call.seqlen_k, call.seqlen_k};
    };
    EXPECT_EQ(calls.size(), 30);
    EXPECT_EQ(count(calls, stored), 20);
    EXPECT_EQ(count(calls, [&](const AttentionProblem& call) { return stored(call) == is_prefill(call); }), 0);
  }
  for (const AttentionProblem& call : calls_of(kDeepSeekV3, {.kv_cache_dtype = DType::float8_e4m3})) {
    EXPECT_FALSE(call.has_qv);
    EXPECT_EQ(call.head_dim, call.stored.given() ? 576 : 192);
  }
}

/// The code of the kernels that calls need on an H100.
std::set<std::string> kernels_of(const std::vector<AttentionProblem>& calls) {
  std::set<std::string> codes;
  for (const AttentionProblem& call : calls) {
    const auto kernels = gpu::kernels_of(call, "H100", gpu::device_named("H100"));
    EXPECT_TRUE(kernels.ok()) << kernels.status().message();
    if (!kernels.ok()) continue;
    for (const runtime::Variant& kernel : *kernels) codes.insert(kernel.expression + kernel.code);
  }
  return codes;
}

/// Steps of other sizes than those that are listed, over caches of other lengths.
std::vector<AttentionProblem> other_steps(const std::vector<AttentionProblem>& calls) {
  constexpr gpu::ServedStep kSteps[] = {{1, 1, 1}, {32, 1, 32}, {100, 512, 800}, {16, 4096, 8192}, {2, 300, 310}};
  std::vector<AttentionProblem> others;
  for (const AttentionProblem& call : calls) {
    if (!is_served_step(call)) continue;
    for (const gpu::ServedStep& step : kSteps) {
      for (const std::int64_t seqlen_k : {4096, 131072}) {
        AttentionProblem& other = others.emplace_back(gpu::served_step(call, step));
        other.seqlen_k = seqlen_k;
        other.total_k = other.batch * seqlen_k;
      }
    }
  }
  return others;
}

TEST(ModelCalls, HaveTheKernelsOfStepsOfOtherSizes) {
  for (const char* const model : {kLlama31, kGemma3, kGemma4, kGptOss, kLlama4}) {
    const auto calls = calls_of(model);
    const auto listed = kernels_of(calls);
    const auto needed = kernels_of(other_steps(calls));
    EXPECT_TRUE(std::ranges::includes(listed, needed)) << model;
    EXPECT_FALSE(std::ranges::includes(kernels_of(calls_of(model, {.served_steps = false})), needed)) << model;
  }
}

TEST(ModelCalls, SayWhatTheFileLacks) {
  EXPECT_EQ(error_of(R"({"num_attention_heads": 8, "head_dim": 577})"), "has head_dim 577: 1 to 576 are accepted");
  EXPECT_EQ(error_of(R"({"num_attention_heads": 8, "head_dim": 576})"),
            "has 576 columns of a value's head: 1 to 512 are accepted");
  EXPECT_EQ(error_of(R"({"num_attention_heads": 8, "num_key_value_heads": 3, "head_dim": 64})"),
            "has 8 heads and 3 key-value heads: the first must be a multiple of the second");
  EXPECT_EQ(error_of(R"({"num_attention_heads": 128, "hidden_size": 7168, "kv_lora_rank": 512})"),
            "has kv_lora_rank, of latent attention, without qk_nope_head_dim, qk_rope_head_dim or v_head_dim: record a "
            "run (STROBE_RECORD)");
  EXPECT_EQ(error_of(R"({"num_attention_heads": 8, "kv_lora_rank": 520, "qk_rope_head_dim": 64,
                         "qk_nope_head_dim": 128, "v_head_dim": 128})"),
            "has kv_lora_rank 520 and qk_rope_head_dim 64: up to 512, and 576 together, are accepted");
  EXPECT_EQ(error_of(R"({"num_attention_heads": 8, "head_dim": 64, "model_type": 3, "layer_types": [3, {}],
                         "attention_k_eq_v": null, "use_sliding_window": [], "per_layer_config": {"0": 1}})"),
            "");
}

TEST(ModelCalls, NameFieldsThatAreNotRead) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "config.json";
  std::ofstream(path) << R"({"num_attention_heads": 64, "head_dim": 192, "v_head_dim": 128, "swa_head_dim": 128,
                             "index_topk": 2048, "swa_num_key_value_heads": null})";
  ::setenv("CUDA_VISIBLE_DEVICES", "-1", 1);  // so that nothing is tuned
  const test::Outcome outcome = test::run_program({"tune", "--config", path});
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_TRUE(outcome.err.starts_with("strobe: '" + path +
                                      "' is read in part; not read: swa_head_dim, index_topk; record a run "
                                      "(STROBE_RECORD) for the calls that follow\n"))
      << outcome.err;
}

TEST(ModelCalls, HaveCachesInEightBitsOnlyToServe) {
  const auto compile = [](const test::Words& more) {
    test::Words words{"compile", "--config", "config.json", "--device", "h100", "--kv-cache-dtype"};
    words.insert(words.end(), more.begin(), more.end());
    return test::run_program(words);
  };
  test::expect_rejection(compile({"int4"}), 2, "--kv-cache-dtype");
  test::expect_rejection(compile({"int8", "--training"}), 2, "--training");
}

}  // namespace
}  // namespace strobe::program
