// SPDX-License-Identifier: Apache-2.0
#include "bench/command/peers.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "bench/command/median.h"
#include "bench/copy_probe.h"
#include "bench/multiply_probe.h"
#include "bench/products.h"
#include "bench/standard_attention.h"
#include "bench/torch_runner.h"
#include "runtime/device.h"
#include "strobe/plan.h"
#include "tools/strobe/device_run.h"
#include "tools/strobe/machine.h"
#include "tools/strobe/timed.h"

namespace strobe::program {
namespace {

Shape shape_of(const bench::Cell& cell) {
  return {cell.batch, cell.seqlen, cell.seqlen_k, cell.heads, cell.heads_kv, cell.head_dim, cell.head_dim_v};
}

/// One turn on the CPU: the median of the calls that 50 ms hold. The first, which wakes the workers up, counts only
/// where it is the only one.
template <class Call>
Result<double> host_turn(const Call& call) {
  constexpr double kTurnMilliseconds = 50.0;
  std::vector<double> calls;
  double spent = 0.0;
  do {
    const Result<double> milliseconds = timed(call);
    if (!milliseconds.ok()) return milliseconds;
    calls.push_back(*milliseconds);
    spent += *milliseconds;
  } while (spent < kTurnMilliseconds);
  if (calls.size() > 1) calls.erase(calls.begin());
  return median(std::move(calls));
}

/// Calls a Plan made once, with workspace allocated once: what a program that computes many layers does.
class StrobePeer : public Peer {
 public:
  explicit StrobePeer(bool row_invariant) : row_invariant_(row_invariant) {}

  std::string name() const override { return row_invariant_ ? kRowInvariantPeer : "strobe"; }

  Status prepare(const std::shared_ptr<CellInputs>& inputs) override {
    inputs_ = inputs;
    AttentionOptions options = inputs->options;
    options.row_invariant = row_invariant_;
    AttentionTensors& tensors = inputs->tensors;
    const Result<Plan> plan = inputs->cell.pass == bench::BenchPass::forward
                                  ? make_plan(tensors.forward(), options, inputs->execution)
                                  : make_plan(tensors.backward(), options, inputs->execution);
    if (!plan.ok()) return plan.status();
    plan_ = *plan;
    constexpr std::size_t kAlignment = 64;
    const std::size_t bytes = (plan_->workspace_size() + kAlignment - 1) / kAlignment * kAlignment;
    workspace_.reset(bytes == 0 ? nullptr : std::aligned_alloc(kAlignment, bytes));
    if (bytes != 0 && workspace_ == nullptr) return {StatusCode::out_of_memory, "out of memory for the workspace"};
    execution_ = inputs->execution;
    execution_.workspace = workspace_.get();
    execution_.workspace_bytes = bytes;
    return {};
  }

  Result<double> run() override {
    return host_turn([&] {
      AttentionTensors& tensors = inputs_->tensors;
      return inputs_->cell.pass == bench::BenchPass::forward ? plan_->run(tensors.forward(), execution_)
                                                             : plan_->run(tensors.backward(), execution_);
    });
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  const bool row_invariant_;
  std::shared_ptr<CellInputs> inputs_;
  std::optional<Plan> plan_;
  std::unique_ptr<void, Free> workspace_;
  Execution execution_;
};

class StandardPeer : public Peer {
 public:
  std::string name() const override { return "standard"; }

  Status prepare(const std::shared_ptr<CellInputs>& inputs) override {
    inputs_ = inputs;
    return {};
  }

  Result<double> run() override {
    return host_turn([&] {
      const bench::Cell& cell = inputs_->cell;
      return cell.pass == bench::BenchPass::forward
                 ? bench::standard_forward(inputs_->tensors.forward(), inputs_->options, cell.threads)
                 : bench::standard_backward(inputs_->tensors.backward(), inputs_->options, cell.threads);
    });
  }

 private:
  std::shared_ptr<CellInputs> inputs_;
};

class ProbePeer : public Peer {
 public:
  std::string name() const override { return "probe"; }

  Status prepare(const std::shared_ptr<CellInputs>& inputs) override {
    cell_ = inputs->cell;
    return {};
  }

  Result<double> run() override {
    double& best = best_gflops_[{cell_.dtype, cell_.threads}];
    best = std::max(best, bench::multiply_probe_gflops(cell_.dtype, cell_.threads, std::chrono::milliseconds(20)));
    return bench::flops(cell_) / best * 1e-6;
  }

 private:
  bench::Cell cell_;
  std::map<std::pair<DType, int>, double> best_gflops_;  // of the run so far: a ceiling is not what noise leaves of it
};

class CopyPeer : public Peer {
 public:
  std::string name() const override { return "copy"; }

  Status prepare(const std::shared_ptr<CellInputs>& inputs) override {
    cell_ = inputs->cell;
    return {};
  }

  Result<double> run() override {
    double& best = best_gbps_[cell_.threads];
    best = std::max(best, bench::copy_probe_gbps(cell_.threads));
    return bench::tensor_bytes(cell_) / best * 1e-6;
  }

 private:
  bench::Cell cell_;
  std::map<int, double> best_gbps_;
};

class TorchPeer : public Peer {
 public:
  explicit TorchPeer(bench::TorchRunner runner) : runner_(std::move(runner)) {}
  std::string name() const override { return "pytorch"; }
  Status prepare(const std::shared_ptr<CellInputs>& inputs) override { return runner_.prepare(inputs->cell); }
  Result<double> run() override { return runner_.run(); }

 private:
  bench::TorchRunner runner_;
};

}  // namespace

Result<std::shared_ptr<CellInputs>> make_cell_inputs(const bench::Cell& cell, const Device& device,
                                                     const Execution& execution) {
  const auto inputs = std::make_shared<CellInputs>();
  inputs->cell = cell;
  inputs->device = device;
  inputs->options.causal = cell.causal ? CausalMask::bottom_right : CausalMask::none;
  inputs->execution = execution;
  inputs->execution.threads = cell.threads;
  const Shape shape = shape_of(cell);
  const bool backward = cell.pass == bench::BenchPass::backward;
  const Result<Plan> plan = plan_on(device, planned_forward(shape, cell.dtype), inputs->options, inputs->execution);
  if (!plan.ok()) return plan.status();  // before anything is allocated
  inputs->engine = engine_text(*plan);
  if (backward) {
    const Result<Plan> backward_plan =
        plan_on(device, planned_backward(shape, cell.dtype), inputs->options, inputs->execution);
    if (!backward_plan.ok()) return backward_plan.status();
  }
  inputs->tensors = device.type == DeviceType::cuda
                        ? repeating_tensors(shape, cell.dtype)
                        : random_tensors(shape, cell.dtype, Distribution::normal, /*seed=*/0);
  if (backward) {
    const Status status = run_on(device, *plan, inputs->tensors.forward()).status();
    if (!status.ok()) return status;
  }
  return inputs;
}

Result<std::string> device_name(const Device& device) {
  if (device.type == DeviceType::cpu) return fmt::format("{}, {}", processor_name(), instruction_sets().front());
  const Result<const runtime::CudaDevice*> opened = runtime::cuda_device(device.index);
  if (!opened.ok()) return opened.status();
  return (*opened)->name;
}

std::unique_ptr<Peer> make_strobe_peer(bool row_invariant) { return std::make_unique<StrobePeer>(row_invariant); }

Result<std::unique_ptr<Peer>> make_standard_peer() {
  if (bench::products_are_fast()) return std::unique_ptr<Peer>(std::make_unique<StandardPeer>());
  return Status(StatusCode::unsupported,
                "this build has no OpenBLAS, and without it standard attention is too slow to be measured");
}

std::unique_ptr<Peer> make_probe_peer() { return std::make_unique<ProbePeer>(); }

std::unique_ptr<Peer> make_copy_peer() { return std::make_unique<CopyPeer>(); }

Result<std::unique_ptr<Peer>> make_torch_peer(const std::string& python) {
  Result<bench::TorchRunner> runner = bench::TorchRunner::start(python);
  if (!runner.ok()) return runner.status();
  return std::unique_ptr<Peer>(std::make_unique<TorchPeer>(std::move(*runner)));
}

}  // namespace strobe::program
