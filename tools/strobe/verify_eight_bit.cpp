// SPDX-License-Identifier: Apache-2.0
#include "verify_eight_bit.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "attention_tensors.h"
#include "io/quantized.h"
#include "reference/eight_bit_inputs.h"
#include "table.h"

namespace strobe::program {
namespace {

struct Ingredients {
  const char* name;
  QuantizeOptions options;
};

/// From what ships elsewhere to the default.
std::vector<Ingredients> ingredients() {
  const auto e4m3 = [](ScaleUnit unit, bool rotate_qk, bool rotate_v) {
    return QuantizeOptions{.element = DType::float8_e4m3,
                           .q_scales = unit,
                           .k_scales = unit,
                           .v_scales = unit,
                           .rotate_qk = rotate_qk,
                           .rotate_v = rotate_v,
                           .center_k = false};
  };
  const QuantizeOptions int8;
  QuantizeOptions plain = int8;
  plain.rotate_qk = plain.rotate_v = plain.center_k = false;
  QuantizeOptions centred = plain;
  centred.center_k = true;
  QuantizeOptions rotated = centred;
  rotated.rotate_qk = true;
  QuantizeOptions by_blocks = int8;
  by_blocks.v_scales = ScaleUnit::block;
  return {{"e4m3, a scale per tensor", e4m3(ScaleUnit::tensor, false, false)},
          {"e4m3, blocks", e4m3(ScaleUnit::block, false, false)},
          {"e4m3, blocks, Q K rotated", e4m3(ScaleUnit::block, true, false)},
          {"e4m3, blocks, Q K V rotated", e4m3(ScaleUnit::block, true, true)},
          {"e4m3, all, scales as int8's", {.element = DType::float8_e4m3}},
          {"int8", plain},
          {"int8, K centred", centred},
          {"int8, K centred, Q K rotated", rotated},
          {"int8, all, V scales by blocks", by_blocks},
          {"int8, all: the default", int8}};
}

io::HostTensor to_tensor(const std::vector<float>& values, const std::vector<std::int64_t>& shape) {
  io::HostTensor tensor = io::make_tensor(DType::float32, shape);
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

double rmse(const io::HostTensor& actual, const io::HostTensor& expected) {
  const auto* a = reinterpret_cast<const float*>(actual.bytes.data());
  const auto* e = reinterpret_cast<const float*>(expected.bytes.data());
  const std::size_t count = io::element_count(actual);
  double sum = 0.0;
  for (std::size_t i = 0; i < count; ++i) {
    const double error = static_cast<double>(a[i]) - static_cast<double>(e[i]);
    sum += error * error;
  }
  return std::sqrt(sum / static_cast<double>(count));
}

/// One distribution's inputs and exact output.
class Column {
 public:
  Column(reference::EightBitInputs inputs, const ShapeFlags& shape, const AttentionOptions& options,
         const Execution& execution, std::uint64_t seed)
      : options_(options), execution_(execution) {
    const reference::EightBitTensors made =
        reference::make_eight_bit_inputs(inputs, shape.seqlen_q, shape.heads_q, shape.head_dim, seed);
    const std::vector<std::int64_t> extents{1, shape.seqlen_q, shape.heads_q, shape.head_dim};
    q_ = to_tensor(made.q, extents);
    k_ = to_tensor(made.k, extents);
    v_ = to_tensor(made.v, extents);
    exact_ = o_ = io::make_tensor(DType::float32, extents);
  }

  /// float32 attention: off by less than a thousandth of what 8 bits are.
  Status find_exact() { return run({.q = io::view(q_), .k = io::view(k_), .v = io::view(v_)}, exact_); }

  Result<std::string> error_of(const QuantizeOptions& quantize) {
    const Result<io::Quantized> operands = io::quantized(io::view(std::as_const(q_)), io::view(std::as_const(k_)),
                                                         io::view(std::as_const(v_)), quantize, execution_);
    if (!operands.ok()) return operands.status();
    if (Status status = run(operands->arguments(), o_); !status.ok()) return status;
    return fmt::format("{:.2e}", rmse(o_, exact_));
  }

  Result<std::string> error_of_bfloat16() {
    const io::HostTensor q = converted(q_, DType::bfloat16);
    const io::HostTensor k = converted(k_, DType::bfloat16);
    const io::HostTensor v = converted(v_, DType::bfloat16);
    io::HostTensor o = io::make_tensor(DType::bfloat16, q_.shape);
    if (Status status = run({.q = io::view(q), .k = io::view(k), .v = io::view(v)}, o); !status.ok()) return status;
    return fmt::format("{:.2e}", rmse(converted(o, DType::float32), exact_));
  }

 private:
  Status run(ForwardArguments arguments, io::HostTensor& o) const {
    arguments.o = io::view(o);
    return forward(arguments, options_, execution_);
  }

  const AttentionOptions& options_;
  const Execution& execution_;
  io::HostTensor q_, k_, v_, exact_, o_;
};

}  // namespace

ExitCode verify_eight_bit(const ShapeFlags& shape, const AttentionOptions& options, const Execution& execution,
                          std::uint64_t seed) {
  std::vector<Table::Column> titles{{"operands", Table::Align::left}};
  std::vector<Column> columns;
  for (const reference::EightBitInputs inputs : reference::kEightBitInputs) {
    titles.push_back({reference::name_of(inputs)});
    columns.emplace_back(inputs, shape, options, execution, seed);
    if (Status status = columns.back().find_exact(); !status.ok()) return report(status);
  }
  Table table(titles);
  const auto add_row = [&](const char* name, const auto& error_in) -> Status {
    std::vector<std::string> cells{name};
    for (Column& column : columns) {
      Result<std::string> error = error_in(column);
      if (!error.ok()) return error.status();
      cells.push_back(*error);
    }
    table.add_row(std::move(cells));
    return {};
  };
  Status status = add_row("bfloat16", [](Column& column) { return column.error_of_bfloat16(); });
  for (const Ingredients& one : ingredients()) {
    if (!status.ok()) break;
    status = add_row(one.name, [&](Column& column) { return column.error_of(one.options); });
  }
  if (!status.ok()) return report(status);
  fmt::print("RMSE of O against float32, quantisation included: seqlen {}, {} heads, head_dim {}, seed {}\n\n{}\n",
             shape.seqlen_q, shape.heads_q, shape.head_dim, seed, table.text());
  return ExitCode::ok;
}

}  // namespace strobe::program
