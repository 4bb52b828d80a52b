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

/// DLManagedTensorVersioned of DLPack 1; what came before held the tensor alone.
struct VersionedTensor {  // NOLINT(cppcoreguidelines-pro-type-member-init): producers make them
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  nanobind::dlpack::dltensor tensor;
};

struct ExchangeApi {
  struct Header {
    std::uint32_t major;
    std::uint32_t minor;
    Header* previous;
  };
  Header header;
  // A tensor of the prototype's shape, dtype and device, by the framework's own allocator, on the stream that it works
  // on; -1 where it cannot, and then `set_error` was told. Needs no interpreter's lock. May be null.
  int (*allocate)(nanobind::dlpack::dltensor* prototype, VersionedTensor** tensor, void* context,
                  void (*set_error)(void* context, const char* kind, const char* message));
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
