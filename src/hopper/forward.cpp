#include "hopper/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "kernels/hopper/forward/smem.h"
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

/// Boxes of 64 columns by `rows`, of which `heads` neighbouring heads share each row of the tensor.
struct Box {
  int rows = 0;
  int heads = 1;
};

/// As kernels/hopper/forward/feeder.h addresses them: {column, row, row offset, head, batch}, or {column, head, row,
/// row offset, batch} where heads are packed. Varlen variants reach a sequence's rows from its end: the row axis has
/// `bound` entries and the map starts that many rows before the tensor, so that entry bound - used + i at row offset
/// start + used is row start + i, and every entry from `bound` on is outside.
Status encode(const runtime::Driver& driver, const RowsView& tensor, const KernelConfig& config, std::int64_t bound,
              const Box& box, const void* any_memory, runtime::TensorMap& map) {
  struct Axis {
    std::uint64_t extent, stride;
    std::uint32_t box;
  };
  const auto axis = [](std::int64_t extent, std::int64_t stride, int boxed = 1) {
    return Axis{static_cast<std::uint64_t>(std::max<std::int64_t>(extent, 1)),
                static_cast<std::uint64_t>(extent > 1 ? stride : kAccessBytes / 2), static_cast<std::uint32_t>(boxed)};
  };
  const Axis columns{static_cast<std::uint64_t>(std::max<std::int64_t>(tensor.extent(1), 1)), 1, kPanelColumns};
  Axis rows = axis(tensor.rows(), tensor.stride(3), box.rows / box.heads);
  Axis offsets{1, rows.stride, 1};
  const Axis heads = axis(tensor.extent(2), tensor.stride(2), box.heads);
  const Axis batches = axis(tensor.batch(), tensor.batch_stride());

  runtime::TiledTensor tiled;
  tiled.data = const_cast<void*>(tensor.empty() ? any_memory : tensor.view.data);
  tiled.dtype = tensor.view.dtype;
  if (config.varlen) {
    tiled.data = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(tiled.data) -
                                         static_cast<std::uintptr_t>(bound) * rows.stride * size_of(tiled.dtype));
    rows.extent = static_cast<std::uint64_t>(std::max<std::int64_t>(bound, 1));
    offsets.extent = static_cast<std::uint64_t>(tensor.rows()) + 1;
  }
  const std::array<Axis, 5> axes = box.heads > 1 ? std::array<Axis, 5>{columns, heads, rows, offsets, batches}
                                                 : std::array<Axis, 5>{columns, rows, offsets, heads, batches};
  tiled.rank = 5;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    tiled.extents[i] = axes[i].extent;
    tiled.strides[i] = axes[i].stride;
    tiled.box[i] = axes[i].box;
  }
  return encode_tensor_map(driver, tiled, map);
}

/// The kernel raises what is there: -inf, where nothing is visible.
Status clear_max_logits(const runtime::Driver& driver, const TensorView& max_logits, runtime::CUstream stream) {
  if (!max_logits.given() || max_logits.shape[0] * max_logits.shape[1] == 0) return {};
  constexpr unsigned kMinusInfinity = 0xff800000U;
  const bool contiguous = max_logits.strides[0] == max_logits.shape[1];
  const std::int64_t rows = contiguous ? 1 : max_logits.shape[0];
  const std::int64_t columns = contiguous ? max_logits.shape[0] * max_logits.shape[1] : max_logits.shape[1];
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto* first = static_cast<const float*>(max_logits.data) + row * max_logits.strides[0];
    const Status status = driver.check(driver.MemsetD32Async(reinterpret_cast<runtime::CUdeviceptr>(first),
                                                             kMinusInfinity, static_cast<std::size_t>(columns), stream),
                                       "clearing max_logits");
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

bool serves(const runtime::CudaDevice& device) { return device.compute_major == 9 && device.compute_minor == 0; }

Result<std::shared_ptr<const Forward>> Forward::make(const AttentionProblem& problem) {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(problem.device.index);
  if (!device.ok()) return device.status();
  Result<HopperForwardPlan> plan = hopper_forward_plan(problem, {(*device)->multiprocessors, (*device)->l2_bytes});
  if (!plan.ok()) return plan.status();
  return load(problem, **device, std::move(*plan));
}

Result<std::shared_ptr<const Forward>> Forward::make(const AttentionProblem& problem, const KernelConfig& config) {
  const Result<const runtime::CudaDevice*> device = runtime::cuda_device(problem.device.index);
  if (!device.ok()) return device.status();
  return load(problem, **device,
              hopper_forward_plan(problem, {(*device)->multiprocessors, (*device)->l2_bytes}, config));
}

Result<std::shared_ptr<const Forward>> Forward::load(const AttentionProblem& problem, const runtime::CudaDevice& device,
                                                     HopperForwardPlan plan) {
  const auto shared_bytes = static_cast<unsigned>(smem_plan(plan.config).total_bytes);
  const Result<runtime::Kernel> kernel =
      runtime::load_kernel(runtime::kernel_store(), hopper_forward_variant(plan.config), device, shared_bytes);
  if (!kernel.ok()) return kernel.status();
  return std::shared_ptr<const Forward>(new Forward(problem, device, std::move(plan), *kernel));
}

Result<ForwardParams> Forward::parameters(const ForwardArguments& arguments) const {
  const RowsView q{"q", arguments.q}, k{"k", arguments.k}, v{"v", arguments.v}, o{"o", arguments.o};
  for (const RowsView& tensor : {q, k, v, o}) {
    if (Status status = check_alignment(tensor); !status.ok()) return status;
  }
  const Band band = band_of(problem_);
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
  params.heads = static_cast<int>(problem_.heads_q) / plan_.config.packed_heads;
  params.seqlen_q = static_cast<int>(problem_.seqlen_q);
  params.seqlen_k = static_cast<int>(problem_.seqlen_k);
  params.total_q = static_cast<int>(problem_.total_q);
  params.head_dim = static_cast<int>(problem_.head_dim);
  params.head_dim_v = static_cast<int>(problem_.head_dim_v);
  params.m_tiles = plan_.m_tiles;
  params.tiles = plan_.tiles;
  params.by_m_tiles = Divisor::of(plan_.m_tiles);
  params.by_heads = Divisor::of(params.heads);
  params.by_heads_per_kv = Divisor::of(params.heads / static_cast<int>(problem_.heads_k));
  params.mask_left = band.left;
  params.mask_right = band.right;
  params.bottom_right = band.bottom_right ? 1 : 0;
  params.chunk = band.chunk;
  const bool softcap = problem_.softcap > 0.0F;
  params.scale_log2 = (softcap ? problem_.softcap : problem_.scale) * kLog2E;
  params.softcap_scale = softcap ? problem_.scale / problem_.softcap : 0.0F;
  const ConstTensorView& slopes = arguments.modifiers.alibi_slopes;
  params.alibi_slopes = static_cast<const float*>(slopes.data);
  params.alibi_batch_stride = problem_.modifiers.alibi_per_batch ? slopes.strides[0] : 0;
  params.sink = static_cast<const float*>(arguments.modifiers.sink.data);
  params.max_logits = static_cast<float*>(arguments.max_logits.data);
  params.max_logits_batch_stride = arguments.max_logits.strides[0];
  return params;
}

Status Forward::run(const ForwardArguments& arguments, runtime::CUstream stream) const {
  const runtime::Driver& driver = *device_.driver;
  const runtime::ContextScope context(device_);
  if (!context.status().ok()) return context.status();
  if (Status status = clear_max_logits(driver, arguments.max_logits, stream); !status.ok()) return status;
  if (plan_.tiles == 0) return {};
  const Result<ForwardParams> params = parameters(arguments);
  if (!params.ok()) return params.status();

  const KernelConfig& config = plan_.config;
  runtime::TensorMap q, k, v, o;
  const Box keys{.rows = config.block_n / config.cluster};
  const Box queries{.rows = kRowsPerWarpgroup, .heads = config.packed_heads};
  const Box outputs{.rows = kRowsPerWarp, .heads = std::min(config.packed_heads, kRowsPerWarp)};
  const void* memory = arguments.o.data;  // for tensors without elements: mapped, never read
  Status status = encode(driver, {"q", arguments.q}, config, problem_.seqlen_q, queries, memory, q);
  if (status.ok()) status = encode(driver, {"k", arguments.k}, config, problem_.seqlen_k, keys, memory, k);
  if (status.ok()) status = encode(driver, {"v", arguments.v}, config, problem_.seqlen_k, keys, memory, v);
  if (status.ok()) status = encode(driver, {"o", arguments.o}, config, problem_.seqlen_q, outputs, memory, o);
  if (!status.ok()) return status;

  const auto cluster = static_cast<unsigned>(config.cluster);
  const runtime::LaunchShape shape{.grid = {.x = static_cast<unsigned>(plan_.lanes) * cluster},
                                   .block = {.x = static_cast<unsigned>(threads_per_block(config))},
                                   .cluster = {.x = cluster},
                                   .dynamic_shared_bytes = static_cast<unsigned>(smem_plan(config).total_bytes)};
  if (config.listed) return runtime::launch(driver, kernel_.handle, shape, stream, q, k, v, o, *params, *plan_.list);
  return runtime::launch(driver, kernel_.handle, shape, stream, q, k, v, o, *params, NoTileList{});
}

}  // namespace strobe::hopper
