// SPDX-License-Identifier: Apache-2.0
#include "multiply_probe.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/multiply_probe.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace strobe::bench::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// 12 chains hide the latency of an FMA unit pair (4 or 5 cycles, 2 a cycle: 8 to 10 in flight) and, with the two
/// constants, still fit 16 registers.
double run_float_chains(std::int64_t steps, float start, float* sink) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.999F + start);
  const auto addend = hn::Set(d, 0.001F + start);
  auto c0 = hn::Iota(d, start), c1 = hn::Add(c0, addend), c2 = hn::Add(c1, addend), c3 = hn::Add(c2, addend);
  auto c4 = hn::Add(c3, addend), c5 = hn::Add(c4, addend), c6 = hn::Add(c5, addend), c7 = hn::Add(c6, addend);
  auto c8 = hn::Add(c7, addend), c9 = hn::Add(c8, addend), c10 = hn::Add(c9, addend), c11 = hn::Add(c10, addend);
  for (std::int64_t step = 0; step < steps; ++step) {
    c0 = hn::MulAdd(c0, factor, addend);
    c1 = hn::MulAdd(c1, factor, addend);
    c2 = hn::MulAdd(c2, factor, addend);
    c3 = hn::MulAdd(c3, factor, addend);
    c4 = hn::MulAdd(c4, factor, addend);
    c5 = hn::MulAdd(c5, factor, addend);
    c6 = hn::MulAdd(c6, factor, addend);
    c7 = hn::MulAdd(c7, factor, addend);
    c8 = hn::MulAdd(c8, factor, addend);
    c9 = hn::MulAdd(c9, factor, addend);
    c10 = hn::MulAdd(c10, factor, addend);
    c11 = hn::MulAdd(c11, factor, addend);
  }
  const auto low = hn::Add(hn::Add(hn::Add(c0, c1), hn::Add(c2, c3)), hn::Add(c4, c5));
  const auto high = hn::Add(hn::Add(hn::Add(c6, c7), hn::Add(c8, c9)), hn::Add(c10, c11));
  *sink = hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
  return 12.0 * 2.0 * static_cast<double>(hn::Lanes(d)) * static_cast<double>(steps);
}

}  // namespace strobe::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace strobe::bench {
namespace {

HWY_EXPORT(run_float_chains);

double float_chains(std::int64_t steps, float start, float* sink) {
  return HWY_DYNAMIC_DISPATCH(run_float_chains)(steps, start, sink);
}

using Clock = std::chrono::steady_clock;

/// GFLOP/s of this thread, working for `duration` in slices of less than a millisecond: the median slice's, whatever
/// other processes take of the time.
double work(RunChains run_chains, std::chrono::duration<double> duration) {
  constexpr std::int64_t kSteps = 20'000;
  volatile float start = 0.0F;  // unknown to the compiler, so that the chains are computed
  float sink = 0.0F;
  std::vector<double> rates;
  const Clock::time_point begin = Clock::now();
  Clock::time_point end = begin;
  do {
    const Clock::time_point slice_begin = end;
    const double flops = run_chains(kSteps, start, &sink);
    start = sink * 0.0F;
    end = Clock::now();
    rates.push_back(flops / std::chrono::duration<double>(end - slice_begin).count() * 1e-9);
  } while (end - begin < duration);
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

}  // namespace

double multiply_probe_gflops(DType dtype, int threads, std::chrono::duration<double> duration) {
  RunChains run_chains = dtype == DType::bfloat16 ? bfloat16_chains() : nullptr;
  if (run_chains == nullptr) run_chains = float_chains;
  std::vector<double> gflops(static_cast<std::size_t>(std::max(threads, 1)));
  std::atomic<int> waiting = static_cast<int>(gflops.size());
  {
    std::vector<std::jthread> pool;
    for (double& own : gflops) {
      pool.emplace_back([&] {
        --waiting;
        while (waiting > 0) std::this_thread::yield();  // start together, so that every thread works under full load
        own = work(run_chains, duration);
      });
    }
  }
  return std::accumulate(gflops.begin(), gflops.end(), 0.0);
}

}  // namespace strobe::bench
#endif  // HWY_ONCE
