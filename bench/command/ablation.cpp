// SPDX-License-Identifier: Apache-2.0
// strobe bench --ablation.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "bench/command/gpu_parts.h"
#include "bench/command/median.h"
#include "bench/command/peers.h"
#include "bench/command/report.h"
#include "gpu/call/override.h"
#include "gpu/mirrored_call.h"
#include "gpu/stream.h"
#include "io/progress.h"
#include "sm90/ablation.h"
#include "strobe/plan.h"
#include "tools/strobe/device_run.h"
#include "tools/strobe/interrupt.h"
#include "tools/strobe/output.h"
#include "tools/strobe/table.h"

namespace strobe::program {
namespace {

/// The paper's cell.
bench::Cell ablation_cell(DType dtype) {
  return {.dtype = dtype,
          .batch = 4,
          .seqlen = 8448,
          .heads = 16,
          .heads_kv = 16,
          .head_dim = 128,
          .head_dim_v = 128,
          .threads = 0};
}

struct VariantTimes {
  std::string name;
  Plan plan;
  std::vector<double> milliseconds;
};

Result<std::vector<VariantTimes>> make_plans(const ForwardArguments& arguments) {
  std::vector<VariantTimes> variants;
  std::vector<sm90::AblationVariant> changes = sm90::ablation_variants();
  changes.push_back({"as planned", [](sm90::forward::Config&) {}});
  for (const sm90::AblationVariant& variant : changes) {
    const gpu::Override<sm90::forward::Config> override(variant.change);
    Result<Plan> plan = make_plan(arguments);
    if (!plan.ok()) return plan.status();
    variants.push_back({variant.name, std::move(*plan), {}});
  }
  return variants;
}

/// All variants of one dtype in turns. No rows where Ctrl-C came before they were done.
Result<std::vector<BenchRow>> measure(const bench::Cell& cell, const runtime::CudaDevice& device, int repeats) {
  const Shape shape{cell.batch, cell.seqlen, cell.seqlen_k, cell.heads, cell.heads_kv, cell.head_dim, cell.head_dim_v};
  const Result<gpu::Stream> stream = gpu::Stream::create(device);
  if (!stream.ok()) return stream.status();
  AttentionTensors tensors = repeating_tensors(shape, cell.dtype);
  const Result<gpu::MirroredForward> mirrored = gpu::MirroredForward::make(tensors.forward(), device);
  if (!mirrored.ok()) return mirrored.status();
  Result<std::vector<VariantTimes>> variants = make_plans(mirrored->arguments());
  if (!variants.ok()) return variants.status();
  for (int round = -1; round < repeats; ++round) {  // round -1 warms up
    for (VariantTimes& variant : *variants) {
      if (Interruptible::interrupted()) return std::vector<BenchRow>();
      const auto enqueue = [&] { return variant.plan.run(mirrored->arguments(), {.stream = stream->get()}); };
      const Result<std::vector<double>> times = stream->time(gpu_launches(cell), enqueue);
      if (!times.ok()) return times.status();
      if (round >= 0) variant.milliseconds.push_back(median(*times));
    }
  }
  std::vector<BenchRow> rows;
  for (const VariantTimes& variant : *variants) {
    rows.push_back({cell, engine_text(variant.plan), "strobe, " + variant.name, median(variant.milliseconds)});
  }
  return rows;
}

}  // namespace

ExitCode run_ablation(const BenchFlags& flags) {
  const Device device = flags.execution.tensor_device();
  if (device.type != DeviceType::cuda) {
    return report({StatusCode::invalid_argument, "--ablation measures a GPU's kernel: give --device cuda"});
  }
  const Result<const runtime::CudaDevice*> opened = runtime::cuda_device(device.index);
  if (!opened.ok()) return report(opened.status());
  std::vector<BenchRow> rows;
  const auto dtypes = flags.dtypes.empty() ? std::vector<std::string>{"float16"} : flags.dtypes;
  const Interruptible interruptible;
  for (const std::string& dtype : dtypes) {
    const auto of_dtype = measure(ablation_cell(dtype_of(dtype)), **opened, flags.repeats);
    if (!of_dtype.ok()) return report(of_dtype.status());
    if (Interruptible::interrupted()) break;
    rows.insert(rows.end(), of_dtype->begin(), of_dtype->end());
    if (Status status = flags.json.write_so_far(bench_json(rows, (*opened)->name)); !status.ok()) return report(status);
  }
  Table table({{"dtype", Table::Align::left}, {"variant", Table::Align::left}, {"ms"}, {"TFLOP/s"}});
  for (const BenchRow& row : rows) {
    table.add_row({strobe::name_of(row.cell.dtype), row.implementation.substr(row.implementation.find(' ') + 1),
                   fmt::format("{:.3f}", row.median_ms), fmt::format("{:.0f}", row.tflops())});
  }
  if (!rows.empty()) {
    print_wrapped(fmt::format(
        "{}; forward, batch 4, seqlen 8448, heads 16, head_dim 128, full; medians of {} interleaved turns\n\n",
        (*opened)->name, flags.repeats));
    write_output(table.text(output_columns()));
  }
  const ExitCode written = report(flags.json.write(bench_json(rows, (*opened)->name)));
  return Interruptible::interrupted() ? report_interrupted() : written;
}

}  // namespace strobe::program
