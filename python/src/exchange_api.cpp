// SPDX-License-Identifier: Apache-2.0
#include "exchange_api.h"

#include <unordered_map>

namespace nb = nanobind;

namespace strobe::python {
namespace {

constexpr std::uint32_t kMajor = 1;

const ExchangeApi* read(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (capsule.is_none()) return nullptr;
  auto* header = static_cast<ExchangeApi::Header*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (header == nullptr) PyErr_Clear();
  while (header != nullptr && header->major != kMajor) header = header->previous;
  const auto* api = reinterpret_cast<const ExchangeApi*>(header);
  return api != nullptr && api->tensor_from_object != nullptr ? api : nullptr;
}

}  // namespace

const ExchangeApi* exchange_api_of(nb::handle object) {
  // A type that is in here is kept alive, so that its address stays its own. Guarded by the interpreter's lock.
  static auto& known = *new std::unordered_map<PyObject*, const ExchangeApi*>;
  const nb::handle type = object.type();
  if (const auto at = known.find(type.ptr()); at != known.end()) return at->second;
  const ExchangeApi* api = read(type);
  if (api != nullptr) {
    type.inc_ref();
    known.emplace(type.ptr(), api);
  }
  return api;
}

}  // namespace strobe::python
