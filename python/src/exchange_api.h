// SPDX-License-Identifier: Apache-2.0
// The part of DLPack by which a framework hands its tensors to C without a Python call: the functions behind a type's
// __dlpack_c_exchange_api__.
//
// Source: the DLPack specification 1.2, "C exchange API".
#pragma once

#include <nanobind/ndarray.h>

#include <cstdint>

namespace strobe::python {

enum class DeviceKind : std::int32_t { cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13 };

struct ExchangeApi {
  struct Header {
    std::uint32_t major;
    std::uint32_t minor;
    Header* previous;
  };
  Header header;
  void* allocate;
  void* managed_tensor_from_object;
  void* object_from_managed_tensor;
  // Fills a view that lives as long as the object; -1 with a Python exception. May be null.
  int (*tensor_from_object)(void* object, nanobind::dlpack::dltensor* tensor);
  // The stream that the framework works on now; -1 with a Python exception.
  int (*current_stream)(std::int32_t device_kind, std::int32_t device_index, void** stream);
};

/// The functions of the object's framework, or null where it has none of a version that is known here.
const ExchangeApi* exchange_api_of(nanobind::handle object);

}  // namespace strobe::python
