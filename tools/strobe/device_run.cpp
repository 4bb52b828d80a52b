// SPDX-License-Identifier: Apache-2.0
#include "device_run.h"

#include <fmt/format.h>

#include "gpu/mirrored_call.h"
#include "gpu/stream.h"
#include "timed.h"

namespace strobe::program {
namespace {

template <class Arguments>
Result<double> run_on_gpu(const Plan& plan, const Arguments& host, int index) {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(index);
  if (!device.ok()) return device.status();
  const Result<gpu::Stream> stream = gpu::Stream::create(**device);
  if (!stream.ok()) return stream.status();
  const auto mirrored = gpu::MirroredCall<Arguments>::make(host, **device);
  if (!mirrored.ok()) return mirrored.status();
  const Result<std::vector<double>> times =
      stream->time(1, [&] { return plan.run(mirrored->arguments(), {.stream = stream->get()}); });
  if (!times.ok()) return times.status();
  if (Status status = mirrored->fetch_outputs(); !status.ok()) return status;
  return times->front();
}

template <class Arguments>
Result<double> run_on_device(const Device& device, const Plan& plan, const Arguments& host) {
  if (device.type == DeviceType::cuda) return run_on_gpu(plan, host, device.index);
  return timed([&] { return plan.run(host); });
}

}  // namespace

Result<double> run_on(const Device& device, const Plan& plan, const ForwardArguments& host) {
  return run_on_device(device, plan, host);
}

Result<double> run_on(const Device& device, const Plan& plan, const BackwardArguments& host) {
  return run_on_device(device, plan, host);
}

std::string engine_text(const Plan& plan) {
  const std::string engine = name_of(plan.engine());
  return plan.kernels().empty() ? engine : fmt::format("{} ({})", engine, plan.kernels());
}

}  // namespace strobe::program
