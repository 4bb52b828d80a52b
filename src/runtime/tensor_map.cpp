// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor_map.h"

#include <fmt/format.h>

#include <cstring>
#include <memory>

namespace strobe::runtime {
namespace {

constexpr std::uint64_t kLargestExtent = std::uint64_t{1} << 32;
constexpr std::uint64_t kLargestStrideBytes = std::uint64_t{1} << 40;
constexpr std::uint32_t kLargestBox = 256;
constexpr std::uint64_t kAlignment = 16;

CUtensorMapDataType type_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::float16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bfloat16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::int32: return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case DType::int64: return CU_TENSOR_MAP_DATA_TYPE_INT64;
    case DType::float8_e4m3:
    case DType::int8:
    case DType::uint8: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

/// The span of one swizzle atom's row: the longest that box[0] may be.
std::uint64_t span_bytes(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none: return UINT64_MAX;
    case Swizzle::bytes_32: return 32;
    case Swizzle::bytes_64: return 64;
    case Swizzle::bytes_128: return 128;
  }
  return 0;
}

Status failure(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

Status check_axis(const TiledTensor& tensor, std::size_t axis) {
  const std::uint64_t extent = tensor.extents[axis];
  if (extent < 1 || extent > kLargestExtent) {
    return failure(fmt::format("a tensor map's axis {} has {} elements; 1 to 2^32 are accepted", axis, extent));
  }
  const std::uint32_t box = tensor.box[axis];
  if (box < 1 || box > kLargestBox) {
    return failure(fmt::format("a tensor map's box has {} elements on axis {}; 1 to 256 are accepted", box, axis));
  }
  const std::uint64_t stride = tensor.strides[axis];
  if (axis == 0 && stride != 1) {
    return failure(fmt::format("a tensor map's innermost stride is {}; it must be 1", stride));
  }
  const std::uint64_t element = size_of(tensor.dtype);
  if (axis > 0 && (stride >= kLargestStrideBytes / element || stride * element % kAlignment != 0)) {
    return failure(
        fmt::format("a tensor map's axis {} has a stride of {} elements of {} bytes; a multiple of 16 bytes "
                    "below 2^40 is accepted",
                    axis, stride, element));
  }
  return {};
}

Status check_tensor(const TiledTensor& tensor) {
  if (tensor.rank < 1 || tensor.rank > kMaxTensorMapRank) {
    return failure(fmt::format("a tensor map has rank {}; 1 to 5 are accepted", tensor.rank));
  }
  if (tensor.data == nullptr || reinterpret_cast<std::uintptr_t>(tensor.data) % kAlignment != 0) {
    return failure(fmt::format("a tensor map's data is at {}; a 16-byte aligned address is needed", tensor.data));
  }
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(tensor.rank); ++axis) {
    if (Status status = check_axis(tensor, axis); !status.ok()) return status;
  }
  const std::uint64_t inner_bytes = tensor.box[0] * size_of(tensor.dtype);
  if (inner_bytes % kAlignment != 0 || inner_bytes > span_bytes(tensor.swizzle)) {
    return failure(
        fmt::format("a tensor map's box is {} bytes along axis 0; a multiple of 16 that fits in its swizzle "
                    "is needed",
                    inner_bytes));
  }
  return {};
}

CUtensorMapL2promotion promotion_of(const TiledTensor& tensor) {
  if (tensor.reads_ahead) return CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  return tensor.whole_lines ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_NONE;
}

Status encode(const Driver& driver, const TiledTensor& tensor, void* map) {
  std::array<std::uint64_t, kMaxTensorMapRank> stride_bytes{};  // of axis 1 and up: the driver knows axis 0's
  for (std::size_t axis = 1; axis < static_cast<std::size_t>(tensor.rank); ++axis) {
    stride_bytes[axis - 1] = tensor.strides[axis] * size_of(tensor.dtype);
  }
  constexpr std::array<std::uint32_t, kMaxTensorMapRank> kEveryElement = {1, 1, 1, 1, 1};
  const CUresult result = driver.TensorMapEncodeTiled(
      map, type_of(tensor.dtype), static_cast<std::uint32_t>(tensor.rank), tensor.data, tensor.extents.data(),
      stride_bytes.data(), tensor.box.data(), kEveryElement.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
      static_cast<CUtensorMapSwizzle>(tensor.swizzle), promotion_of(tensor), CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return driver.check(result, "encoding a tensor map");
}

struct EncodedMap {
  TiledTensor tensor;  // of rank 0 where there is none
  alignas(kTensorMapAlignment) std::array<std::byte, kTensorMapBytes> map{};
};

/// As ==, without the calls and branches that comparing arrays one by one takes.
bool same(const TiledTensor& a, const TiledTensor& b) {
  std::uint64_t differences = static_cast<std::uint64_t>(a.data != b.data) | (a.dtype != b.dtype) | (a.rank != b.rank) |
                              (a.swizzle != b.swizzle) | (a.reads_ahead != b.reads_ahead) |
                              (a.whole_lines != b.whole_lines);
  for (std::size_t axis = 0; axis < kMaxTensorMapRank; ++axis) {
    differences |=
        (a.extents[axis] ^ b.extents[axis]) | (a.strides[axis] ^ b.strides[axis]) | (a.box[axis] ^ b.box[axis]);
  }
  return differences == 0;
}

/// Where a thread keeps the map of such a tensor: its layers' tensors come again at every step, and to find a map takes
/// a fifth of encoding it. A model of 32 layers has 128 in its forward.
EncodedMap& place_of(const TiledTensor& tensor) {
  constexpr std::size_t kPlacesLog2 = 8;
  constexpr std::uint64_t kSpread = 0x9E3779B97F4A7C15;  // Fibonacci hashing
  thread_local const auto places = std::make_unique<std::array<EncodedMap, std::size_t{1} << kPlacesLog2>>();
  // Kernels of one call have boxes of their own.
  const std::uint64_t key =
      reinterpret_cast<std::uintptr_t>(tensor.data) / kAlignment + tensor.box[0] + tensor.box[1] + tensor.box[2];
  return (*places)[key * kSpread >> (64 - kPlacesLog2)];
}

}  // namespace

Status encode_tensor_map(const Driver& driver, const TiledTensor& tensor, void* map) {
  EncodedMap& kept = place_of(tensor);
  if (kept.tensor.rank == 0 || !same(kept.tensor, tensor)) {
    if (Status status = check_tensor(tensor); !status.ok()) return status;
    EncodedMap encoded{.tensor = tensor};
    if (Status status = encode(driver, tensor, encoded.map.data()); !status.ok()) return status;
    kept = encoded;
  }
  std::memcpy(map, kept.map.data(), kTensorMapBytes);
  return {};
}

}  // namespace strobe::runtime
