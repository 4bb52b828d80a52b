// SPDX-License-Identifier: Apache-2.0
#include "gpu/auxiliary/append_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "call/limits.h"
#include "gpu/params/append_places.h"
#include "gpu/params/element.h"

namespace strobe::gpu {
namespace {

using auxiliary::AppendConfig;
using auxiliary::AppendedRows;
using auxiliary::AppendParams;
using auxiliary::Rotation;

/// Whether every `elements` neighbours from a multiple of them are one access, or several of 16 bytes.
bool takes_vectors(const ConstTensorView& view, std::int64_t elements) {
  const std::int64_t bytes = std::min<std::int64_t>(elements * static_cast<std::int64_t>(size_of(view.dtype)), 16);
  const std::int64_t multiple = bytes / static_cast<std::int64_t>(size_of(view.dtype));
  const auto last = static_cast<std::size_t>(view.rank - 1);
  for (std::size_t axis = 0; axis < last; ++axis) {
    if (view.shape[axis] > 1 && view.strides[axis] % multiple != 0) return false;
  }
  return view.shape[last] % elements == 0 &&
         reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(bytes) == 0;
}

bool is_aligned(const AppendArguments& a) {
  const std::int64_t vector = 16 / static_cast<std::int64_t>(size_of(a.k_new.dtype));
  const auto rows = {a.k_new, a.v_new, ConstTensorView(a.k_cache), ConstTensorView(a.v_cache)};
  if (!std::all_of(rows.begin(), rows.end(), [&](const auto& view) { return takes_vectors(view, vector); })) {
    return false;
  }
  if (!a.cos.given()) return true;
  const std::int64_t angles = a.interleaved ? vector / 2 : vector;
  return takes_vectors(a.cos, angles) && takes_vectors(a.sin, angles) &&
         (!a.q.given() || (takes_vectors(a.q, vector) && takes_vectors(a.q_out, vector)));
}

AppendConfig config_of(const AppendArguments& a) {
  return {.source = element_of(a.k_new.dtype),
          .cache = element_of(a.k_cache.dtype),
          .rotation = !a.cos.given()  ? Rotation::none
                      : a.interleaved ? Rotation::interleaved
                                      : Rotation::halves,
          .aligned = is_aligned(a),
          .row_scales = a.k_row_descale.given()};
}

std::int64_t stride_of(const ConstTensorView& view, int from_last) {
  return view.strides[static_cast<std::size_t>(view.rank - from_last)];
}

std::int64_t extent_of(const ConstTensorView& view, int from_last) {
  return view.shape[static_cast<std::size_t>(view.rank - from_last)];
}

/// What the source says of its rows. `pairs`: of columns that are rotated.
AppendedRows rows_of(const AppendConfig& config, const ConstTensorView& from, const ConstTensorView& cu_seqlens,
                     const ConstTensorView& positions, std::int64_t pairs) {
  const bool packed = cu_seqlens.given();
  const std::int64_t vector = append_vector(config);
  // A pair of vectors is one item, but where pairs are neighbours and a vector holds some of them.
  const std::int64_t rotated =
      config.rotation == Rotation::interleaved && vector > 1 ? 2 * pairs / vector : pairs / vector;
  const std::int64_t items_per_head = rotated + (extent_of(from, 1) - 2 * pairs) / vector;
  AppendedRows rows{};
  rows.from = from.data;
  rows.from_batch = packed ? 0 : from.strides[0];
  rows.from_row = stride_of(from, 3);
  rows.from_head = stride_of(from, 2);
  rows.cu_seqlens = data_of<int>(cu_seqlens);
  rows.positions = data_of<int>(positions);
  rows.positions_batch = positions.given() && !packed ? positions.strides[0] : 0;
  rows.seqlen = divisor_of(packed ? 1 : from.shape[1]);
  rows.items_per_head = divisor_of(items_per_head);
  rows.rotated_items = static_cast<int>(rotated);
  rows.items = static_cast<int>(items_per_head * extent_of(from, 2));
  const bool has_sequences = !packed || cu_seqlens.shape[0] > 1;
  rows.rows = !has_sequences ? 0 : static_cast<int>(packed ? from.shape[0] : from.shape[0] * from.shape[1]);
  return rows;
}

void set_destination(const TensorView& to, AppendedRows& rows) {
  const ConstTensorView view = to;
  rows.to = to.data;
  rows.to_batch = to.rank == 3 ? 0 : to.strides[0];
  rows.to_row = stride_of(view, 3);
  rows.to_head = stride_of(view, 2);
}

/// Of heads, or of rows.
void set_scales(const ConstTensorView& scales, const TensorView& row_scales, AppendedRows& rows) {
  if (row_scales.given()) {
    rows.row_scales = static_cast<float*>(row_scales.data);
    rows.scale_batch = row_scales.strides[0];
    rows.scale_head = row_scales.strides[1];
    rows.scale_row = row_scales.strides[2];
    return;
  }
  if (!scales.given()) return;
  rows.scales = data_of<float>(scales);
  rows.scale_batch = scales.shape[0] > 1 ? scales.strides[0] : 0;
  rows.scale_head = scales.shape[1] > 1 ? scales.strides[1] : 0;
}

// The items of one head fit in a block.
static_assert(kMaxHeadDim <= auxiliary::kMostBlockItems && kMaxHeadDimV <= auxiliary::kMostBlockItems);

/// Items of a row that one block takes, of at most `block_items`. Where rows have scales of their own a block has whole
/// heads: at least one, which may have more items than `block_items`.
std::int64_t items_of_chunk(std::int64_t block_items, const AppendedRows& rows) {
  const std::int64_t unit = rows.row_scales == nullptr ? 1 : static_cast<std::int64_t>(rows.items_per_head.divisor);
  const std::int64_t units = rows.items / unit;
  const std::int64_t chunks = ceil_div<std::int64_t>(units, std::max<std::int64_t>(block_items / unit, 1));
  return ceil_div<std::int64_t>(units, chunks) * unit;
}

/// Blocks of about `block_items` items: some rows each, or part of one.
void cut(std::int64_t block_items, AppendedRows& rows) {
  if (rows.rows == 0 || rows.items == 0) return;
  const std::int64_t chunk_items = items_of_chunk(block_items, rows);
  rows.chunks = static_cast<int>(ceil_div<std::int64_t>(rows.items, chunk_items));
  rows.items_of_chunk = divisor_of(chunk_items);
  rows.rows_apart =
      auxiliary::kAppendThreads % chunk_items == 0 ? static_cast<int>(auxiliary::kAppendThreads / chunk_items) : 0;
  rows.rows_per_block =
      rows.chunks > 1 ? 1
                      : static_cast<int>(std::clamp<std::int64_t>(block_items / chunk_items, 1, auxiliary::kMostRows));
  rows.blocks = static_cast<int>(ceil_div(rows.rows, rows.rows_per_block) * rows.chunks);
}

/// Threads take as many items as leave every multiprocessor some blocks.
void cut_all(int multiprocessors, AppendParams& params) {
  const std::array<AppendedRows*, 3> all{&params.k, &params.v, &params.q};
  std::int64_t items = 0;
  for (const AppendedRows* const rows : all) items += static_cast<std::int64_t>(rows->rows) * rows->items;
  constexpr std::int64_t kBlocksPerMultiprocessor = 4;
  const std::int64_t of_thread =
      items / (kBlocksPerMultiprocessor * std::max(multiprocessors, 1) * auxiliary::kAppendThreads);
  const std::int64_t block_items =
      auxiliary::kAppendThreads * std::clamp<std::int64_t>(of_thread, 1, auxiliary::kMostItems);
  for (AppendedRows* const rows : all) cut(block_items, *rows);
}

AppendParams params_of(const AppendArguments& a, const AppendConfig& config) {
  const std::int64_t pairs = a.cos.given() ? a.cos.shape[1] : 0;
  AppendParams params{};
  params.k = rows_of(config, a.k_new, a.cu_seqlens_new, a.positions, pairs);
  AppendConfig as_they_are = config;
  as_they_are.rotation = Rotation::none;
  params.v = rows_of(as_they_are, a.v_new, a.cu_seqlens_new, {}, 0);
  set_destination(a.k_cache, params.k);
  set_destination(a.v_cache, params.v);
  set_scales(a.k_descale, a.k_row_descale, params.k);
  set_scales(a.v_descale, a.v_row_descale, params.v);
  if (a.q.given()) {
    params.q = rows_of(config, a.q, a.cu_seqlens_q, a.positions_q, pairs);
    set_destination(a.q_out, params.q);
  }
  set_places(a, a.k_cache, params);
  params.leftpad = data_of<int>(a.leftpad_k);
  params.q_in_order = a.q_in_order;
  if (pairs > 0) {
    params.cos = a.cos.data;
    params.sin = a.sin.data;
    params.cos_row = a.cos.strides[0];
    params.sin_row = a.sin.strides[0];
    params.pairs = static_cast<int>(pairs);
    params.positions = static_cast<int>(std::min(a.cos.shape[0], kMaxInt));
    params.cos_holds = element_of(a.cos.dtype);
    params.sin_holds = element_of(a.sin.dtype);
  }
  return params;
}

}  // namespace

Result<AppendLaunch> append_launch(const AppendArguments& a, int multiprocessors) {
  // As many items as a row of one head of one column has are more than any other number below.
  for (const ConstTensorView* const rows : {&a.k_new, &a.v_new, &a.q}) {
    if (!rows->given()) continue;
    const std::int64_t count = rows->rank == 3 ? rows->shape[0] : rows->shape[0] * rows->shape[1];
    const std::int64_t elements = extent_of(*rows, 2) * extent_of(*rows, 1);
    const std::int64_t chunks = ceil_div<std::int64_t>(elements, auxiliary::kAppendThreads);
    if (count > kMaxInt || elements > kMaxInt || !(Checked(3) * count * chunks).at_most(kMaxInt)) {
      return Status{StatusCode::unsupported,
                    fmt::format("appending {} rows of {} elements is not supported: the gpu engine takes up to {} "
                                "blocks of {} elements",
                                count, elements, kMaxInt / 3, auxiliary::kAppendThreads)};
    }
  }
  AppendLaunch launch;
  launch.config = config_of(a);
  launch.params = params_of(a, launch.config);
  cut_all(multiprocessors, launch.params);
  launch.blocks = std::int64_t{launch.params.k.blocks} + launch.params.v.blocks + launch.params.q.blocks;
  return launch;
}

}  // namespace strobe::gpu
