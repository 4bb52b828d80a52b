// SPDX-License-Identifier: Apache-2.0
#include "verify_eight_bit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "eight_bit_calls.h"
#include "io/progress.h"
#include "output.h"
#include "reference/eight_bit_inputs.h"
#include "table.h"

namespace strobe::program {
namespace {

/// The last rows of [1, .., heads, head_dim] that `shape` holds.
io::HostTensor last_rows(const std::vector<float>& values, const std::vector<std::int64_t>& shape) {
  io::HostTensor tensor = io::make_tensor(DType::float32, shape);
  const std::size_t count = io::element_count(tensor);
  std::memcpy(tensor.bytes.data(), values.data() + (values.size() - count), tensor.bytes.size());
  return tensor;
}

/// Batch 1, as many heads of q as of k and v.
struct Extents {
  std::int64_t queries, keys, heads, head_dim;
};

EightBitCalls calls_on(const reference::EightBitTensors& made, const Extents& extents, const AttentionOptions& options,
                       const Execution& execution) {
  const auto of = [&](std::int64_t rows) {
    return std::vector<std::int64_t>{1, rows, extents.heads, extents.head_dim};
  };
  return {last_rows(made.q, of(extents.queries)), last_rows(made.k, of(extents.keys)),
          last_rows(made.v, of(extents.keys)), options, execution};
}

/// The rows: bfloat16, all ingredients, caches.
std::vector<std::string> row_names(const std::vector<Ingredients>& ingredients) {
  std::vector<std::string> names{"bfloat16"};
  for (const Ingredients& one : ingredients) names.emplace_back(one.name);
  for (const CacheFormat& format : kCacheFormats) names.push_back(name_of(format));
  return names;
}

/// Calls add(row, inputs) after the run of each row.
template <class Add>
Status for_each_row(EightBitCalls& inputs, const std::vector<Ingredients>& ingredients, const Add& add) {
  std::size_t row = 0;
  const auto after = [&](const Status& status) {
    if (status.ok()) add(row++, inputs);
    return status;
  };
  Status status = after(inputs.run_bfloat16());
  for (const Ingredients& one : ingredients) {
    if (status.ok()) status = after(inputs.run_eight_bit(one.options));
  }
  for (const CacheFormat& format : kCacheFormats) {
    if (status.ok()) status = after(inputs.run_cache(format));
  }
  return status;
}

constexpr std::array kModes{QuantizationMode::fast, QuantizationMode::accurate};
constexpr std::array kModeNames{"fast", "accurate"};

/// What a mode of a budget is off by, what it was estimated to be, and its bound.
struct ModeErrors {
  double rmse, estimate, bound;
};

/// Calls add(mode, errors) for each of kModes.
template <class Add>
Status for_each_mode(EightBitCalls& inputs, const Add& add) {
  for (std::size_t mode = 0; mode < kModes.size(); ++mode) {
    const Result<QuantizationPlan> plan = inputs.plan(kModes[mode]);
    if (!plan.ok()) return plan.status();
    if (Status status = inputs.run_eight_bit(plan->options); !status.ok()) return status;
    add(mode, ModeErrors{inputs.error(), plan->rmse, plan->error_bound});
  }
  return {};
}

/// Tables that grow by a column at a time, as what long contexts take is freed in between; and the same for programs.
class EightBitReport {
 public:
  EightBitReport(const Extents& extents, const AttentionOptions& options, const Execution& execution,
                 std::uint64_t seed)
      : extents_(extents),
        options_(options),
        execution_(execution),
        seed_(seed),
        progress_("verify", steps(), "calls") {
    for (std::string& name : row_names(ingredients_)) cells_.push_back({std::move(name)});
    progress_.update(0);
  }

  /// Adds a column to each table. Budgets are made for as many queries as keys.
  Status add(reference::EightBitInputs kind) {
    const char* const name = reference::name_of(kind);
    titles_.push_back({name});
    std::ranges::replace(titles_.back().title, ' ', '\n');
    EightBitCalls inputs =
        calls_on(reference::make_eight_bit_inputs(kind, extents_.keys, extents_.heads, extents_.head_dim, seed_),
                 extents_, options_, execution_);
    if (Status status = inputs.find_exact(); !status.ok()) return status;
    Status status = for_each_row(inputs, ingredients_, [&](std::size_t row, const EightBitCalls& after) {
      const double error = after.error(is_long());
      cells_[row].push_back(fmt::format("{:.2e}", error));
      rows_.push_back({{"operands", cells_[row].front()}, {"inputs", name}, {"rmse", error}});
      progress_.update(++done_);
    });
    if (!status.ok() || is_long()) return status;
    return for_each_mode(inputs, [&](std::size_t mode, const ModeErrors& errors) {
      std::size_t row = 3 * mode;
      for (const double number : {errors.rmse, errors.estimate, errors.bound}) {
        plans_[row++].push_back(fmt::format("{:.2e}", number));
      }
      modes_.push_back({{"mode", kModeNames[mode]},
                        {"inputs", name},
                        {"rmse", errors.rmse},
                        {"estimate", errors.estimate},
                        {"bound", errors.bound}});
      progress_.update(++done_);
    });
  }

  /// Adds the column of keys that are found.
  Status add_needles() {
    titles_.push_back({"needles"});
    const reference::Needles needles =
        reference::make_needles(extents_.keys, extents_.queries, extents_.heads, extents_.head_dim, seed_);
    EightBitCalls inputs = calls_on(needles.tensors, extents_, options_, execution_);
    return for_each_row(inputs, ingredients_, [&](std::size_t row, const EightBitCalls& after) {
      const auto found = needles_found(needles, after.output(), extents_.heads, extents_.head_dim);
      cells_[row].push_back(fmt::format("{}", found));
      rows_.push_back({{"operands", cells_[row].front()}, {"inputs", "needles"}, {"found", found}});
      progress_.update(++done_);
    });
  }

  /// Makes every column.
  Status make() {
    Status status;
    for (const reference::EightBitInputs kind : reference::kEightBitInputs) {
      if (status.ok()) status = add(kind);
    }
    if (status.ok() && is_long()) status = add_needles();
    progress_.finish();
    return status;
  }

  void print() {
    Table table(titles_, 1);
    for (std::vector<std::string>& row : cells_) table.add_row(std::move(row));
    print_wrapped(fmt::format(
        "RMSE of O against float32, quantisation included{}: seqlen {}, {} heads, head_dim {}, seed {}\n\n",
        is_long() ? fmt::format(", over O's root mean square, of the last {} queries; and how many of {} keys were "
                                "found, one for each query and head",
                                extents_.queries, extents_.queries * extents_.heads)
                  : "",
        extents_.keys, extents_.heads, extents_.head_dim, seed_));
    print_text("{}\n", table.text(output_columns()));
    if (is_long()) return;
    Table budget(titles_, 1);
    for (std::vector<std::string>& row : plans_) budget.add_row(std::move(row));
    print_text("What plan_quantization() expects of its modes\n\n{}\n", budget.text(output_columns()));
  }

  nlohmann::ordered_json json() const { return {{"rows", rows_}, {"modes", modes_}}; }

 private:
  bool is_long() const { return extents_.keys > extents_.queries; }

  std::int64_t steps() const {
    const auto rows = static_cast<std::int64_t>(1 + ingredients_.size() + std::size(kCacheFormats));
    const auto kinds = static_cast<std::int64_t>(std::size(reference::kEightBitInputs));
    return is_long() ? rows * (kinds + 1) : (rows + static_cast<std::int64_t>(kModes.size())) * kinds;
  }

  const Extents extents_;
  const AttentionOptions& options_;
  const Execution& execution_;
  const std::uint64_t seed_;
  const std::vector<Ingredients> ingredients_ = ingredients();
  io::Progress progress_;
  std::int64_t done_ = 0;
  std::vector<Table::Column> titles_{{"operands", Table::Align::left}};
  std::vector<std::vector<std::string>> cells_;
  std::vector<std::vector<std::string>> plans_{{"fast: RMSE"},     {"fast: estimate"},     {"fast: bound"},
                                               {"accurate: RMSE"}, {"accurate: estimate"}, {"accurate: bound"}};
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json modes_ = nlohmann::ordered_json::array();
};

}  // namespace

ExitCode verify_eight_bit(const ShapeFlags& shape, const AttentionOptions& options, const Execution& execution,
                          std::uint64_t seed, const JsonFlag& json) {
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
  EightBitReport all(extents, options, execution, seed);
  if (Status status = all.make(); !status.ok()) return report(status);
  all.print();
  return report(json.write(all.json()));
}

}  // namespace strobe::program
