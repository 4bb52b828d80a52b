// SPDX-License-Identifier: Apache-2.0
// Kernels on a real GPU: every kind of launch that engines use, and every way in which one is rejected.
#include <thread>

#include "any_tensor_map.h"
#include "gpu_test.h"

namespace strobe::runtime {
namespace {

using test::DeviceArray;
using test::Stream;

class GpuLaunch : public test::GpuTest {};

TEST_F(GpuLaunch, DeviceSaysWhatItIs) {
  EXPECT_FALSE(device().name.empty());
  EXPECT_GT(device().multiprocessors, 0);
  EXPECT_GT(device().l2_bytes, std::size_t{1} << 20);
  EXPECT_GT(device().memory_bytes, std::size_t{1} << 30);
  EXPECT_EQ(device().max_shared_bytes, 227 * 1024);
  EXPECT_EQ(cuda_device(999).status().code(), StatusCode::invalid_argument);
}

TEST_F(GpuLaunch, RunsOnTheStream) {
  const Result<Kernel> kernel = load(test::kKernelText, "test::change<Config{.kind = Kind::add, .by = 3}>");
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  EXPECT_GT(kernel->resources.registers, 0);
  EXPECT_EQ(kernel->resources.local_bytes, 0);
  EXPECT_EQ(kernel->resources.max_threads, 128);
  DeviceArray<float> values(device(), 1000);
  const Stream stream(device());
  for (int i = 0; i < 10; ++i) {
    const Status status =
        launch(driver(), kernel->handle, {.grid = {8}, .block = {128}}, stream.get(), values.address(), 1000);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  EXPECT_EQ(values.download(), std::vector<float>(1000, 30.0F));
}

TEST_F(GpuLaunch, RunsOnTheDefaultStreamWithoutACurrentContext) {
  const Result<Kernel> kernel = load(test::kKernelText, "test::change<Config{.kind = Kind::add, .by = 5}>");
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  DeviceArray<float> values(device(), 128);
  std::thread([&] {
    const ContextScope context(device());
    EXPECT_TRUE(context.status().ok());
    EXPECT_TRUE(launch(driver(), kernel->handle, {.grid = {1}, .block = {128}}, nullptr, values.address(), 128).ok());
  }).join();
  EXPECT_EQ(values.download(), std::vector<float>(128, 5.0F));
}

TEST_F(GpuLaunch, ClustersAndAllOfSharedMemory) {
  constexpr unsigned kShared = 227 * 1024;
  const Result<Kernel> kernel = load(R"(
    __global__ void __launch_bounds__(128, 1) kernel(int* ranks, int last) {
      extern __shared__ int shared[];
      unsigned rank, size;
      asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
      asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
      if (threadIdx.x == 0) shared[last] = rank + 10 * size;
      __syncthreads();
      if (threadIdx.x == 1) ranks[blockIdx.x] = shared[last];
    })",
                                     "kernel", kShared);
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  DeviceArray<int> ranks(device(), 4);
  const LaunchShape shape{.grid = {4}, .block = {128}, .cluster = {2}, .dynamic_shared_bytes = kShared};
  const Status status =
      launch(driver(), kernel->handle, shape, nullptr, ranks.address(), static_cast<int>(kShared / 4 - 1));
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(ranks.download(), (std::vector<int>{20, 21, 20, 21}));
}

TEST_F(GpuLaunch, TensorMapReadsABoxAndZerosOutside) {
  constexpr int kBoxColumns = 32;
  constexpr int kBoxRows = 8;
  const Result<Kernel> kernel = load(R"(
    #include "kernels/sm90/ptx/cuda_ptx.h"
    #include <cuda/std/cstdint>
    struct alignas(64) TensorMap { unsigned long long opaque[16]; };
    __global__ void kernel(const __grid_constant__ TensorMap map, int column, int row, float* out) {
      __shared__ alignas(128) float box[8 * 32];
      __shared__ alignas(8) cuda::std::uint64_t barrier;
      namespace ptx = cuda::ptx;
      if (threadIdx.x == 0) {
        ptx::mbarrier_init(&barrier, 1);
        ptx::fence_proxy_async(ptx::space_shared);
        const cuda::std::int32_t at[2] = {column, row};
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, box, &map, at, &barrier);
        ptx::mbarrier_arrive_expect_tx(ptx::sem_release, ptx::scope_cta, ptx::space_shared, &barrier, sizeof(box));
      }
      __syncthreads();
      while (!ptx::mbarrier_try_wait_parity(&barrier, 0)) {}
      out[threadIdx.x] = box[threadIdx.x];
    })",
                                     "kernel");
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  constexpr std::size_t kColumns = 100;
  constexpr std::size_t kRows = 50;
  constexpr std::size_t kStride = 104;
  DeviceArray<float> matrix(device(), kStride * kRows);
  std::vector<float> values(kStride * kRows, -1.0F);
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t column = 0; column < kColumns; ++column) {
      values[row * kStride + column] = static_cast<float>(1000 * row + column);
    }
  }
  matrix.upload(values);
  AnyTensorMap map;
  const Status encoded = encode_tensor_map(driver(),
                                           {.data = reinterpret_cast<void*>(matrix.address()),
                                            .dtype = DType::float32,
                                            .rank = 2,
                                            .extents = {kColumns, kRows},
                                            .strides = {1, kStride},
                                            .box = {kBoxColumns, kBoxRows},
                                            .swizzle = Swizzle::none},
                                           map);
  ASSERT_TRUE(encoded.ok()) << encoded.message();
  DeviceArray<float> out(device(), kBoxColumns * kBoxRows);
  for (const auto& [first_column, first_row] : {std::pair(8, 3), std::pair(80, 46)}) {
    const Status status = launch(driver(), kernel->handle, {.grid = {1}, .block = {kBoxColumns * kBoxRows}}, nullptr,
                                 map, first_column, first_row, out.address());
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<float> box = out.download();
    for (int i = 0; i < kBoxColumns * kBoxRows; ++i) {
      const int row = first_row + i / kBoxColumns;
      const int column = first_column + i % kBoxColumns;
      const bool inside = row < static_cast<int>(kRows) && column < static_cast<int>(kColumns);
      EXPECT_EQ(box[static_cast<std::size_t>(i)], inside ? static_cast<float>(1000 * row + column) : 0.0F) << i;
    }
  }
}

TEST_F(GpuLaunch, OverlappingKernelSeesThePreviousResults) {
  constexpr const char* kText = R"(
    __global__ void writer(int* value) {
      asm volatile("griddepcontrol.launch_dependents;");
      for (int i = 0; i < 1000; ++i) __nanosleep(1000);
      *value += 1;
    }
    __global__ void reader(const int* value, int* seen) {
      asm volatile("griddepcontrol.wait;" ::: "memory");
      *seen = *value;
    })";
  const Result<Kernel> writer = load(kText, "writer");
  const Result<Kernel> reader = load(kText, "reader");
  ASSERT_TRUE(writer.ok() && reader.ok());
  DeviceArray<int> value(device(), 1);
  DeviceArray<int> seen(device(), 1);
  const Stream stream(device());
  for (int round = 1; round <= 20; ++round) {
    ASSERT_TRUE(launch(driver(), writer->handle, {.grid = {1}, .block = {1}}, stream.get(), value.address()).ok());
    const LaunchShape overlapping{.grid = {1}, .block = {1}, .overlaps_previous = true};
    ASSERT_TRUE(launch(driver(), reader->handle, overlapping, stream.get(), value.address(), seen.address()).ok());
    EXPECT_EQ(seen.download()[0], round);
  }
}

TEST_F(GpuLaunch, EveryDeviceRunsTheSameKernel) {
  const Result<int> count = cuda_device_count();
  ASSERT_TRUE(count.ok());
  const std::string sources = test::test_sources();
  const KernelStore& store = *new KernelStore(*Archive::parse(*new std::string(sources)), {}, DiskCache(), nvrtc);
  std::vector<std::thread> threads;
  for (int index = 0; index < *count; ++index) {
    threads.emplace_back([&store, index] {
      const CudaDevice& device = **cuda_device(index);
      const ContextScope context(device);
      const Result<Kernel> kernel = load_kernel(store, test::add_variant(7), device, 0);
      ASSERT_TRUE(kernel.ok()) << kernel.status().message();
      DeviceArray<float> values(device, 128);
      const LaunchShape shape{.grid = {1}, .block = {128}};
      EXPECT_TRUE(launch(*device.driver, kernel->handle, shape, nullptr, values.address(), 128).ok());
      EXPECT_EQ(values.download(), std::vector<float>(128, 7.0F));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GpuLaunch, EveryKernelOfThePackLoadsAndKeepsToRegisters) {
  const Result<Archive> pack = Archive::parse(embedded_pack());
  if (!pack.ok()) GTEST_SKIP() << "this build has no GPU kernels";
  for (const Archive::Entry& entry : pack->entries()) {
    if (entry.name == KernelPack::kVersionsEntry) continue;
    const Result<KernelImage> image = KernelImage::parse(std::string(entry.name), entry.content);
    ASSERT_TRUE(image.ok()) << image.status().message();
    const std::string cubin(image->cubin);
    const std::string name(image->lowered_name);
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    ASSERT_EQ(driver().LibraryLoadData(&library, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), CUDA_SUCCESS);
    ASSERT_EQ(driver().LibraryGetKernel(&kernel, library, name.c_str()), CUDA_SUCCESS) << name;
    int local_bytes = -1;
    driver().KernelGetAttribute(&local_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel, device().handle);
    EXPECT_EQ(local_bytes, 0) << name;
    driver().LibraryUnload(library);
  }
}

TEST_F(GpuLaunch, RejectionsHaveTheDriversWords) {
  const Result<Kernel> kernel = load(test::kKernelText, "test::change<Config{.by = 9}>");
  ASSERT_TRUE(kernel.ok());
  const Status status = launch(driver(), kernel->handle, {.grid = {1}, .block = {2048}}, nullptr, CUdeviceptr{0}, 0);
  EXPECT_EQ(status.code(), StatusCode::device_error);
  EXPECT_EQ(status.message(),
            "launching a kernel of 1 x 1 x 1 blocks of 2048 x 1 x 1 threads with 0 bytes of shared memory: "
            "CUDA_ERROR_INVALID_VALUE (invalid argument)");
  const Status shared = load(test::kKernelText, "test::change<Config{.by = 9}>", 228 * 1024).status();
  EXPECT_EQ(shared.code(), StatusCode::invalid_argument);
  EXPECT_NE(shared.message().find("has 232448 for it"), std::string::npos) << shared.message();
}

TEST_F(GpuLaunch, CodeThatIsNoneIsRejected) {
  const std::string& sources = *new std::string(test::test_sources());
  const KernelStore compiling(*Archive::parse(sources), {}, DiskCache(), nvrtc);
  const NvrtcVersion version = (*nvrtc())->version();
  const std::string key = compiling.key(test::add_variant(11), version);
  const std::string image = KernelImage::serialize(key, {.cubin = "no code", .lowered_name = "add"}, 0.0);
  const std::string& pack = *new std::string(KernelPack::make(std::array{version}, {{key, image}}));
  const KernelStore& store =
      *new KernelStore(*Archive::parse(sources), {KernelPack(*Archive::parse(pack))}, DiskCache(), nvrtc);
  const Status status = load_kernel(store, test::add_variant(11), device(), 0).status();
  EXPECT_EQ(status.code(), StatusCode::device_error);
  // The driver looks into an image when it is loaded or, where it loads lazily, when a kernel of it is first asked for.
  EXPECT_TRUE(
      status.message().ends_with("the kernel add 11: CUDA_ERROR_INVALID_IMAGE (device kernel image is invalid)"))
      << status.message();
}

}  // namespace
}  // namespace strobe::runtime
