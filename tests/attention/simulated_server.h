// SPDX-License-Identifier: Apache-2.0
// A simulated server: sequences come, grow, fork and are evicted while their pages are shared and used again, and every
// step is an append and an attention call that mix prompts, chunks of them and single tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "random.h"
#include "reference/bound/reference.h"
#include "strobe/cache.h"

namespace strobe::test {

struct ServerShape {
  DType dtype = DType::float32;
  std::int64_t head_dim = 16;
  std::int64_t page_size = 4;
};

/// Numbers of one dtype in a row. Those that nobody set are NaN.
class Numbers {
 public:
  explicit Numbers(DType dtype, std::int64_t count = 0);

  std::int64_t size() const { return static_cast<std::int64_t>(bytes_.size() / size_of(dtype_)); }
  void push_back(double value);
  void push_back(const Numbers& from, std::int64_t first, std::int64_t count);
  void copy(std::int64_t from, std::int64_t to, std::int64_t count);
  void poison(std::int64_t first, std::int64_t count);
  const std::vector<std::byte>& bytes() const { return bytes_; }
  TensorView view(std::initializer_list<std::int64_t> shape);

 private:
  DType dtype_;
  std::vector<std::byte> bytes_;
};

/// One step's tensors in host memory.
struct ServerCall {
  AppendArguments append;
  ForwardArguments forward;  // over the cache after the append
  AttentionOptions options;
};

class SimulatedServer {
 public:
  SimulatedServer(const ServerShape& shape, std::uint64_t seed);
  SimulatedServer(const SimulatedServer&) = delete;
  SimulatedServer& operator=(const SimulatedServer&) = delete;
  virtual ~SimulatedServer() = default;

  /// Steps until one fails, and expects that sequences were evicted and forked on the way.
  void run_steps(int steps);

 protected:
  /// Runs both calls: the caches, O and LSE are then in host memory. Returns what roundings were allowed.
  virtual reference::ArithmeticModel run(const ServerCall& call) = 0;

 private:
  struct Served {
    std::vector<std::int32_t> pages;
    Numbers k, v;  // what the pages hold, [tokens, heads_kv, head_dim]
  };
  struct Step;

  void step();
  std::int64_t last() const { return static_cast<std::int64_t>(served_.size()) - 1; }
  std::int64_t tokens(const Served& one) const { return one.k.size() / key_row_; }
  void fork(std::int64_t index);
  void evict(std::int64_t index);
  void release(std::int32_t page);
  std::int32_t free_page();
  std::int64_t grow(Served& one, std::int64_t count);
  void attend();
  void expect_matches(Step& step, const ServerCall& call, const reference::ArithmeticModel& model) const;

  ServerShape shape_;
  std::int64_t key_row_, most_tokens_;
  Random random_;
  std::vector<Served> served_;
  std::vector<std::int32_t> users_;  // sequences that a page belongs to
  Numbers k_, v_;                    // the pools
  std::int64_t evictions_ = 0;
  std::int64_t forks_ = 0;
};

}  // namespace strobe::test
