// SPDX-License-Identifier: Apache-2.0
#include "bench/command/options.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "bench/command/peers.h"
#include "bench/command/report.h"
#include "io/progress.h"
#include "strobe/block_mask.h"
#include "tools/strobe/machine.h"
#include "tools/strobe/table.h"

namespace strobe::program {
namespace {

/// Tensors that the options take, for one cell.
struct OptionTensors {
  std::vector<float> slopes, sink, bias, d_bias, d_sink, max_logits;

  explicit OptionTensors(const bench::Cell& cell)
      : slopes(cell.heads, 0.01F),
        sink(cell.heads, 1.0F),
        bias(static_cast<std::size_t>(cell.heads * cell.seqlen * cell.seqlen)),
        d_bias(cell.pass == bench::BenchPass::backward ? bias.size() : 0),
        d_sink(cell.heads),
        max_logits(cell.batch * cell.heads) {
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = std::sin(static_cast<float>(i));
  }
};

/// A call of the cell with one option.
struct OptionCall {
  std::string name;
  AttentionOptions options;
  ScoreModifiers modifiers;
  TensorView d_bias, d_sink, max_logits;
  std::vector<std::uint8_t> blocks;  // what modifiers.block_mask views
  std::vector<double> times;

  double visible_blocks() const {
    if (blocks.empty()) return 1.0;
    return std::accumulate(blocks.begin(), blocks.end(), 0.0) / static_cast<double>(blocks.size());
  }
};

class OptionCalls {
 public:
  OptionCalls(CellInputs& inputs, OptionTensors& tensors) : inputs_(inputs), tensors_(tensors) {
    add("plain", [](OptionCall&) {});
    add_terms();
    add("dropout 0.1", [](OptionCall& call) { call.options.dropout = 0.1F; });
    add("softcap", [](OptionCall& call) { call.options.softcap = 30.0F; });
    if (inputs.cell.pass == bench::BenchPass::forward) {
      add("max logits", [&](OptionCall& call) {
        call.max_logits = tensor(tensors_.max_logits.data(), {inputs_.cell.batch, inputs_.cell.heads});
      });
    }
    for (const std::int64_t size : {128, 64}) add_blocks(size);
  }

  std::vector<OptionCall>& all() { return calls_; }

  /// One call; milliseconds.
  Result<double> run(const OptionCall& call) {
    const auto start = std::chrono::steady_clock::now();
    Status status;
    if (inputs_.cell.pass == bench::BenchPass::forward) {
      ForwardArguments arguments = inputs_.tensors.forward();
      arguments.modifiers = call.modifiers;
      arguments.max_logits = call.max_logits;
      status = forward(arguments, call.options, inputs_.execution);
    } else {
      BackwardArguments arguments = inputs_.tensors.backward();
      arguments.modifiers = call.modifiers;
      arguments.d_bias = call.d_bias;
      arguments.d_sink = call.d_sink;
      status = backward(arguments, call.options, inputs_.execution);
    }
    if (!status.ok()) return status;
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  template <class Change>
  void add(std::string name, const Change& change) {
    calls_.push_back({.name = std::move(name), .options = inputs_.options});
    change(calls_.back());
  }

  void add_terms() {
    const std::int64_t heads = inputs_.cell.heads;
    const std::int64_t seqlen = inputs_.cell.seqlen;
    const std::vector<float>& bias = tensors_.bias;
    add("alibi", [&](OptionCall& call) {
      call.modifiers.alibi_slopes = tensor(std::as_const(tensors_.slopes).data(), {heads});
    });
    add("sink", [&](OptionCall& call) {
      call.modifiers.sink = tensor(std::as_const(tensors_.sink).data(), {heads});
      call.d_sink = tensor(tensors_.d_sink.data(), {heads});
    });
    add("bias, shared by heads",
        [&](OptionCall& call) { call.modifiers.bias = tensor(bias.data(), {1, 1, seqlen, seqlen}); });
    add("bias", [&](OptionCall& call) { call.modifiers.bias = tensor(bias.data(), {1, heads, seqlen, seqlen}); });
    if (inputs_.cell.pass == bench::BenchPass::forward) return;
    add("bias and its gradient", [&](OptionCall& call) {
      call.modifiers.bias = tensor(bias.data(), {1, heads, seqlen, seqlen});
      call.d_bias = tensor(tensors_.d_bias.data(), {1, heads, seqlen, seqlen});
    });
  }

  void add_blocks(std::int64_t size) {
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

  CellInputs& inputs_;
  OptionTensors& tensors_;
  std::vector<OptionCall> calls_;
};

/// One cell's rounds. Views into a call's own blocks stay: a vector that moves keeps its memory.
template <class Step>
Result<std::vector<OptionCall>> run_cell(const bench::Cell& cell, int repeats, const Step& step) {
  const auto inputs = make_cell_inputs(cell, {}, Engine::cpu);
  if (!inputs.ok()) return inputs.status();
  OptionTensors tensors(cell);
  OptionCalls calls(**inputs, tensors);
  for (int round = -1; round < repeats; ++round) {  // round -1 warms up
    for (OptionCall& call : calls.all()) {
      const Result<double> time = calls.run(call);
      if (!time.ok()) return time.status();
      if (round >= 0) call.times.push_back(*time);
    }
    step();
  }
  return std::move(calls.all());
}

/// What the call takes of the plain one's time: the median over rounds, as a clock that changes meets both of a round.
double ratio_of(const OptionCall& call, const OptionCall& plain) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < call.times.size(); ++round) {
    ratios.push_back(call.times[round] / plain.times[round]);
  }
  return median(ratios);
}

nlohmann::ordered_json json_row(const bench::Cell& cell, const OptionCall& call, const OptionCall& plain) {
  return {{"device", fmt::format("{}, {}", processor_name(), instruction_sets().front())},
          {"pass", bench::name_of(cell.pass)},
          {"dtype", strobe::name_of(cell.dtype)},
          {"head_dim", cell.head_dim},
          {"causal", cell.causal},
          {"seqlen", cell.seqlen},
          {"batch", cell.batch},
          {"heads", cell.heads},
          {"threads", cell.threads},
          {"option", call.name},
          {"visible_blocks", call.visible_blocks()},
          {"median_ms", median(call.times)},
          {"ratio", ratio_of(call, plain)}};
}

}  // namespace

ExitCode run_option_costs(const BenchFlags& flags) {
  const Result<std::vector<bench::Cell>> cells = flags.cells();
  if (!cells.ok()) return report(cells.status());
  io::Progress progress("bench", static_cast<std::int64_t>(cells->size()) * (flags.repeats + 1), "rounds");
  std::int64_t rounds = 0;
  Table table({{"pass", Table::Align::left},
               {"dtype", Table::Align::left},
               {"head_dim"},
               {"causal", Table::Align::left},
               {"seqlen"},
               {"option", Table::Align::left},
               {"visible"},
               {"ms"},
               {"x plain"}});
  auto rows = nlohmann::ordered_json::array();
  for (const bench::Cell& cell : *cells) {
    const auto calls = run_cell(cell, flags.repeats, [&] { progress.update(++rounds); });
    if (!calls.ok()) return report(calls.status());
    for (const OptionCall& call : *calls) {
      table.add_row({bench::name_of(cell.pass), strobe::name_of(cell.dtype), fmt::format("{}", cell.head_dim),
                     cell.causal ? "yes" : "no", fmt::format("{}", cell.seqlen), call.name,
                     fmt::format("{:.0f}%", 100.0 * call.visible_blocks()), fmt::format("{:.2f}", median(call.times)),
                     fmt::format("{:.3f}", ratio_of(call, calls->front()))});
      rows.push_back(json_row(cell, call, calls->front()));
    }
  }
  progress.finish();
  fmt::print("{}; {}, medians of {} interleaved calls\n\n{}", processor_name(), flags.batch_and_heads(), flags.repeats,
             table.text());
  if (flags.json.empty()) return ExitCode::ok;
  const Status written = write_json_rows(flags.json, std::move(rows));
  return written.ok() ? ExitCode::ok : report(written);
}

}  // namespace strobe::program
