// SPDX-License-Identifier: Apache-2.0
// Python tensors as views.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exchange_api.h"
#include "strobe/tensor.h"

namespace strobe::python {

/// What a tensor is called and must be, for messages.
struct Role {
  const char* name = nullptr;
  const char* dtypes = nullptr;  // "float32, float16 or bfloat16"
  bool written = false;
  bool* scalar = nullptr;  // not null: a tensor of rank 0 comes as one element, and this says that it did
};

/// A shape, a dtype and a device without memory behind them: what a plan needs of a tensor.
struct TensorShape {
  std::vector<std::int64_t> shape;
  DType dtype = DType::float32;
  Device device;
};

/// The same with a dtype as Python names it, which the tensor's role accepts or not.
struct NamedShape {
  std::vector<std::int64_t> shape;
  std::string dtype;
  Device device;
};

/// A view of contiguous memory, with a null pointer. ValueError beyond rank 4.
TensorView view_of(const TensorShape& shape, const Role& role);
TensorView view_of(const NamedShape& shape, const Role& role);

/// "float32", "bool", ...; ValueError for what no tensor of a call can be.
DType dtype_named(std::string_view name, const Role& role);

/// The tensors of one call: keeps what their producers handed over for as long as it lives, and finds the stream that
/// they are ready on.
class Imports {
 public:
  /// `stream`: the CUstream that the caller names, or null where the tensors' framework is to be asked.
  explicit Imports(void* stream, bool has_stream) : stream_(stream), has_stream_(has_stream) {}
  Imports(const Imports&) = delete;
  Imports& operator=(const Imports&) = delete;
  ~Imports();

  /// None gives a view that is not given. TypeError for what is no tensor, ValueError for a tensor that cannot serve
  /// in this role.
  TensorView view(nanobind::handle object, const Role& role);

  /// The stream to launch on: the caller's, or the one that the first CUDA tensor's framework works on. Null for the
  /// default stream and on the CPU.
  void* stream() const { return stream_; }

  /// Whether a tensor on a GPU came in, or the caller named a stream.
  bool on_gpu() const { return has_stream_; }

  /// Device memory for as long as this object lives, from the allocator of the framework that said the stream, and in
  /// the order of that stream; without Python. Null where there is none, where it fails, or for a second time.
  void* allocate(std::size_t bytes);

 private:
  TensorView from_exchange_api(nanobind::handle object, const Role& role);
  TensorView from_array(nanobind::handle array, const Role& role);
  TensorView from_dlpack(nanobind::handle object, const Role& role);
  nanobind::object dlpack_capsule(nanobind::handle object, const Role& role);

  void* stream_;
  bool has_stream_;
  const ExchangeApi* allocator_ = nullptr;
  nanobind::dlpack::device allocator_device_{};
  VersionedTensor* memory_ = nullptr;
  std::vector<nanobind::object> held_;
};

}  // namespace strobe::python
