// SPDX-License-Identifier: Apache-2.0
// Up to four kernels in a row: sums of blocks of keys and their mean, where keys are centred; the largest magnitudes of
// units that are larger than a tile; and the rounding. Each may start while the one before it ends.
#include "gpu/auxiliary/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "call/callers_exception.h"
#include "call/checked.h"
#include "call/eight_bit.h"
#include "gpu/auxiliary/quantize_variant.h"
#include "gpu/call/find_kernel.h"
#include "gpu/call/shared_pool.h"
#include "gpu/params/element.h"
#include "gpu/plan/append_part.h"
#include "gpu/variant/architecture.h"
#include "runtime/kernel.h"
#include "runtime/launch.h"

namespace strobe::gpu {
namespace {

struct Kernels {
  std::optional<runtime::Kernel> sums, mean, measure;
  runtime::Kernel quantize;
};

/// Offsets in the workspace, in bytes.
struct Workspace {
  std::size_t sums = 0, counts = 0, mean = 0, largest[3] = {}, end = 0;
  std::size_t first_largest = 0;
};

struct Launcher {
  const runtime::CudaDevice& device;
  runtime::CUstream stream = nullptr;
  runtime::CUcontext context = nullptr;
  bool follows = false;

  template <class Params>
  Status operator()(const runtime::Kernel& kernel, std::int64_t blocks, int threads, int smem_bytes,
                    const Params& params) {
    const runtime::LaunchShape shape =
        runtime::row_of_blocks(blocks, threads, smem_bytes, std::exchange(follows, true));
    return runtime::launch(*device.driver, kernel.launched_in(context), shape, stream, params);
  }
};

bool is_aligned(const ConstTensorView& view, std::int64_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(bytes) != 0) return false;
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  return std::all_of(view.strides.begin(), view.strides.begin() + view.rank - 1,
                     [&](std::int64_t stride) { return stride * size % bytes == 0; });
}

std::int64_t columns_of(const ConstTensorView& rows) { return rows.shape[static_cast<std::size_t>(rows.rank - 1)]; }

auxiliary::QuantizeConfig config_of(const QuantizeArguments& a, const QuantizeOptions& options) {
  const bool aligned = is_aligned(a.q, 16) && is_aligned(a.k, 16) && is_aligned(a.v, 16) && is_aligned(a.q8, 8) &&
                       is_aligned(a.k8, 8) && is_aligned(a.v8, 8);
  auxiliary::QuantizeConfig config{.source = element_of(a.q.dtype),
                                   .head_dim = static_cast<int>(columns_of(a.q)),
                                   .head_dim_v = static_cast<int>(columns_of(a.v)),
                                   .e4m3 = options.element == DType::float8_e4m3,
                                   .aligned = aligned,
                                   .packed = a.sequences.cu_seqlens_q.given() || a.sequences.cu_seqlens_k.given()};
  // Blocks that are tiles need not be measured ahead.
  constexpr int kRoom = 200 * 1024;
  auxiliary::QuantizeConfig whole = config;
  whole.whole_blocks = true;
  const bool has_blocks = options.q_scales == ScaleUnit::block || options.k_scales == ScaleUnit::block ||
                          options.v_scales == ScaleUnit::block;
  return has_blocks && auxiliary::tile_rows(config) < kBlockRows && auxiliary::quantize_smem_bytes(whole) <= kRoom
             ? whole
             : config;
}

/// Whether the scales' units are larger than a tile, and their magnitudes are found ahead.
bool is_measured(ScaleUnit unit, const auxiliary::QuantizeConfig& config) {
  return unit == ScaleUnit::tensor || unit == ScaleUnit::head ||
         (unit == ScaleUnit::block && kBlockRows > auxiliary::tile_rows(config));
}

/// Queries or keys.
struct RowsOfSide : QuantizedSide {
  RowsOfSide(const QuantizedSide& side, const ConstTensorView& lengths)
      : QuantizedSide(side), cu_seqlens(static_cast<const int*>(lengths.data)) {}

  const int* cu_seqlens;  // null: batched

  /// Of jobs: one more is for what lies behind the last sequence.
  std::int64_t entries() const { return packed ? batch + 1 : batch; }
  /// Blocks of keys whose sums are kept.
  Checked mean_blocks() const {
    return heads * (packed ? Checked(total / kMeanRows) + batch : Checked(batch) * mean_chunks());
  }
  std::int64_t mean_chunks() const { return std::max<std::int64_t>(ceil_div(seqlen, kMeanRows), 1); }
};

auxiliary::QuantizedTensor tensor_of(const RowsOfSide& side, const ConstTensorView& from, const TensorView& to,
                                     const TensorView& scales, ScaleUnit unit, bool rotated, bool transposed) {
  const auto stride = [](const auto& view, int from_last) {
    return from_last > view.rank ? 0 : view.strides[static_cast<std::size_t>(view.rank - from_last)];
  };
  auxiliary::QuantizedTensor tensor{};
  tensor.from = from.data;
  tensor.from_batch = stride(from, 4);
  tensor.from_row = stride(from, 3);
  tensor.from_head = stride(from, 2);
  tensor.to = static_cast<unsigned char*>(to.data);
  tensor.to_batch = stride(to, 4);
  tensor.to_row = stride(to, transposed ? 2 : 3);
  tensor.to_head = stride(to, transposed ? 3 : 2);
  tensor.scales = static_cast<float*>(scales.data);
  tensor.scale_batch = scales.strides[0];
  tensor.scale_head = scales.strides[1];
  tensor.rows = static_cast<int>(side.seqlen);
  tensor.heads = static_cast<int>(side.heads);
  tensor.cu_seqlens = side.cu_seqlens;
  tensor.total = static_cast<int>(side.total);
  const bool whole_heads = unit == ScaleUnit::tensor || unit == ScaleUnit::head;
  const auto unit_rows = static_cast<std::uint64_t>(rows_per_scale(unit, side.seqlen));
  tensor.unit_shift = whole_heads ? auxiliary::kAllRows : std::countr_zero(unit_rows);
  tensor.shared = unit == ScaleUnit::tensor;
  tensor.rotated = rotated;
  return tensor;
}

Result<Kernels> find_kernels(const auxiliary::QuantizeConfig& config, bool centred, bool measured, bool packed_keys,
                             const runtime::CudaDevice& device) {
  Kernels kernels;
  const auto find_quantize = [&](const auxiliary::QuantizeConfig& one) {
    return find_kernel(one, device, auxiliary::quantize_smem_bytes(one),
                       [&] { return quantize_variant(one, architecture_of(device)); });
  };
  if (centred) {
    const auxiliary::KeyMeanConfig one{config.source, config.head_dim, config.aligned, packed_keys};
    const auto sum = find_kernel(one, device, 0, [&] { return key_sums_variant(one, architecture_of(device)); });
    if (!sum.ok()) return sum.status();
    const auto mean = find_kernel(config.head_dim, device, 0,
                                  [&] { return key_mean_variant(config.head_dim, architecture_of(device)); });
    if (!mean.ok()) return mean.status();
    kernels.sums = *sum;
    kernels.mean = *mean;
  }
  if (measured) {
    auxiliary::QuantizeConfig one = config;
    one.measure = true;
    const auto measure = find_quantize(one);
    if (!measure.ok()) return measure.status();
    kernels.measure = *measure;
  }
  const auto quantize = find_quantize(config);
  if (!quantize.ok()) return quantize.status();
  kernels.quantize = *quantize;
  return kernels;
}

/// One call.
class Quantisation {
 public:
  Quantisation(const QuantizeArguments& arguments, const QuantizeOptions& options, const runtime::CudaDevice& device)
      : a_(arguments),
        options_(options),
        device_(device),
        queries_(queries_of(arguments), arguments.sequences.cu_seqlens_q),
        keys_(keys_of(arguments), arguments.sequences.cu_seqlens_k),
        config_(config_of(arguments, options)) {
    params_.q = tensor_of(queries_, a_.q, a_.q8, a_.q_descale, options.q_scales, options.rotate_qk, false);
    params_.k = tensor_of(keys_, a_.k, a_.k8, a_.k_descale, options.k_scales, options.rotate_qk, false);
    params_.v = tensor_of(keys_, a_.v, a_.v8, a_.v_descale, options.v_scales, options.rotate_v, true);
    params_.q_shift = static_cast<float*>(a_.q_shift.data);
    params_.shift_batch = a_.q_shift.strides[0];
    params_.shift_head = a_.q_shift.strides[1];
    params_.largest_element = largest_element(options.element);
    params_.smallest_scale = kSmallestScale;
    params_.sequences = static_cast<int>(keys_.batch);
    params_.heads_per_kv =
        static_cast<int>(keys_.heads == 0 ? 1 : std::max<std::int64_t>(queries_.heads / keys_.heads, 1));
    const std::int64_t rows = auxiliary::tile_rows(config_);
    params_.query_jobs = static_cast<int>(std::max<std::int64_t>(ceil_div(queries_.seqlen, 2 * rows), 1));
    params_.key_jobs = static_cast<int>(std::max<std::int64_t>(ceil_div(keys_.seqlen, rows), 1));
    params_.values_tell = options.v_scales == ScaleUnit::row;
    for (std::size_t i = 0; i < std::size(params_.signs); ++i) {
      params_.signs[i] = rotation_signs(options.seed, static_cast<std::int64_t>(64 * i));
    }
    place_workspace();
  }

  std::size_t workspace_bytes() const { return workspace_.end; }

  Status run(const Execution& execution) {
    const Checked key_blocks = Checked(keys_.entries()) * keys_.heads * params_.key_jobs;
    const Checked blocks = key_blocks + Checked(queries_.entries()) * queries_.heads * params_.query_jobs;
    if (blocks.at_most(0)) return {};
    constexpr std::int64_t kMostBlocks = (1LL << 31) - 1;
    const auto too_many = [](const Checked& count) { return !count.at_most(kMostBlocks); };
    const Checked counts[] = {
        blocks,     queries_.seqlen, keys_.seqlen, queries_.packed ? queries_.total : 0, keys_.packed ? keys_.total : 0,
        mean_jobs()};
    if (std::ranges::any_of(counts, too_many)) {
      return {StatusCode::unsupported, "quantising more than 2^31 - 1 tiles or rows is not supported"};
    }
    const Result<Kernels> kernels =
        find_kernels(config_, options_.center_k && !key_heads().at_most(0), measured_, keys_.packed, device_);
    if (!kernels.ok()) return kernels.status();
    params_.key_blocks = key_blocks.value<int>();
    params_.jobs = blocks.value<int>();
    const runtime::ContextScope context(device_);
    if (!context.status().ok()) return context.status();
    Launcher launch{device_, static_cast<runtime::CUstream>(execution.stream), context.current()};
    if (workspace_.end == 0) return enqueue(*kernels, nullptr, launch);
    if (execution.allocate_workspace != nullptr) {
      auto* const memory = static_cast<std::byte*>(call_callers(*execution.allocate_workspace, workspace_.end));
      if (memory == nullptr)
        return {StatusCode::out_of_memory, fmt::format("allocate_workspace gave null for {} bytes", workspace_.end)};
      return enqueue(*kernels, memory, launch);
    }
    Result<runtime::WorkspacePool::Lease> lease = shared_pool(device_, workspace_.end).acquire(launch.stream);
    if (!lease.ok()) return lease.status();
    Status status = enqueue(*kernels, reinterpret_cast<std::byte*>(lease->address()), launch);
    const Status finished = lease->finish();
    return status.ok() ? finished : status;
  }

 private:
  Checked key_heads() const { return Checked(keys_.batch) * keys_.heads; }
  Checked mean_jobs() const { return key_heads() * keys_.mean_chunks(); }

  void place_workspace() {
    const auto take = [&](Checked count, std::size_t size) { return append_part(workspace_.end, count * size); };
    if (options_.center_k) {
      workspace_.sums = take(keys_.mean_blocks() * config_.head_dim, sizeof(double));
      workspace_.counts = take(keys_.mean_blocks(), sizeof(int));
      workspace_.mean = take(key_heads() * config_.head_dim, sizeof(float));
    }
    workspace_.first_largest = workspace_.end;
    const ScaleUnit units[] = {options_.q_scales, options_.k_scales, options_.v_scales};
    auxiliary::QuantizedTensor* const tensors[] = {&params_.q, &params_.k, &params_.v};
    const TensorView* const scales[] = {&a_.q_descale, &a_.k_descale, &a_.v_descale};
    for (std::size_t i = 0; i < 3; ++i) {
      if (!is_measured(units[i], config_)) continue;
      measured_ = true;
      const auto& shape = scales[i]->shape;
      tensors[i]->largest_head = shape[2];
      workspace_.largest[i] = take(shape[0] * shape[1] * shape[2], sizeof(unsigned));
    }
  }

  Status enqueue(const Kernels& kernels, std::byte* workspace, Launcher& launch) {
    Status status;
    if (kernels.sums) {
      auxiliary::KeyMeanParams mean{};
      mean.k = params_.k.from;
      mean.k_batch = params_.k.from_batch;
      mean.k_row = params_.k.from_row;
      mean.k_head = params_.k.from_head;
      mean.sums = reinterpret_cast<double*>(workspace + workspace_.sums);
      mean.counts = reinterpret_cast<int*>(workspace + workspace_.counts);
      mean.mean = reinterpret_cast<float*>(workspace + workspace_.mean);
      mean.rows = params_.k.rows;
      mean.heads = params_.k.heads;
      mean.chunks = static_cast<int>(keys_.mean_chunks());
      mean.cu_seqlens = keys_.cu_seqlens;
      mean.total = params_.k.total;
      params_.mean = mean.mean;
      status =
          launch(*kernels.sums, mean_jobs().value(), kMeanPhases * auxiliary::mean_lanes(config_.head_dim), 0, mean);
      if (status.ok()) status = launch(*kernels.mean, key_heads().value(), auxiliary::kFinishThreads, 0, mean);
    }
    const int threads = auxiliary::quantize_threads(config_);
    const int smem_bytes = auxiliary::quantize_smem_bytes(config_);
    if (status.ok() && kernels.measure) {
      auxiliary::QuantizedTensor* const tensors[] = {&params_.q, &params_.k, &params_.v};
      for (std::size_t i = 0; i < 3; ++i) {
        if (tensors[i]->largest_head != 0) {
          tensors[i]->largest = reinterpret_cast<unsigned*>(workspace + workspace_.largest[i]);
        }
      }
      const runtime::Driver& driver = *device_.driver;
      const auto first = reinterpret_cast<runtime::CUdeviceptr>(workspace + workspace_.first_largest);
      status = driver.check(driver.MemsetD8Async(first, 0, workspace_.end - workspace_.first_largest, launch.stream),
                            "clearing the largest magnitudes");
      launch.follows = false;  // of a memset
      if (status.ok()) status = launch(*kernels.measure, params_.jobs, threads, smem_bytes, params_);
    }
    return status.ok() ? launch(kernels.quantize, params_.jobs, threads, smem_bytes, params_) : status;
  }

  const QuantizeArguments& a_;
  const QuantizeOptions& options_;
  const runtime::CudaDevice& device_;
  RowsOfSide queries_, keys_;
  auxiliary::QuantizeConfig config_;
  auxiliary::QuantizeParams params_{};
  Workspace workspace_;
  bool measured_ = false;
};

}  // namespace

Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options, const Execution& execution,
                const runtime::CudaDevice& device) {
  for (const auto& [name, columns] :
       {std::pair{"head_dim", columns_of(arguments.q)}, std::pair{"head_dim_v", columns_of(arguments.v)}}) {
    if (columns % 8 != 0 || columns > auxiliary::kMostColumns) {
      return {StatusCode::unsupported, fmt::format("{} is {}: the gpu engine quantises multiples of 8 up to {}", name,
                                                   columns, auxiliary::kMostColumns)};
    }
  }
  return Quantisation(arguments, options, device).run(execution);
}

}  // namespace strobe::gpu
