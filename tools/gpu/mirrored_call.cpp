// SPDX-License-Identifier: Apache-2.0
#include "gpu/mirrored_call.h"

#include "call/checked.h"
#include "call/tensors.h"

namespace strobe::gpu {
namespace {

/// Bytes from the first element to past the last; 0 for a tensor without elements.
std::size_t span_bytes(const ConstTensorView& view) {
  Checked elements = 1;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
    if (view.shape[axis] == 0) return 0;
    elements = elements + Checked(view.shape[axis] - 1) * view.strides[axis];
  }
  return (elements * size_of(view.dtype)).value<std::size_t>();
}

}  // namespace

template <class Arguments>
Status MirroredCall<Arguments>::mirror(ConstTensorView& view, const runtime::CudaDevice& device) {
  if (!view.given()) return {};
  view.device = {DeviceType::cuda, device.index};
  const std::size_t span = span_bytes(view);
  if (span == 0) return {};
  Result<DeviceMemory> memory = DeviceMemory::allocate(device, span);
  if (!memory.ok()) return memory.status();
  auto* const host = static_cast<std::byte*>(const_cast<void*>(view.data));
  view.data = memory->data();
  copies_.push_back({std::move(*memory), host, false});
  return copies_.back().memory.upload(host);
}

template <class Arguments>
Status MirroredCall<Arguments>::mirror(TensorView& view, const runtime::CudaDevice& device) {
  ConstTensorView copy = view;
  Status status = mirror(copy, device);
  if (copy.data != view.data) copies_.back().output = true;
  view.device = copy.device;
  view.data = const_cast<void*>(copy.data);
  return status;
}

template <class Arguments>
Result<MirroredCall<Arguments>> MirroredCall<Arguments>::make(const Arguments& host,
                                                              const runtime::CudaDevice& device) {
  MirroredCall mirrored;
  mirrored.arguments_ = host;
  Status status = check_each_tensor(mirrored.arguments_,
                                    [&](const CallTensor&, auto& view) { return mirrored.mirror(view, device); });
  const auto mirror_all = [&]<class View>(std::span<const View>& views, std::vector<View>& own) {
    own.assign(views.begin(), views.end());
    for (View& view : own) {
      if (status.ok()) status = mirrored.mirror(view, device);
    }
    views = own;
  };
  mirror_all(mirrored.arguments_.modifiers.captures, mirrored.captures_);
  if constexpr (requires { mirrored.arguments_.d_captures; }) {
    mirror_all(mirrored.arguments_.d_captures, mirrored.d_captures_);
  }
  if (!status.ok()) return status;
  return mirrored;
}

template <class Arguments>
Status MirroredCall<Arguments>::fetch_outputs() const {
  for (const Copy& copy : copies_) {
    if (!copy.output) continue;
    if (Status status = copy.memory.download(copy.host); !status.ok()) return status;
  }
  return {};
}

template class MirroredCall<ForwardArguments>;
template class MirroredCall<BackwardArguments>;

}  // namespace strobe::gpu
