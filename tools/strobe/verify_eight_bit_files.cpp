// SPDX-License-Identifier: Apache-2.0
#include "verify_eight_bit_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention_tensors.h"
#include "eight_bit_calls.h"
#include "eight_bit_needs.h"
#include "io/progress.h"
#include "output.h"
#include "table.h"

namespace strobe::program {
namespace {

struct MeasuredCache {
  CacheFormat format;
  double rmse;
};

/// Errors of one set of tensors, as tables and for programs.
class FilesReport {
 public:
  FilesReport(EightBitCalls& calls, std::optional<float> max_rmse)
      : calls_(calls), max_rmse_(max_rmse), progress_("verify", steps(), "calls") {
    progress_.update(0);
  }

  Status make() {
    Status status = measure();
    for (const DType element : kEightBitElements) {
      if (status.ok()) status = add_need(element);
    }
    if (status.ok()) progress_.update(done_, done_);
    progress_.finish();
    return status;
  }

  ExitCode print(const std::string& title) {
    print_wrapped(fmt::format("RMSE of O against float32, quantisation included: {}\n\n", title));
    print_text("{}\n", errors_.text(output_columns()));
    print_wrapped("Caches of K and V in 8 bits, beside q in bfloat16; append() writes scales of heads and of rows\n\n");
    print_text("{}\n", caches_table_.text(output_columns()));
    print_wrapped(fmt::format("What each element needs, to be within {:.0f}% of its least error\n\n",
                              100.0 * (kNeedTolerance - 1.0)));
    print_text("{}\n", needs_table_.text(output_columns()));
    if (!max_rmse_) return ExitCode::ok;
    const MeasuredQuantization* const one = chosen();
    print_wrapped(one == nullptr
                      ? fmt::format("FAIL: no element keeps to an RMSE of {:.2e}: take 16 bits\n", *max_rmse_)
                      : fmt::format("{} keeps to an RMSE of {:.2e}\n", name_of(one->options.element), *max_rmse_));
    const MeasuredCache* const cache = chosen_cache();
    print_wrapped(cache == nullptr ? std::string("no cache in 8 bits does\n")
                                   : fmt::format("a cache of {} with a scale for each {} does\n",
                                                 name_of(cache->format.element), name_of_unit(cache->format)));
    return one == nullptr ? ExitCode::check_failed : ExitCode::ok;
  }

  nlohmann::ordered_json json() const {
    nlohmann::ordered_json document{{"rows", rows_}, {"needs", nlohmann::ordered_json::array()}};
    for (const MeasuredQuantization& need : needs_) {
      const QuantizeOptions& options = need.options;
      document["needs"].push_back({{"element", name_of(options.element)},
                                   {"q_scales", name_of_unit(options.q_scales)},
                                   {"k_scales", name_of_unit(options.k_scales)},
                                   {"v_scales", name_of_unit(options.v_scales)},
                                   {"rotate_qk", options.rotate_qk},
                                   {"rotate_v", options.rotate_v},
                                   {"center_k", options.center_k},
                                   {"rmse", need.rmse}});
    }
    if (!max_rmse_) return document;
    document["chosen"] = chosen() ? nlohmann::ordered_json(name_of(chosen()->options.element)) : nullptr;
    document["chosen_cache"] = chosen_cache() ? nlohmann::ordered_json(name_of(chosen_cache()->format)) : nullptr;
    return document;
  }

 private:
  /// bfloat16, all ingredients, caches.
  Status measure() {
    if (Status status = calls_.run_bfloat16(); !status.ok()) return status;
    bfloat16_ = calls_.error();
    add_row("bfloat16");
    for (const Ingredients& one : ingredients()) {
      if (Status status = calls_.run_eight_bit(one.options); !status.ok()) return status;
      measured_.push_back({one.options, calls_.error()});
      add_row(one.name);
    }
    for (const CacheFormat& format : kCacheFormats) {
      if (Status status = calls_.run_cache(format); !status.ok()) return status;
      caches_.push_back({format, calls_.error()});
      caches_table_.add_row({name_of(format.element), name_of_unit(format), fmt::format("{:.2e}", calls_.error()),
                             of_bfloat16(calls_.error())});
      add_result(name_of(format));
    }
    return {};
  }

  /// The last run's error.
  void add_row(const std::string& operands) {
    errors_.add_row({operands, fmt::format("{:.2e}", calls_.error()), of_bfloat16(calls_.error())});
    add_result(operands);
  }

  void add_result(const std::string& operands) {
    rows_.push_back({{"operands", operands}, {"rmse", calls_.error()}});
    progress_.update(++done_);
  }

  Status add_need(DType element) {
    std::vector<MeasuredQuantization> own = measured_;
    std::erase_if(own, [element](const MeasuredQuantization& one) { return one.options.element != element; });
    const MeasuredQuantization best = *std::ranges::min_element(own, {}, &MeasuredQuantization::rmse);
    Result<MeasuredQuantization> need = simplest(calls_, best, [this] { progress_.update(++done_); });
    if (!need.ok()) return need.status();
    const QuantizeOptions& options = need->options;
    const char* const rotated = options.rotate_qk && options.rotate_v ? "Q, K, V"
                                : options.rotate_qk                   ? "Q, K"
                                : options.rotate_v                    ? "V"
                                                                      : "none";
    needs_table_.add_row({name_of(element), name_of_unit(options.q_scales), name_of_unit(options.k_scales),
                          name_of_unit(options.v_scales), rotated, options.center_k ? "yes" : "no",
                          fmt::format("{:.2e}", need->rmse), of_bfloat16(need->rmse)});
    needs_.push_back(*need);
    return {};
  }

  std::string of_bfloat16(double error) const {
    return bfloat16_ > 0.0 ? fmt::format("{:.2f}x", error / bfloat16_) : "-";
  }

  /// The faster element of those that keep to the budget; null where none does.
  const MeasuredQuantization* chosen() const {
    const auto found =
        std::ranges::find_if(needs_, [this](const MeasuredQuantization& need) { return need.rmse <= *max_rmse_; });
    return found == needs_.end() ? nullptr : &*found;
  }

  /// The one that takes the least memory of those that keep to the budget; null where none does.
  const MeasuredCache* chosen_cache() const {
    for (const ScaleUnit unit : {ScaleUnit::head, ScaleUnit::group, ScaleUnit::row}) {
      const auto found = std::ranges::find_if(
          caches_, [&](const MeasuredCache& cache) { return cache.format.unit == unit && cache.rmse <= *max_rmse_; });
      if (found != caches_.end()) return &*found;
    }
    return nullptr;
  }

  /// At most.
  static std::int64_t steps() {
    return static_cast<std::int64_t>(1 + ingredients().size() + std::size(kCacheFormats) +
                                     std::size(kEightBitElements) * kSimplestCalls);
  }

  EightBitCalls& calls_;
  const std::optional<float> max_rmse_;
  io::Progress progress_;
  std::int64_t done_ = 0;
  double bfloat16_ = 0.0;
  std::vector<MeasuredQuantization> measured_, needs_;
  std::vector<MeasuredCache> caches_;
  Table errors_{{{"operands", Table::Align::left}, {"RMSE"}, {"of bfloat16's"}}};
  Table caches_table_{
      {{"element", Table::Align::left}, {"a scale for each", Table::Align::left}, {"RMSE"}, {"of bfloat16's"}}};
  Table needs_table_{{{"element", Table::Align::left},
                      {"scales\nof Q", Table::Align::left},
                      {"\nof K", Table::Align::left},
                      {"\nof V", Table::Align::left},
                      {"rotated", Table::Align::left},
                      {"K centred", Table::Align::left},
                      {"RMSE"},
                      {"of bfloat16's"}}};
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

/// What can be compared: reals, and a result that is finite.
Status check(const InputTensors& inputs) {
  for (const auto& [name, tensor] : {std::pair{"q", &inputs.q}, std::pair{"k", &inputs.k}, std::pair{"v", &inputs.v}}) {
    const DType dtype = tensor->dtype;
    if (dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16) continue;
    return {StatusCode::invalid_argument,
            fmt::format("{} is {}: --eight-bit takes float32, float16 or bfloat16, to quantise them itself", name,
                        name_of(dtype))};
  }
  return {};
}

Status check_exact(const io::HostTensor& exact) {
  const auto* const values = reinterpret_cast<const float*>(exact.bytes.data());
  const std::size_t count = io::element_count(exact);
  if (count == 0) return {StatusCode::invalid_argument, "O is empty: --eight-bit needs a query"};
  if (std::all_of(values, values + count, [](float x) { return std::isfinite(x); })) return {};
  return {StatusCode::invalid_argument, "O is not finite: q, k or v holds NaN or infinities"};
}

}  // namespace

ExitCode verify_eight_bit_files(const InputFlags& inputs, std::optional<float> max_rmse,
                                const AttentionOptions& options, const Execution& execution, const JsonFlag& json) {
  Result<InputTensors> tensors = inputs.read();
  if (!tensors.ok()) return report(tensors.status());
  if (Status status = check(*tensors); !status.ok()) return report(status);
  const io::HostTensor q = converted(tensors->q, DType::float32), k = converted(tensors->k, DType::float32),
                       v = converted(tensors->v, DType::float32);
  EightBitCalls calls(q, k, v, options, execution);
  if (Status status = calls.find_exact(); !status.ok()) return report(status);
  if (Status status = check_exact(calls.exact()); !status.ok()) return report(status);
  FilesReport all(calls, max_rmse);
  if (Status status = all.make(); !status.ok()) return report(status);
  const ExitCode kept = all.print(inputs.describe());
  const ExitCode written = report(json.write(all.json()));
  return kept == ExitCode::ok ? written : kept;
}

}  // namespace strobe::program
