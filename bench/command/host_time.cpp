// SPDX-License-Identifier: Apache-2.0
// strobe bench --host-time.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/command/gpu_parts.h"
#include "bench/command/report.h"
#include "gpu/mirrored_call.h"
#include "gpu/stream.h"
#include "strobe/plan.h"
#include "tools/strobe/attention_tensors.h"
#include "tools/strobe/interrupt.h"
#include "tools/strobe/output.h"
#include "tools/strobe/table.h"

namespace strobe::program {
namespace {

struct HostTime {
  std::string call, options;
  double median_us = 0.0;
  double p90_us = 0.0;
};

/// Times of `call`, microseconds. The stream is drained often, so that its queue is never full and no call
/// waits. Meaningless where Ctrl-C came before they were taken.
Result<HostTime> measure(const gpu::Stream& stream, const std::function<Status()>& call) {
  constexpr int kCalls = 4000;
  constexpr int kCallsBetweenDrains = 100;
  std::vector<double> times;
  for (int i = 0; i < kCalls; ++i) {
    if (i % kCallsBetweenDrains == 0) {
      if (Interruptible::interrupted()) return HostTime();
      if (Status status = stream.synchronize(); !status.ok()) return status;
    }
    const auto start = std::chrono::steady_clock::now();
    Status status = call();
    const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - start;
    if (!status.ok()) return status;
    times.push_back(elapsed.count());
  }
  std::ranges::sort(times);
  return HostTime{.call = "", .options = "", .median_us = times[kCalls / 2], .p90_us = times[kCalls * 9 / 10]};
}

/// One packed sequence, with every length tensor that a call can have.
struct PackedLengths {
  explicit PackedLengths(std::int32_t rows) : cu_seqlens{0, rows}, seqused{rows} {}
  Sequences views() const {
    const ConstTensorView cumulative = tensor(cu_seqlens.data(), {2});
    const ConstTensorView used = tensor(seqused.data(), {1});
    return {cumulative, cumulative, used, used, cu_seqlens[1], cu_seqlens[1]};
  }
  std::vector<std::int32_t> cu_seqlens, seqused;
};

/// [1, rows, heads, d] and [1, heads, rows] as packed [rows, heads, d] and [heads, rows].
template <class View>
void drop_batch(View& view) {
  for (int axis = 1; axis < view.rank; ++axis) {
    view.shape[static_cast<std::size_t>(axis - 1)] = view.shape[static_cast<std::size_t>(axis)];
    view.strides[static_cast<std::size_t>(axis - 1)] = view.strides[static_cast<std::size_t>(axis)];
  }
  --view.rank;
}

ForwardArguments packed(ForwardArguments arguments, const PackedLengths& lengths) {
  for (ConstTensorView* const view : {&arguments.q, &arguments.k, &arguments.v}) drop_batch(*view);
  for (TensorView* const view : {&arguments.o, &arguments.lse}) drop_batch(*view);
  arguments.sequences = lengths.views();
  return arguments;
}

/// Both calls on the same tensors, one row each, of what Ctrl-C left time for.
Result<std::vector<HostTime>> measure_calls(const ForwardArguments& host, const AttentionOptions& options,
                                            const std::string& words, const runtime::CudaDevice& device) {
  const Result<gpu::Stream> stream = gpu::Stream::create(device);
  if (!stream.ok()) return stream.status();
  const Result<gpu::MirroredForward> mirrored = gpu::MirroredForward::make(host, device);
  if (!mirrored.ok()) return mirrored.status();
  const Result<Plan> plan = make_plan(mirrored->arguments(), options);
  if (!plan.ok()) return plan.status();
  const Execution execution{.stream = stream->get()};
  struct Call {
    const char* name;
    std::function<Status()> run;
  };
  const Call calls[] = {{"Plan::run", [&] { return plan->run(mirrored->arguments(), execution); }},
                        {"forward", [&] { return forward(mirrored->arguments(), options, execution); }}};
  std::vector<HostTime> rows;
  for (const Call& call : calls) {
    Result<HostTime> time = measure(*stream, call.run);
    if (!time.ok()) return time.status();
    if (Interruptible::interrupted()) break;
    time->call = call.name;
    time->options = words;
    rows.push_back(*time);
  }
  return rows;
}

Result<std::vector<HostTime>> measure_all(const runtime::CudaDevice& device) {
  constexpr std::int64_t kRows = 128;
  AttentionTensors tensors = repeating_tensors({1, kRows, kRows, 1, 1, 128, 128}, DType::bfloat16);
  const PackedLengths lengths(kRows);
  const ForwardArguments batched = tensors.forward();
  struct Case {
    ForwardArguments arguments;
    AttentionOptions options;
    const char* words = "";
  };
  const Case cases[] = {
      {batched, {}, "full"},
      {batched, {.causal = CausalMask::bottom_right}, "causal"},
      {packed(batched, lengths), {.causal = CausalMask::bottom_right}, "causal, packed, used lengths"}};
  std::vector<HostTime> rows;
  for (const Case& one : cases) {
    if (Interruptible::interrupted()) break;
    const auto times = measure_calls(one.arguments, one.options, one.words, device);
    if (!times.ok()) return times.status();
    rows.insert(rows.end(), times->begin(), times->end());
  }
  return rows;
}

nlohmann::ordered_json json_of(const std::vector<HostTime>& times, const std::string& device) {
  auto rows = nlohmann::ordered_json::array();
  for (const HostTime& time : times) {
    rows.push_back({{"device", device},
                    {"call", time.call},
                    {"options", time.options},
                    {"median_us", time.median_us},
                    {"p90_us", time.p90_us}});
  }
  return json_rows(std::move(rows));
}

}  // namespace

ExitCode run_host_time(const BenchFlags& flags) {
  const Device device = flags.execution.tensor_device();
  if (device.type != DeviceType::cuda) {
    return report({StatusCode::invalid_argument, "--host-time measures calls on a GPU: give --device cuda"});
  }
  const Result<const runtime::CudaDevice*> opened = runtime::cuda_device(device.index);
  if (!opened.ok()) return report(opened.status());
  const Interruptible interruptible;
  const Result<std::vector<HostTime>> rows = measure_all(**opened);
  if (!rows.ok()) return report(rows.status());
  Table table({{"call", Table::Align::left}, {"options", Table::Align::left}, {"median us"}, {"90% below"}});
  for (const HostTime& row : *rows) {
    table.add_row({row.call, row.options, fmt::format("{:.2f}", row.median_us), fmt::format("{:.2f}", row.p90_us)});
  }
  if (!rows->empty()) {
    print_text("{}; host time of one call, 4000 of each\n\n{}", (*opened)->name, table.text(output_columns()));
  }
  const ExitCode written = report(flags.json.write(json_of(*rows, (*opened)->name)));
  return Interruptible::interrupted() ? report_interrupted() : written;
}

}  // namespace strobe::program
