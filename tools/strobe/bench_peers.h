// What `strobe bench` times: each implementation is given a cell and then run once at a time, in turn with the others.
#pragma once

#include <memory>
#include <string>

#include "attention_tensors.h"
#include "bench/cell.h"
#include "flags.h"
#include "strobe/status.h"

namespace strobe::program {

/// One cell's inputs, which the implementations in this process share.
struct CellInputs {
  bench::Cell cell;
  AttentionTensors tensors;
  AttentionOptions options;
  Execution execution;
};

/// Random tensors for `cell` and, for a backward, what a forward gives it. The Status of Strobe's forward.
Result<std::shared_ptr<CellInputs>> make_cell_inputs(const bench::Cell& cell, Engine engine);

class Peer {
 public:
  virtual ~Peer() = default;

  /// "strobe", "standard", "pytorch" or "probe": the name in tables and JSON.
  virtual std::string name() const = 0;

  /// Takes the next cell.
  virtual Status prepare(const std::shared_ptr<CellInputs>& inputs) = 0;

  /// Computes the cell once; milliseconds.
  virtual Result<double> run() = 0;
};

std::unique_ptr<Peer> make_strobe_peer();
std::unique_ptr<Peer> make_standard_peer();

/// The time that the cell's FLOPs take at the rate of register-only FMAs.
std::unique_ptr<Peer> make_probe_peer();

/// unsupported, with the reason, when `python` cannot import torch.
Result<std::unique_ptr<Peer>> make_torch_peer(const std::string& python);

}  // namespace strobe::program
