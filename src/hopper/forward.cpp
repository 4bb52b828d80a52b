#include "hopper/forward.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "kernels/common/smem_plan.h"
#include "runtime/tensor_map.h"

namespace strobe::hopper {
namespace {

constexpr float kLog2E = 1.442695040888963407F;
constexpr std::int64_t kAccessBytes = 16;  // of TMA's strides and the epilogue's stores

/// A tensor [batch, rows, heads, columns] or packed [rows, heads, columns], batch 1.
struct RowsView {
  std::string_view name;
  ConstTensorView view;

  bool packed() const { return view.rank == 3; }
  std::int64_t extent(int from_last) const { return view.shape[static_cast<std::size_t>(view.rank - from_last)]; }
  std::int64_t stride(int from_last) const { return view.strides[static_cast<std::size_t>(view.rank - from_last)]; }
  std::int64_t batch() const { return packed() ? 1 : view.shape[0]; }
  std::int64_t batch_stride() const { return packed() ? 0 : view.strides[0]; }
  std::int64_t rows() const { return extent(3); }
  bool empty() const { return batch() * rows() * extent(2) == 0; }
};

/// An axis of one element is never stepped along: its stride may be anything, and reads as 0.
std::int64_t step(std::int64_t extent, std::int64_t stride) { return extent > 1 ? stride : 0; }

Status check_alignment(const RowsView& tensor) {
  if (tensor.empty()) return {};
  if (reinterpret_cast<std::uintptr_t>(tensor.view.data) % kAccessBytes != 0) {
    return {StatusCode::invalid_argument,
            fmt::format("{} is not aligned to {} bytes, as the hopper engine needs", tensor.name, kAccessBytes)};
  }
  constexpr std::int64_t kElements = kAccessBytes / 2;
  for (const auto& [axis, stride] : {std::pair{"batch", step(tensor.batch(), tensor.batch_stride())},
                                     std::pair{"row", step(tensor.rows(), tensor.stride(3))},
                                     std::pair{"head", step(tensor.extent(2), tensor.stride(2))}}) {
    if (stride % kElements != 0 || stride < 0) {
      return {StatusCode::unsupported,
              fmt::format("{} has {} stride {}: the hopper engine takes multiples of {} elements", tensor.name, axis,
                          stride, kElements)};
    }
  }
  return {};
}

Rows rows_of(const RowsView& tensor) {
  return {static_cast<unsigned short*>(const_cast<void*>(tensor.view.data)), tensor.batch_stride(), tensor.stride(3),
          tensor.stride(2)};
}

const int* lengths(const ConstTensorView& view) { return static_cast<const int*>(view.data); }

/// Boxes of 64 columns and `box_rows` rows, as kernels/hopper/forward/feeder.h addresses them: {column, row, row
/// offset, head, batch}. Varlen variants reach a sequence's rows from its end: the row axis has `bound` entries and the
/// map starts that many rows before the tensor, so that entry bound - used + i at row offset start + used is row start
/// + i, and every entry from `bound` on is outside.
Status encode(const runtime::Driver& driver, const RowsView& tensor, bool varlen, std::int64_t bound, int box_rows,
              const void* any_memory, runtime::TensorMap& map) {
  const auto extent_of = [](std::int64_t value) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(value, 1));
  };
  const auto stride_of = [](std::int64_t extent, std::int64_t stride) {
    return static_cast<std::uint64_t>(extent > 1 ? stride : kAccessBytes / 2);
  };
  const auto row_stride = stride_of(tensor.rows(), tensor.stride(3));
  runtime::TiledTensor tiled;
  tiled.data = const_cast<void*>(tensor.empty() ? any_memory : tensor.view.data);
  tiled.dtype = tensor.view.dtype;
  tiled.rank = 5;
  tiled.extents = {extent_of(tensor.extent(1)), extent_of(tensor.rows()), 1, extent_of(tensor.extent(2)),
                   extent_of(tensor.batch())};
  tiled.strides = {1, row_stride, row_stride, stride_of(tensor.extent(2), tensor.stride(2)),
                   stride_of(tensor.batch(), tensor.batch_stride())};
  tiled.box = {kPanelColumns, static_cast<std::uint32_t>(box_rows), 1, 1, 1};
  if (varlen) {
    tiled.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(tiled.data) -
                                         static_cast<std::uintptr_t>(bound) * row_stride * size_of(tiled.dtype));
    tiled.extents[1] = extent_of(bound);
    tiled.extents[2] = static_cast<std::uint64_t>(tensor.rows()) + 1;
  }
  return encode_tensor_map(driver, tiled, map);
}

}  // namespace

bool serves(const runtime::CudaDevice& device) { return device.compute_major == 9 && device.compute_minor == 0; }

Result<std::shared_ptr<const Forward>> Forward::make(const AttentionProblem& problem) {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(problem.device.index);
  if (!device.ok()) return device.status();
  Result<plan::HopperForwardPlan> plan =
      plan::hopper_forward_plan(problem, {(*device)->multiprocessors, (*device)->l2_bytes});
  if (!plan.ok()) return plan.status();
  return load(problem, **device, std::move(*plan));
}

Result<std::shared_ptr<const Forward>> Forward::make(const AttentionProblem& problem, const KernelConfig& config) {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(problem.device.index);
  if (!device.ok()) return device.status();
  return load(problem, **device,
              plan::hopper_forward_plan(problem, {(*device)->multiprocessors, (*device)->l2_bytes}, config));
}

Result<std::shared_ptr<const Forward>> Forward::load(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                                     plan::HopperForwardPlan plan) {
  const auto shared_bytes = static_cast<unsigned>(smem_plan(plan.config).total_bytes);
  const Result<runtime::Kernel> kernel =
      runtime::load_kernel(runtime::kernel_store(), plan::hopper_forward_variant(plan.config), device, shared_bytes);
  if (!kernel.ok()) return kernel.status();
  return std::shared_ptr<const Forward>(new Forward(problem, device, std::move(plan), *kernel));
}

Result<ForwardParams> Forward::parameters(const ForwardArguments& arguments) const {
  const RowsView q{"q", arguments.q}, k{"k", arguments.k}, v{"v", arguments.v}, o{"o", arguments.o};
  for (const RowsView& tensor : {q, k, v, o}) {
    if (Status status = check_alignment(tensor); !status.ok()) return status;
  }
  const plan::Band band = plan::band_of(problem_);
  ForwardParams params{};
  params.q = rows_of(q);
  params.k = rows_of(k);
  params.v = rows_of(v);
  params.o = rows_of(o);
  if (arguments.lse.given()) {
    params.lse = static_cast<float*>(arguments.lse.data);
    params.lse_batch_stride = problem_.packed_q ? 0 : arguments.lse.strides[0];
    params.lse_head_stride = arguments.lse.strides[problem_.packed_q ? 0 : 1];
  }
  params.cu_seqlens_q = lengths(arguments.sequences.cu_seqlens_q);
  params.cu_seqlens_k = lengths(arguments.sequences.cu_seqlens_k);
  params.seqused_q = lengths(arguments.sequences.seqused_q);
  params.seqused_k = lengths(arguments.sequences.seqused_k);
  params.sequences = static_cast<int>(problem_.batch);
  params.batch = params.sequences + (problem_.packed_q ? 1 : 0);
  params.heads = static_cast<int>(problem_.heads_q);
  params.heads_per_kv = static_cast<int>(problem_.heads_q / problem_.heads_k);
  params.seqlen_q = static_cast<int>(problem_.seqlen_q);
  params.seqlen_k = static_cast<int>(problem_.seqlen_k);
  params.total_q = static_cast<int>(problem_.total_q);
  params.head_dim = static_cast<int>(problem_.head_dim);
  params.head_dim_v = static_cast<int>(problem_.head_dim_v);
  params.m_tiles = plan_.m_tiles;
  params.tiles = plan_.tiles;
  params.mask_left = band.left;
  params.mask_right = band.right;
  params.bottom_right = band.bottom_right ? 1 : 0;
  const bool softcap = problem_.softcap > 0.0F;
  params.scale_log2 = (softcap ? problem_.softcap : problem_.scale) * kLog2E;
  params.softcap_scale = softcap ? problem_.scale / problem_.softcap : 0.0F;
  return params;
}

Status Forward::run(const ForwardArguments& arguments, runtime::CUstream stream) const {
  if (plan_.tiles == 0) return {};
  const Result<ForwardParams> params = parameters(arguments);
  if (!params.ok()) return params.status();

  const KernelConfig& config = plan_.config;
  const runtime::Driver& driver = *device_.driver;
  const runtime::ContextScope context(device_);
  if (!context.status().ok()) return context.status();
  runtime::TensorMap q, k, v;
  const int key_rows = config.block_n / config.cluster;
  const void* memory = arguments.o.data;  // for tensors without elements: mapped, never read
  Status status = encode(driver, {"q", arguments.q}, config.varlen, problem_.seqlen_q, kRowsPerWarpgroup, memory, q);
  if (status.ok()) status = encode(driver, {"k", arguments.k}, config.varlen, problem_.seqlen_k, key_rows, memory, k);
  if (status.ok()) status = encode(driver, {"v", arguments.v}, config.varlen, problem_.seqlen_k, key_rows, memory, v);
  if (!status.ok()) return status;

  const auto cluster = static_cast<unsigned>(config.cluster);
  const runtime::LaunchShape shape{.grid = {.x = static_cast<unsigned>(plan_.lanes) * cluster},
                                   .block = {.x = static_cast<unsigned>(threads_per_block(config))},
                                   .cluster = {.x = cluster},
                                   .dynamic_shared_bytes = static_cast<unsigned>(smem_plan(config).total_bytes)};
  if (config.listed) return runtime::launch(driver, kernel_.handle, shape, stream, q, k, v, *params, *plan_.list);
  return runtime::launch(driver, kernel_.handle, shape, stream, q, k, v, *params, NoTileList{});
}

}  // namespace strobe::hopper
