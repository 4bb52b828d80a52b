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
#include "output.h"
#include "reference/eight_bit_inputs.h"
#include "strobe/error_budget.h"
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

/// The last rows of [1, .., heads, head_dim] that `shape` holds.
io::HostTensor last_rows(const std::vector<float>& values, const std::vector<std::int64_t>& shape) {
  io::HostTensor tensor = io::make_tensor(DType::float32, shape);
  const std::size_t count = io::element_count(tensor);
  std::memcpy(tensor.bytes.data(), values.data() + (values.size() - count), tensor.bytes.size());
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

/// Batch 1, as many heads of q as of k and v.
struct Extents {
  std::int64_t queries, keys, heads, head_dim;
};

/// Inputs and their exact output.
class Inputs {
 public:
  Inputs(const reference::EightBitTensors& made, const Extents& extents, const AttentionOptions& options,
         const Execution& execution)
      : options_(options), execution_(execution) {
    const auto of = [&](std::int64_t rows) {
      return std::vector<std::int64_t>{1, rows, extents.heads, extents.head_dim};
    };
    q_ = last_rows(made.q, of(extents.queries));
    k_ = last_rows(made.k, of(extents.keys));
    v_ = last_rows(made.v, of(extents.keys));
    exact_ = o_ = io::make_tensor(DType::float32, q_.shape);
  }

  /// float32 attention: off by less than a thousandth of what 8 bits are.
  Status find_exact() { return run({.q = io::view(q_), .k = io::view(k_), .v = io::view(v_)}, exact_); }

  Status run_eight_bit(const QuantizeOptions& quantize) {
    const Result<io::Quantized> operands = io::quantized(io::view(std::as_const(q_)), io::view(std::as_const(k_)),
                                                         io::view(std::as_const(v_)), quantize, execution_);
    return operands.ok() ? run(operands->arguments(), o_) : operands.status();
  }

  Status run_bfloat16() {
    const io::HostTensor q = converted(q_, DType::bfloat16);
    const io::HostTensor k = converted(k_, DType::bfloat16);
    const io::HostTensor v = converted(v_, DType::bfloat16);
    io::HostTensor o = io::make_tensor(DType::bfloat16, q_.shape);
    if (Status status = run({.q = io::view(q), .k = io::view(k), .v = io::view(v)}, o); !status.ok()) return status;
    o_ = converted(o, DType::float32);
    return {};
  }

  Result<QuantizationPlan> plan(QuantizationMode mode) const {
    return plan_quantization(io::view(q_), io::view(k_), io::view(v_), {.mode = mode}, options_);
  }

  /// What the last run is off by; `relative`: over the root mean square of O.
  double error(bool relative) const {
    const double absolute = rmse(o_, exact_);
    return relative ? absolute / rmse(exact_, io::make_tensor(DType::float32, exact_.shape)) : absolute;
  }

  const float* output() const { return reinterpret_cast<const float*>(o_.bytes.data()); }

 private:
  Status run(ForwardArguments arguments, io::HostTensor& o) const {
    arguments.o = io::view(o);
    return forward(arguments, options_, execution_);
  }

  const AttentionOptions& options_;
  const Execution& execution_;
  io::HostTensor q_, k_, v_, exact_, o_;
};

/// Calls add(row, inputs) after bfloat16's run, row 0, and after those of all ingredients.
template <class Add>
Status for_each_row(Inputs& inputs, const std::vector<Ingredients>& rows, const Add& add) {
  if (Status status = inputs.run_bfloat16(); !status.ok()) return status;
  add(std::size_t{0}, inputs);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (Status status = inputs.run_eight_bit(rows[i].options); !status.ok()) return status;
    add(i + 1, inputs);
  }
  return {};
}

/// Calls add(row, number) with what each mode of a budget is off by, what it was estimated to be, and its bound.
template <class Add>
Status for_each_plan(Inputs& inputs, const Add& add) {
  std::size_t row = 0;
  for (const QuantizationMode mode : {QuantizationMode::fast, QuantizationMode::accurate}) {
    const Result<QuantizationPlan> plan = inputs.plan(mode);
    if (!plan.ok()) return plan.status();
    if (Status status = inputs.run_eight_bit(plan->options); !status.ok()) return status;
    for (const double number : {inputs.error(false), plan->rmse, plan->error_bound}) add(row++, number);
  }
  return {};
}

/// A table's rows, which grow by a column at a time: what long contexts take is freed in between.
std::vector<std::vector<std::string>> empty_rows(const std::vector<Ingredients>& rows) {
  std::vector<std::vector<std::string>> cells{{"bfloat16"}};
  for (const Ingredients& one : rows) cells.push_back({one.name});
  return cells;
}

}  // namespace

ExitCode verify_eight_bit(const ShapeFlags& shape, const AttentionOptions& options, const Execution& execution,
                          std::uint64_t seed) {
  const Extents extents{shape.seqlen_q, shape.seqlen_k.value_or(shape.seqlen_q), shape.heads_q, shape.head_dim};
  if (extents.keys < extents.queries) {
    return report({StatusCode::invalid_argument,
                   "--eight-bit takes the last of as many queries as keys: --seqlen-k "
                   "must be --seqlen or more"});
  }
  if (extents.queries == 0) return report({StatusCode::invalid_argument, "--eight-bit needs a --seqlen of 1 or more"});
  if (!io::byte_count({extents.keys, extents.heads, extents.head_dim}, 32)) {
    return report({StatusCode::out_of_memory, "the inputs take more bytes than 63 bits count"});
  }
  const bool is_long = extents.keys > extents.queries;
  const std::vector<Ingredients> rows = ingredients();
  std::vector<std::vector<std::string>> cells = empty_rows(rows);
  std::vector<std::vector<std::string>> plans{{"fast: RMSE"},     {"fast: estimate"},     {"fast: bound"},
                                              {"accurate: RMSE"}, {"accurate: estimate"}, {"accurate: bound"}};
  std::vector<Table::Column> titles{{"operands", Table::Align::left}};
  for (const reference::EightBitInputs kind : reference::kEightBitInputs) {
    titles.push_back({reference::name_of(kind)});
    Inputs inputs(reference::make_eight_bit_inputs(kind, extents.keys, extents.heads, extents.head_dim, seed), extents,
                  options, execution);
    Status status = inputs.find_exact();
    if (status.ok()) {
      status = for_each_row(inputs, rows, [&](std::size_t row, const Inputs& after) {
        cells[row].push_back(fmt::format("{:.2e}", after.error(is_long)));
      });
    }
    if (status.ok() && !is_long) {
      status = for_each_plan(
          inputs, [&](std::size_t row, double number) { plans[row].push_back(fmt::format("{:.2e}", number)); });
    }
    if (!status.ok()) return report(status);
  }
  if (is_long) {
    titles.push_back({"needles"});
    const reference::Needles needles =
        reference::make_needles(extents.keys, extents.queries, extents.heads, extents.head_dim, seed);
    Inputs inputs(needles.tensors, extents, options, execution);
    const Status status = for_each_row(inputs, rows, [&](std::size_t row, const Inputs& after) {
      cells[row].push_back(fmt::format("{}", needles_found(needles, after.output(), extents.heads, extents.head_dim)));
    });
    if (!status.ok()) return report(status);
  }
  Table table(titles);
  for (std::vector<std::string>& row : cells) table.add_row(std::move(row));
  print_text("RMSE of O against float32, quantisation included{}: seqlen {}, {} heads, head_dim {}, seed {}\n\n{}\n",
             is_long ? fmt::format(", over O's root mean square, of the last {} queries; and how many of {} keys were "
                                   "found, one for each query and head",
                                   extents.queries, extents.queries * extents.heads)
                     : "",
             extents.keys, extents.heads, extents.head_dim, seed, table.text());
  if (!is_long) {
    Table budget(titles);
    for (std::vector<std::string>& row : plans) budget.add_row(std::move(row));
    print_text("What plan_quantization() expects of its modes\n\n{}\n", budget.text());
  }
  return ExitCode::ok;
}

}  // namespace strobe::program
