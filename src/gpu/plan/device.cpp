// SPDX-License-Identifier: Apache-2.0
#include "gpu/plan/device.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace strobe::gpu {
namespace {

struct Architecture {
  int major, minor;
  UnitRates rates;
  double memory_bandwidth, clock;  // of a usual card, where the driver does not say
};

constexpr double kExponentials = 16.0;  // CUDA Programming Guide, "Throughput of Native Arithmetic Instructions"
constexpr double kSharedBytes = 128.0;
// Of an H200, and taken for others. log: float32-sums-in-l2
constexpr double kSumBytes = 16.3;

constexpr UnitRates rates(double products, double warpgroup_products, double products_8bit, double arithmetic = 128) {
  return {.products = products,
          .warpgroup_products = warpgroup_products,
          .products_8bit = products_8bit,
          .products_tf32 = products / 2.0,
          .exponentials = kExponentials,
          .arithmetic = arithmetic,
          .shared_bytes = kSharedBytes,
          .sum_bytes = kSumBytes};
}

/// In ascending order. Products: NVIDIA's architecture whitepapers, dense, but mma.sync on 9.0, which was measured on
/// an H200 (640 TFLOP/s) and is taken for 10.0, too.
constexpr Architecture kArchitectures[] = {
    {8, 0, rates(2048, 2048, 4096, 64), 1.9e12, 1.41e9},  // A100
    {8, 6, rates(1024, 1024, 2048), 0.6e12, 1.7e9},       // A10
    {8, 7, rates(2048, 2048, 4096), 0.2e12, 1.3e9},       // Orin
    {8, 9, rates(1024, 1024, 2048), 0.8e12, 2.5e9},       // L40S
    {9, 0, rates(2450, 4096, 8192), 3.3e12, 1.98e9},      // H100
    {10, 0, rates(2450, 2450, 4900), 8.0e12, 1.9e9},      // B200
    {12, 0, rates(1024, 1024, 2048), 1.8e12, 2.4e9},      // RTX PRO 6000
};

const Architecture& architecture(int major, int minor) {
  const auto later = std::ranges::find_if(
      kArchitectures, [&](const Architecture& a) { return a.major > major || (a.major == major && a.minor > minor); });
  return later == std::begin(kArchitectures) ? *later : *std::prev(later);
}

/// Consumer cards add to float32 sums at half the rate; an H20 has a quarter of the tensor cores' rate on 9.0.
double product_share(std::string_view name, int major, int minor) {
  const bool halves = (major == 8 && minor >= 6) || major == 12;
  if (halves && name.find("GeForce") != std::string_view::npos) return 0.5;
  const std::size_t h20 = name.find("H20");
  const bool is_h20 = h20 != std::string_view::npos && name.substr(h20, 4) != "H200";
  return major == 9 && is_h20 ? 0.25 : 1.0;
}

/// Two transfers a clock on all lines.
double memory_bandwidth(const runtime::CudaDevice& device) {
  return 2.0 * 1e3 * device.memory_clock_khz * device.memory_bus_bits / 8.0;
}

}  // namespace

UnitRates unit_rates(const DeviceShape& shape) {
  UnitRates rates = architecture(shape.compute_major, shape.compute_minor).rates;
  rates.warpgroup_products *= shape.product_share;
  rates.products_8bit *= shape.product_share;
  // One unit computes both: where its rate is cut, mma.sync is slower only if that is less than it reaches anyway.
  rates.products = std::min(rates.products, rates.warpgroup_products);
  rates.products_tf32 = std::min(rates.products_tf32, rates.warpgroup_products / 2.0);
  return rates;
}

DeviceShape shape_of(const runtime::CudaDevice& device) {
  const Architecture& usual = architecture(device.compute_major, device.compute_minor);
  const double bandwidth = memory_bandwidth(device);
  return {.compute_major = device.compute_major,
          .compute_minor = device.compute_minor,
          .multiprocessors = device.multiprocessors,
          .l2_bytes = device.l2_bytes,
          .shared_bytes = device.max_shared_bytes,
          .memory_bandwidth = bandwidth > 0.0 ? bandwidth : usual.memory_bandwidth,
          .clock = device.clock_khz > 0 ? 1e3 * device.clock_khz : usual.clock,
          .product_share = product_share(device.name, device.compute_major, device.compute_minor)};
}

}  // namespace strobe::gpu
