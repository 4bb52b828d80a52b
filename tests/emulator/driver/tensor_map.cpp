// SPDX-License-Identifier: Apache-2.0
#include "driver/tensor_map.h"

#include <cstring>

#include "driver/state.h"

using namespace strobe::runtime;   // NOLINT(google-build-using-namespace): the driver's types
using namespace strobe::emulator;  // NOLINT(google-build-using-namespace)

namespace {

int bytes_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_INT64: return 8;
    default: return 4;
  }
}

}  // namespace

STROBE_EXPORT CUresult cuTensorMapEncodeTiled(void* tensor_map, CUtensorMapDataType type, std::uint32_t rank,
                                              void* address, const std::uint64_t* extents, const std::uint64_t* strides,
                                              const std::uint32_t* box, const std::uint32_t*, CUtensorMapInterleave,
                                              CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                              CUtensorMapFloatOOBfill) {
  TensorMap map;
  const int element = bytes_of(type);
  if (rank < 1 || rank > 5 || reinterpret_cast<std::uint64_t>(address) % 16 != 0) return kInvalidValue;
  map.magic = kTensorMapMagic;
  map.type = static_cast<std::uint8_t>(type);
  map.rank = static_cast<std::uint8_t>(rank);
  map.swizzle = static_cast<std::uint8_t>(swizzle);
  map.element_bytes = static_cast<std::uint8_t>(element);
  map.address = reinterpret_cast<std::uint64_t>(address);
  for (std::uint32_t axis = 0; axis < rank; ++axis) {
    if (extents[axis] == 0 || box[axis] == 0 || box[axis] > 256) return kInvalidValue;
    map.extents[axis] = extents[axis];
    map.box[axis] = static_cast<std::uint16_t>(box[axis]);
    if (axis + 1 == rank) break;
    if (strides[axis] % 16 != 0 || strides[axis] >= std::uint64_t{1} << 40) return kInvalidValue;
    map.strides[axis] = strides[axis];
  }
  if (box[0] * static_cast<std::uint32_t>(element) % 16 != 0) return kInvalidValue;
  std::memset(tensor_map, 0, 128);
  std::memcpy(tensor_map, &map, sizeof(map));
  return CUDA_SUCCESS;
}
