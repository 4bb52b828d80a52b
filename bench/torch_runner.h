// SPDX-License-Identifier: Apache-2.0
// PyTorch's attention as a peer: a Python process that lives as long as this object and is timed one run at a time.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "bench/cell.h"
#include "strobe/status.h"

namespace strobe::bench {

/// What computes a cell in PyTorch, and where.
struct TorchImplementation {
  std::string name = "pytorch";  // pytorch, cudnn, flash_attention_2 or standard: see torch_runner.py
  Device device;
  int launches = 1;  // timed in each turn; on the CPU always one
};

class TorchRunner {
 public:
  /// Starts `python` (a path, or a name looked up in PATH) and imports torch in it. unsupported, with the reason, when
  /// there is no such program or it has no torch.
  static Result<TorchRunner> start(const std::string& python);

  TorchRunner(TorchRunner&& other) noexcept
      : process_(std::exchange(other.process_, -1)),
        socket_(std::exchange(other.socket_, -1)),
        received_(std::move(other.received_)),
        version_(std::move(other.version_)) {}
  TorchRunner& operator=(TorchRunner&&) = delete;

  /// Ends the process and waits for it.
  ~TorchRunner();

  /// torch.__version__
  const std::string& version() const { return version_; }

  /// Makes random inputs for a cell, unless another implementation has just been prepared for it, and tries to run it.
  /// unsupported, with PyTorch's words, where it cannot.
  Status prepare(const Cell& cell, const TorchImplementation& implementation = {});

  /// Takes one turn of an implementation that was prepared; milliseconds, measured inside the process.
  Result<double> run(const std::string& implementation = "pytorch");

 private:
  TorchRunner(pid_t process, int socket) : process_(process), socket_(socket) {}

  Status send_line(std::string line);
  Result<std::string> receive_line();

  pid_t process_;
  int socket_;            // the process's standard input and output
  std::string received_;  // bytes beyond the last whole line
  std::string version_;
};

}  // namespace strobe::bench
