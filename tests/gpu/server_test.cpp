// SPDX-License-Identifier: Apache-2.0
// The simulated server on a GPU: appends and attention over pages, and after each step every byte of the pools beside
// what the CPU engine's append makes of them. STROBE_SERVER_STEPS: how many steps; STROBE_SEED: another course of
// events.
#include "attention/simulated_server.h"

#include <cstring>

#include "device_cache.h"
#include "gpu_test.h"

namespace strobe::test {
namespace {

class DeviceServer final : public SimulatedServer {
 public:
  DeviceServer(const ServerShape& shape, std::uint64_t seed, const runtime::CudaDevice& device,
               const gpu::Stream& stream)
      : SimulatedServer(shape, seed), device_(device), stream_(stream) {}

 protected:
  reference::ArithmeticModel run(const ServerCall& call) override {
    DeviceCache cache(call.forward, device_);
    AppendArguments on_device = call.append;
    on_device.k_cache = at(call.append.k_cache, cache.arguments().k);
    on_device.v_cache = at(call.append.v_cache, cache.arguments().v);
    on_device.k_new = cache.on_device(call.append.k_new);
    on_device.v_new = cache.on_device(call.append.v_new);
    on_device.cu_seqlens_new = cache.arguments().sequences.cu_seqlens_q;
    on_device.cache_seqlens = cache.on_device(call.append.cache_seqlens);
    on_device.page_table = cache.arguments().page_table;
    const Status appended = append(on_device, tested_execution(stream_.get()));
    EXPECT_TRUE(appended.ok()) << appended.message();
    cache.run(call.options, stream_);
    const Status on_cpu = append(call.append, {.threads = 1});
    EXPECT_TRUE(on_cpu.ok()) << on_cpu.message();
    for (const TensorView& pool : {call.append.k_cache, call.append.v_cache}) {
      const std::vector<std::byte> bytes = cache.downloaded(pool);
      EXPECT_EQ(std::memcmp(bytes.data(), pool.data, bytes.size()), 0) << "a pool is not what the CPU engine makes it";
    }
    return reference::arithmetic_of(tested_kernels(), call.forward.q.dtype);
  }

 private:
  static TensorView at(const TensorView& host, const ConstTensorView& on_device) {
    TensorView view = host;
    view.data = const_cast<void*>(on_device.data);
    view.device = on_device.device;
    return view;
  }

  const runtime::CudaDevice& device_;
  const gpu::Stream& stream_;
};

class GpuServer : public GpuTest {
 protected:
  void run(const ServerShape& shape) {
    DeviceServer(shape, number_from("STROBE_SEED", 1), device(), stream())
        .run_steps(static_cast<int>(number_from("STROBE_SERVER_STEPS", 100)));
  }
};

TEST_F(GpuServer, MatchesTheReferenceInPagesOfFourRows) { run({.dtype = DType::float16, .page_size = 4}); }

TEST_F(GpuServer, MatchesTheReferenceInPagesOfSixteenRows) {
  run({.dtype = DType::bfloat16, .head_dim = 64, .page_size = 16});
}

}  // namespace
}  // namespace strobe::test
