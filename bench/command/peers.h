// SPDX-License-Identifier: Apache-2.0
// What `strobe bench` times: each implementation is given a cell and then run once at a time, in turn with the others.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/cell.h"
#include "strobe/status.h"
#include "tools/strobe/attention_tensors.h"
#include "tools/strobe/flags.h"

namespace strobe::program {

/// One cell's inputs, which the implementations in this process share.
struct CellInputs {
  bench::Cell cell;
  Device device;
  AttentionTensors tensors;  // in host memory, whatever the device
  AttentionOptions options;
  Execution execution;
  std::string engine;  // Strobe's: "cpu", "gpu (sm90)"
};

/// Random tensors for `cell` and, for a backward, what a forward gives it. The Status of Strobe's plan or forward.
Result<std::shared_ptr<CellInputs>> make_cell_inputs(const bench::Cell& cell, const Device& device,
                                                     const Execution& execution);

/// The processor with its instruction set, or the GPU; the Status that says why it cannot be used.
Result<std::string> device_name(const Device& device);

class Peer {
 public:
  virtual ~Peer() = default;

  /// The implementation's name in tables and JSON.
  virtual std::string name() const = 0;

  /// Takes the next cell.
  virtual Status prepare(const std::shared_ptr<CellInputs>& inputs) = 0;

  /// Takes one turn at the cell; milliseconds of one call. On the CPU a turn is the median of the calls that
  /// 50 ms hold, on a GPU one call to warm up and the median of as many as gpu_launches() says, all enqueued at once.
  virtual Result<double> run() = 0;
};

/// Timed calls in one turn on a GPU: fewer of long ones.
int gpu_launches(const bench::Cell& cell);

inline constexpr const char* kRowInvariantPeer = "row-invariant";
std::unique_ptr<Peer> make_strobe_peer(bool row_invariant = false);

/// Standard attention. unsupported where its products are plain loops: see bench/products.h.
Result<std::unique_ptr<Peer>> make_standard_peer();

/// The time that the cell's FLOPs take at the best rate so far of what multiplies its dtype, from registers alone.
std::unique_ptr<Peer> make_probe_peer();

/// The time that as many bytes as the cell's tensors have take in the fastest copy so far, read and written ones
/// counted both.
std::unique_ptr<Peer> make_copy_peer();

/// PyTorch's scaled_dot_product_attention on the CPU. unsupported, with the reason, when `python` cannot import torch.
Result<std::unique_ptr<Peer>> make_torch_peer(const std::string& python);

/// Strobe on tensors of a GPU.
std::unique_ptr<Peer> make_strobe_gpu_peer(bool row_invariant = false);

/// What PyTorch computes on a GPU, of "cudnn", "flash_attention_2" and "standard": they share one process.
Result<std::vector<std::unique_ptr<Peer>>> make_torch_gpu_peers(const std::string& python,
                                                                const std::vector<std::string>& implementations);

}  // namespace strobe::program
