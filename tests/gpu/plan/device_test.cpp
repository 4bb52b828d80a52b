// SPDX-License-Identifier: Apache-2.0
// What plans know of a device: the driver's description, and tables by compute capability.
#include "gpu/plan/device.h"

#include <gtest/gtest.h>

#include "gpu/plan/devices.h"

namespace strobe::gpu {
namespace {

using test::device_named;

runtime::CudaDevice h100() {
  runtime::CudaDevice device;
  device.name = "NVIDIA H100 80GB HBM3";
  device.compute_major = 9;
  device.multiprocessors = 132;
  device.l2_bytes = 50 << 20;
  device.max_shared_bytes = 227 << 10;
  device.clock_khz = 1980000;
  device.memory_clock_khz = 2619000;
  device.memory_bus_bits = 5120;
  return device;
}

TEST(DeviceShape, IsAsTheDriverSays) {
  const DeviceShape shape = shape_of(h100());
  EXPECT_EQ(shape.compute_major, 9);
  EXPECT_EQ(shape.multiprocessors, 132);
  EXPECT_EQ(shape.l2_bytes, std::size_t{50} << 20U);
  EXPECT_EQ(shape.shared_bytes, 227 << 10);
  EXPECT_DOUBLE_EQ(shape.memory_bandwidth, 2.0 * 2.619e9 * 640);
  EXPECT_DOUBLE_EQ(shape.clock, 1.98e9);
  EXPECT_DOUBLE_EQ(shape.product_share, 1.0);
}

TEST(DeviceShape, IsCompletedByTables) {
  runtime::CudaDevice device = h100();
  device.memory_clock_khz = device.clock_khz = 0;
  EXPECT_DOUBLE_EQ(shape_of(device).memory_bandwidth, 3.3e12);
  EXPECT_DOUBLE_EQ(shape_of(device).clock, 1.98e9);
  device.compute_major = 7;  // older than all that are known
  EXPECT_DOUBLE_EQ(shape_of(device).memory_bandwidth, 1.9e12);
  device.compute_major = 11;  // as the last one before
  EXPECT_DOUBLE_EQ(shape_of(device).memory_bandwidth, 8.0e12);
}

TEST(DeviceShape, SomeCardsHaveAShareOfTheProducts) {
  const auto share = [](const char* name, int major, int minor) {
    runtime::CudaDevice device = h100();
    device.name = name;
    device.compute_major = major;
    device.compute_minor = minor;
    return shape_of(device).product_share;
  };
  EXPECT_EQ(share("NVIDIA H20", 9, 0), 0.25);
  EXPECT_EQ(share("NVIDIA H20-3e", 9, 0), 0.25);
  EXPECT_EQ(share("NVIDIA H200", 9, 0), 1.0);
  EXPECT_EQ(share("NVIDIA GH200 480GB", 9, 0), 1.0);
  EXPECT_EQ(share("NVIDIA H800", 9, 0), 1.0);
  EXPECT_EQ(share("NVIDIA A100-SXM4-40GB", 8, 0), 1.0);
  EXPECT_EQ(share("NVIDIA A10", 8, 6), 1.0);
  EXPECT_EQ(share("NVIDIA GeForce RTX 3090", 8, 6), 0.5);
  EXPECT_EQ(share("NVIDIA GeForce RTX 4090", 8, 9), 0.5);
  EXPECT_EQ(share("NVIDIA GeForce RTX 5090", 12, 0), 0.5);
}

/// TFLOP/s of data sheets, dense, which state another clock here and there.
TEST(UnitRates, GiveTheProductsOfDataSheets) {
  const auto expect = [](std::string_view name, double UnitRates::* rate, double teraflops) {
    const DeviceShape& shape = device_named(name);
    const double most = 1e-12 * shape.multiprocessors * shape.clock * unit_rates(shape).*rate;
    EXPECT_NEAR(most / teraflops, 1.0, 0.1) << name;
  };
  expect("A100", &UnitRates::products, 312);
  expect("A10", &UnitRates::products, 125);
  expect("RTX 3090", &UnitRates::products, 71);
  expect("RTX 3090", &UnitRates::products_tf32, 35.6);
  expect("L4", &UnitRates::products, 121);
  expect("L40S", &UnitRates::products, 362);
  expect("RTX 4090", &UnitRates::products, 165);
  expect("RTX 5090", &UnitRates::products, 210);
  expect("H100", &UnitRates::warpgroup_products, 989);
  expect("H100", &UnitRates::products, 640);
  expect("H100 PCIe", &UnitRates::warpgroup_products, 756);
  expect("H200", &UnitRates::products_8bit, 1979);
  expect("H20", &UnitRates::warpgroup_products, 148);
  expect("H20", &UnitRates::products, 148);
}

}  // namespace
}  // namespace strobe::gpu
