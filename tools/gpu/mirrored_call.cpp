// SPDX-License-Identifier: Apache-2.0
#include "gpu/mirrored_call.h"

#include <initializer_list>

#include "call/checked.h"

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

template <class View>
using Views = std::initializer_list<View*>;

template <class Mirror>
Status mirror_shared(Sequences& s, ScoreModifiers& m, const Mirror& mirror) {
  return mirror(Views<ConstTensorView>{&s.cu_seqlens_q, &s.cu_seqlens_k, &s.seqused_q, &s.seqused_k, &m.alibi_slopes,
                                       &m.bias, &m.sink, &m.block_mask});
}

template <class Mirror>
Status mirror_all(ForwardArguments& a, const Mirror& mirror) {
  Status status =
      mirror(Views<ConstTensorView>{&a.q, &a.k, &a.v, &a.q_descale, &a.k_descale, &a.v_descale, &a.q_shift});
  if (status.ok()) status = mirror_shared(a.sequences, a.modifiers, mirror);
  return status.ok() ? mirror(Views<TensorView>{&a.o, &a.lse, &a.max_logits}) : status;
}

template <class Mirror>
Status mirror_all(BackwardArguments& a, const Mirror& mirror) {
  Status status = mirror(Views<ConstTensorView>{&a.q, &a.k, &a.v, &a.o, &a.lse, &a.d_o, &a.d_lse});
  if (status.ok()) status = mirror_shared(a.sequences, a.modifiers, mirror);
  return status.ok() ? mirror(Views<TensorView>{&a.dq, &a.dk, &a.dv, &a.d_bias, &a.d_sink}) : status;
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
  Status status = mirror_all(mirrored.arguments_, [&](const auto& views) -> Status {
    for (auto* const view : views) {
      if (Status one = mirrored.mirror(*view, device); !one.ok()) return one;
    }
    return {};
  });
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
