// SPDX-License-Identifier: Apache-2.0
#include "device_run.h"

#include "gpu/mirrored_forward.h"
#include "gpu/stream.h"
#include "timed.h"

namespace strobe::program {
namespace {

Result<double> run_on_gpu(const Plan& plan, const ForwardArguments& host, int index) {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(index);
  if (!device.ok()) return device.status();
  const Result<gpu::Stream> stream = gpu::Stream::create(**device);
  if (!stream.ok()) return stream.status();
  const Result<gpu::MirroredForward> mirrored = gpu::MirroredForward::make(host, **device);
  if (!mirrored.ok()) return mirrored.status();
  const Result<std::vector<double>> times =
      stream->time(1, [&] { return plan.run(mirrored->arguments(), {.stream = stream->get()}); });
  if (!times.ok()) return times.status();
  if (Status status = mirrored->fetch_outputs(); !status.ok()) return status;
  return times->front();
}

}  // namespace

Result<double> run_forward(const Plan& plan, const ForwardArguments& host, const Device& device) {
  if (device.type == DeviceType::cuda) return run_on_gpu(plan, host, device.index);
  return timed([&] { return plan.run(host); });
}

Result<double> run_backward(const Plan& plan, const BackwardArguments& host) {
  return timed([&] { return plan.run(host); });
}

}  // namespace strobe::program
