// SPDX-License-Identifier: Apache-2.0
// Flags that several subcommands share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli_app.h"
#include "strobe/attention.h"

namespace strobe::program {

/// The flags of AttentionOptions, and --max-logits.
struct OptionFlags {
  bool causal = false;
  bool causal_top_left = false;
  std::vector<std::int64_t> window;  // left and right, or empty
  AttentionOptions others;
  std::string normalize = "softmax";
  bool max_logits = false;  // an output, not an option of the library's

  void add_to(CLI::App& command);
  AttentionOptions options() const;

  /// "causal, window (128, 0), softcap 30": what differs from plain attention; "full" when nothing does.
  std::string describe() const;
};

/// A check of a flag that is ignored where its text is empty, as "$FILE" of an unset variable is.
std::string check_not_empty(const std::string& text);

/// The extents of one batched call.
struct Shape {
  std::int64_t batch = 1;
  std::int64_t seqlen_q = 1;
  std::int64_t seqlen_k = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;
  std::int64_t head_dim = 1;
  std::int64_t head_dim_v = 1;

  /// "batch 1, heads 8, seqlen 1024, head_dim 128", with the second side where it differs.
  std::string describe() const;
};

/// --batch, --seqlen, --seqlen-k, --heads, --heads-kv, --head-dim and --head-dim-v.
struct ShapeFlags {
  std::int64_t batch = 1;
  std::int64_t seqlen_q = 1024;
  std::optional<std::int64_t> seqlen_k;
  std::int64_t heads_q = 8;
  std::optional<std::int64_t> heads_kv;
  std::int64_t head_dim = 128;
  std::optional<std::int64_t> head_dim_v;

  void add_to(CLI::App& command);
  Shape shape() const;
};

/// --device, --engine, --kernels and --threads.
struct ExecutionFlags {
  std::string device = "cpu";
  std::string engine = "auto";
  std::string kernels;
  int threads = 0;

  /// Without --threads.
  void add_device_to(CLI::App& command);
  void add_to(CLI::App& command);
  Device tensor_device() const;
  Execution execution() const;
  bool on_gpu() const { return tensor_device().type == DeviceType::cuda; }
};

/// "float32", "float16", "bfloat16".
const std::vector<std::string>& dtype_names();

/// The dtype of one of dtype_names().
DType dtype_of(const std::string& name);

/// Workers that `threads` stands for: itself, or one per hardware thread when it is 0.
int resolved_threads(int threads);

}  // namespace strobe::program
