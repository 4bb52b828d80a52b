// SPDX-License-Identifier: Apache-2.0
// Peers on a GPU: Strobe in this process, PyTorch's backends in one of their own, timed alike.
#include <algorithm>
#include <functional>
#include <utility>

#include "bench/command/gpu_call.h"
#include "bench/command/median.h"
#include "bench/command/peers.h"
#include "bench/torch_runner.h"
#include "gpu/stream.h"

namespace strobe::program {
namespace {

/// Calls a Plan made once on a stream of its own.
class StrobeGpuPeer : public Peer {
 public:
  explicit StrobeGpuPeer(bool row_invariant) : row_invariant_(row_invariant) {}

  std::string name() const override { return row_invariant_ ? kRowInvariantPeer : "strobe"; }

  Status prepare(const std::shared_ptr<CellInputs>& inputs) override {
    call_ = nullptr;  // the last cell's memory goes before the next one's is taken
    const Result<const runtime::CudaDevice*> device = runtime::cuda_device(inputs->device.index);
    if (!device.ok()) return device.status();
    if (stream_ == nullptr) {
      Result<gpu::Stream> stream = gpu::Stream::create(**device);
      if (!stream.ok()) return stream.status();
      stream_ = std::make_unique<gpu::Stream>(std::move(*stream));
    }
    launches_ = gpu_launches(inputs->cell);
    return inputs->cell.pass == bench::BenchPass::forward ? plan(inputs->tensors.forward(), *inputs, **device)
                                                          : plan(inputs->tensors.backward(), *inputs, **device);
  }

  Result<double> run() override {
    if (Status status = call_(); !status.ok()) return status;
    const Result<std::vector<double>> times = stream_->time(launches_, call_);
    if (!times.ok()) return times.status();
    return median(*times);
  }

 private:
  template <class Arguments>
  Status plan(const Arguments& host, const CellInputs& inputs, const runtime::CudaDevice& device) {
    AttentionOptions options = inputs.options;
    options.row_invariant = row_invariant_;
    Result<std::function<Status()>> call = gpu_call(host, options, inputs.execution, device, *stream_);
    if (call.ok()) call_ = std::move(*call);
    return call.status();
  }

  const bool row_invariant_;
  std::unique_ptr<gpu::Stream> stream_;
  std::function<Status()> call_;
  int launches_ = 1;
};

class TorchGpuPeer : public Peer {
 public:
  TorchGpuPeer(std::shared_ptr<bench::TorchRunner> runner, std::string implementation)
      : runner_(std::move(runner)), implementation_(std::move(implementation)) {}

  std::string name() const override { return implementation_; }

  Status prepare(const std::shared_ptr<CellInputs>& inputs) override {
    return runner_->prepare(inputs->cell, {implementation_, inputs->device, gpu_launches(inputs->cell)});
  }

  Result<double> run() override { return runner_->run(implementation_); }

 private:
  std::shared_ptr<bench::TorchRunner> runner_;
  std::string implementation_;
};

}  // namespace

int gpu_launches(const bench::Cell& cell) {
  constexpr double kFlopsOfATurn = 2e12;  // 3 ms at 650 TFLOP/s
  return static_cast<int>(std::clamp(kFlopsOfATurn / bench::flops(cell), 2.0, 10.0));
}

std::unique_ptr<Peer> make_strobe_gpu_peer(bool row_invariant) {
  return std::make_unique<StrobeGpuPeer>(row_invariant);
}

Result<std::vector<std::unique_ptr<Peer>>> make_torch_gpu_peers(const std::string& python,
                                                                const std::vector<std::string>& implementations) {
  Result<bench::TorchRunner> started = bench::TorchRunner::start(python);
  if (!started.ok()) return started.status();
  const auto runner = std::make_shared<bench::TorchRunner>(std::move(*started));
  std::vector<std::unique_ptr<Peer>> peers;
  for (const std::string& name : implementations) peers.push_back(std::make_unique<TorchGpuPeer>(runner, name));
  return peers;
}

}  // namespace strobe::program
