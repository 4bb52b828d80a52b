// SPDX-License-Identifier: Apache-2.0
#include "gpu/mirrored_forward.h"

namespace strobe::gpu {
namespace {

/// Bytes from the first element to past the last; 0 for a tensor without elements.
std::size_t span_bytes(const ConstTensorView& view) {
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
    if (view.shape[axis] == 0) return 0;
    last += (view.shape[axis] - 1) * view.strides[axis];
  }
  return static_cast<std::size_t>(last + 1) * size_of(view.dtype);
}

}  // namespace

Status MirroredForward::mirror(ConstTensorView& view, const runtime::CudaDevice& device) {
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

Status MirroredForward::mirror(TensorView& view, const runtime::CudaDevice& device) {
  ConstTensorView copy = view;
  Status status = mirror(copy, device);
  if (copy.data != view.data) copies_.back().output = true;
  view.device = copy.device;
  view.data = const_cast<void*>(copy.data);
  return status;
}

Result<MirroredForward> MirroredForward::make(const ForwardArguments& host, const runtime::CudaDevice& device) {
  MirroredForward mirrored;
  ForwardArguments& a = mirrored.arguments_ = host;
  for (ConstTensorView* const view : {&a.q, &a.k, &a.v, &a.sequences.cu_seqlens_q, &a.sequences.cu_seqlens_k,
                                      &a.sequences.seqused_q, &a.sequences.seqused_k, &a.modifiers.alibi_slopes,
                                      &a.modifiers.bias, &a.modifiers.sink, &a.modifiers.block_mask}) {
    if (Status status = mirrored.mirror(*view, device); !status.ok()) return status;
  }
  for (TensorView* const view : {&a.o, &a.lse, &a.max_logits}) {
    if (Status status = mirrored.mirror(*view, device); !status.ok()) return status;
  }
  return mirrored;
}

Status MirroredForward::fetch_outputs() const {
  for (const Copy& copy : copies_) {
    if (!copy.output) continue;
    if (Status status = copy.memory.download(copy.host); !status.ok()) return status;
  }
  return {};
}

}  // namespace strobe::gpu
