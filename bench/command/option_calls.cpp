// SPDX-License-Identifier: Apache-2.0
#include "bench/command/option_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "strobe/block_mask.h"

namespace strobe::program {
namespace {

/// Pairs that a call sees, where there are as many queries as keys.
double visible_pairs(const OptionCall& call, std::int64_t seqlen) {
  const AttentionOptions& options = call.options;
  const std::int64_t size = call.blocks.empty() ? seqlen : call.modifiers.block_size;
  const std::int64_t count = (seqlen + size - 1) / size;
  double pairs = 0.0;
  for (std::int64_t row = 0; row < seqlen; ++row) {
    std::int64_t begin = 0;
    std::int64_t end = options.causal == CausalMask::none ? seqlen : row + 1;
    if (options.window.left >= 0) begin = std::max(begin, row - options.window.left);
    if (options.window.right >= 0) end = std::min(end, row + options.window.right + 1);
    if (options.chunk > 0) {
      begin = std::max(begin, row / options.chunk * options.chunk);
      end = std::min(end, (row / options.chunk + 1) * options.chunk);
    }
    for (std::int64_t block = 0; block < count; ++block) {
      if (!call.blocks.empty() && call.blocks[static_cast<std::size_t>(row / size * count + block)] == 0) continue;
      const std::int64_t keys = std::min(end, (block + 1) * size) - std::max(begin, block * size);
      pairs += static_cast<double>(std::max<std::int64_t>(keys, 0));
    }
  }
  return pairs;
}

/// Sines, computed once and repeated: a bias may have a thousand million elements.
std::vector<float> repeating_sines(std::int64_t count) {
  constexpr std::size_t kPeriod = std::size_t{1} << 16;
  std::vector<float> values(static_cast<std::size_t>(count));
  const std::size_t first = std::min(kPeriod, values.size());
  for (std::size_t i = 0; i < first; ++i) values[i] = std::sin(static_cast<float>(i));
  for (std::size_t i = first; i < values.size(); i += kPeriod) {
    std::copy_n(values.begin(), std::min(kPeriod, values.size() - i), values.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return values;
}

bool is_backward(const CellInputs& inputs) { return inputs.cell.pass == bench::BenchPass::backward; }

}  // namespace

OptionCalls::OptionCalls(CellInputs& inputs)
    : inputs_(inputs),
      slopes_(inputs.cell.heads, 0.01F),
      sink_(inputs.cell.heads, 1.0F),
      bias_(repeating_sines(inputs.cell.heads * inputs.cell.seqlen * inputs.cell.seqlen)),
      d_bias_(is_backward(inputs) ? bias_.size() : 0),
      d_sink_(inputs.cell.heads),
      max_logits_(inputs.cell.batch * inputs.cell.heads) {
  add("plain", [](OptionCall&) {});
  add_terms();
  add("dropout 0.1", [](OptionCall& call) { call.options.dropout = 0.1F; });
  add("softcap", [](OptionCall& call) { call.options.softcap = 30.0F; });
  if (!is_backward(inputs)) {
    add("max logits", [&](OptionCall& call) {
      call.max_logits = tensor(max_logits_.data(), {inputs_.cell.batch, inputs_.cell.heads});
    });
    add("row-invariant", [](OptionCall& call) { call.options.row_invariant = true; });
  }
  add_intervals();
  for (const std::int64_t size : {128, 64}) add_blocks(size);
}

ForwardArguments OptionCalls::forward(const OptionCall& call) {
  ForwardArguments arguments = inputs_.tensors.forward();
  arguments.modifiers = call.modifiers;
  arguments.max_logits = call.max_logits;
  return arguments;
}

BackwardArguments OptionCalls::backward(const OptionCall& call) {
  BackwardArguments arguments = inputs_.tensors.backward();
  arguments.modifiers = call.modifiers;
  arguments.d_bias = call.d_bias;
  arguments.d_sink = call.d_sink;
  return arguments;
}

template <class Change>
void OptionCalls::add(std::string name, const Change& change) {
  OptionCall& call = calls_.emplace_back();
  call.name = std::move(name);
  call.options = inputs_.options;
  change(call);
  const std::int64_t seqlen = inputs_.cell.seqlen;
  call.visible = visible_pairs(call, seqlen) / visible_pairs(calls_.front(), seqlen);
}

void OptionCalls::add_terms() {
  const std::int64_t heads = inputs_.cell.heads;
  const std::int64_t seqlen = inputs_.cell.seqlen;
  const std::vector<float>& bias = bias_;
  add("alibi", [&](OptionCall& call) { call.modifiers.alibi_slopes = tensor(std::as_const(slopes_).data(), {heads}); });
  add("sink", [&](OptionCall& call) {
    call.modifiers.sink = tensor(std::as_const(sink_).data(), {heads});
    call.d_sink = tensor(d_sink_.data(), {heads});
  });
  add("bias, shared by heads",
      [&](OptionCall& call) { call.modifiers.bias = tensor(bias.data(), {1, 1, seqlen, seqlen}); });
  add("bias", [&](OptionCall& call) { call.modifiers.bias = tensor(bias.data(), {1, heads, seqlen, seqlen}); });
  if (!is_backward(inputs_)) return;
  add("bias and its gradient", [&](OptionCall& call) {
    call.modifiers.bias = tensor(bias.data(), {1, heads, seqlen, seqlen});
    call.d_bias = tensor(d_bias_.data(), {1, heads, seqlen, seqlen});
  });
}

/// Windows and chunks that hide something.
void OptionCalls::add_intervals() {
  for (const std::int64_t keys : {128, 1024}) {
    if (keys >= inputs_.cell.seqlen) continue;
    add(fmt::format("window {}", keys), [&](OptionCall& call) {
      call.options.window = inputs_.cell.causal ? Window{keys - 1, -1} : Window{keys / 2, keys / 2 - 1};
    });
  }
  constexpr std::int64_t kChunk = 2048;
  if (kChunk >= inputs_.cell.seqlen) return;
  add(fmt::format("chunk {}", kChunk), [](OptionCall& call) { call.options.chunk = kChunk; });
}

void OptionCalls::add_blocks(std::int64_t size) {
  const std::int64_t count = (inputs_.cell.seqlen + size - 1) / size;
  const auto add_mask = [&](const char* name, const std::function<Status(const TensorView&)>& build) {
    add(fmt::format("{} of {}", name, size), [&](OptionCall& call) {
      call.blocks.resize(static_cast<std::size_t>(count * count));
      static_cast<void>(build(tensor(call.blocks.data(), {count, count})));
      call.modifiers.block_mask = tensor(std::as_const(call.blocks).data(), {1, 1, count, count});
      call.modifiers.block_size = size;
    });
  };
  add_mask("all blocks", [](const TensorView& mask) { return local_block_mask(mask, -1, -1); });
  add_mask("butterfly", [](const TensorView& mask) { return butterfly_block_mask(mask); });
  add_mask("local blocks", [](const TensorView& mask) { return local_block_mask(mask, 1, 1); });
}

}  // namespace strobe::program
