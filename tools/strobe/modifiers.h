// SPDX-License-Identifier: Apache-2.0
// What joins the scores: flags, the files that they name, and the tensors in them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli_app.h"
#include "io/host_tensor.h"
#include "strobe/attention.h"

namespace strobe::program {

/// The texts of --score and --mask-text, and what they read.
struct Expression {
  ScoreFunction function;
  std::vector<io::HostTensor> captures;
  std::vector<ConstTensorView> views;  // of the captures
};

/// Tensors of rank 0 are not given.
struct Modifiers {
  io::HostTensor alibi_slopes, bias, sink, block_mask;
  std::int64_t block_size = 128;
  std::shared_ptr<const Expression> expression;  // or null

  ScoreModifiers views() const;
};

/// --score, --mask-text and --capture.
struct TextFlags {
  std::string score, mask_text;
  std::vector<std::string> captures;  // "name=file"

  bool given() const { return !score.empty() || !mask_text.empty() || !captures.empty(); }
  void add_to(CLI::App& command);

  /// What the texts are, with the files of --capture; null where nothing is given.
  Result<std::shared_ptr<const Expression>> read() const;
};

/// --alibi, --bias, --sink, --block-mask, --block-size, and the texts' flags.
struct ModifierFlags {
  bool alibi = false;
  std::string bias, sink, block_mask;
  std::int64_t block_size = 128;
  TextFlags texts;

  void add_to(CLI::App& command);

  /// Reads the files and makes the slopes of `heads_q` heads; what their shapes must be, the library says.
  Result<Modifiers> read(std::int64_t heads_q) const;

  /// ", ALiBi, sink" after the options' own description; "" when nothing is given.
  std::string describe() const;
};

/// The slopes of the ALiBi paper, [heads] float32: 2^(-8 (h + 1) / heads) where `heads` is a power of two; otherwise
/// those of the next smaller power of two, then every other one of twice as many.
/// Source: Press, Smith, Lewis, "Train short, test long" (2022), section 3 and its published code.
io::HostTensor alibi_slopes(std::int64_t heads);

}  // namespace strobe::program
