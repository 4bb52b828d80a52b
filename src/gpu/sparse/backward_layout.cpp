// SPDX-License-Identifier: Apache-2.0
#include "gpu/sparse/backward_layout.h"

#include <algorithm>
#include <bit>

#include "call/checked.h"
#include "gpu/plan/append_part.h"
#include "gpu/sparse/listed_places.h"
#include "kernels/auxiliary/sparse_backward/params.h"

namespace strobe::gpu {
namespace {

constexpr std::int64_t kWaveBytes = std::int64_t{256} << 20;  // at least, where a query needs less
constexpr auto kFloatBytes = static_cast<std::int64_t>(sizeof(float));
constexpr std::int64_t kWeightBytes = 2;

std::int64_t extent(const ConstTensorView& tensor, int from_last) {
  return tensor.shape[static_cast<std::size_t>(tensor.rank - from_last)];
}

SparseGradientRows rows_of_source(const SparseForwardArguments& a, std::size_t index, std::int64_t first_key) {
  const SparseSource& source = a.sources[index];
  SparseGradientRows rows;
  rows.index = index;
  rows.page_rows = extent(source.k, 3);
  rows.rows = (Checked(source.k.rank == 4 ? source.k.shape[0] : 1) * rows.page_rows).value();
  rows.lists = extent(source.indices, 2);
  rows.width = list_width(source);
  rows.first_key = first_key;
  rows.columns = auxiliary::float_columns(static_cast<int>(extent(source.k, 1)));
  if (source.v.given()) {
    rows.first_v_column = rows.columns;
    rows.columns += auxiliary::float_columns(static_cast<int>(extent(source.v, 1)));
  }
  return rows;
}

/// Bytes of a wave that each of its queries takes.
std::int64_t bytes_of_query(const SparseGradientLayout& layout) {
  Checked bytes = Checked(layout.heads_kv) * layout.unit_keys *
                  auxiliary::weight_heads(static_cast<int>(layout.group)) * 2 * kWeightBytes;
  for (const SparseGradientRows& source : layout.sources) {
    bytes = bytes + Checked(source.lists) * (Checked(source.width) + 1) * sizeof(int) +
            Checked(layout.heads_kv) * source.width * source.columns * kFloatBytes;
  }
  return bytes.value();
}

/// Bytes of all waves: LSE, D and the sums.
std::int64_t bytes_of_call(const SparseGradientLayout& layout) {
  constexpr std::int64_t kNumbersOfRow = 3;
  Checked bytes = Checked(layout.heads_q) * layout.padded_rows * kNumbersOfRow * kFloatBytes;
  for (const SparseGradientRows& source : layout.sources) {
    bytes = bytes + Checked(source.rows) * layout.heads_kv * source.columns * kFloatBytes;
  }
  return bytes.value();
}

/// Bytes of a wave: what the pool of workspaces, whose sizes are powers of two, has beside those of the call.
std::int64_t wave_bytes(const SparseGradientLayout& layout) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;
  constexpr std::int64_t kGaps = std::int64_t{64} << 10;  // between what is aligned
  const std::int64_t of_call = (Checked(bytes_of_call(layout)) + kGaps).value();
  const auto whole = std::bit_ceil((Checked(of_call) + kWaveBytes).value<std::uint64_t>());
  return std::min(static_cast<std::int64_t>(whole) - of_call, kMostBytes);
}

/// Places what all kernels share.
void place(SparseGradientLayout& layout) {
  const auto take = [&](Checked bytes) { return append_part(layout.bytes, bytes); };
  const Checked rows = Checked(layout.heads_q) * layout.padded_rows * kFloatBytes;
  layout.lse_log2 = take(rows);
  layout.row_max = take(rows);
  layout.d_sum = take(rows);
  const Checked units = Checked(layout.wave) * layout.heads_kv;
  const Checked weights =
      units * layout.unit_keys * auxiliary::weight_heads(static_cast<int>(layout.group)) * kWeightBytes;
  layout.p = take(weights);
  layout.ds = take(weights);
  for (SparseGradientRows& source : layout.sources) {
    source.sums = take(Checked(source.rows) * layout.heads_kv * source.columns * kFloatBytes);
    const Checked lists = Checked(layout.wave) * source.lists;
    source.places = take(lists * source.width * sizeof(int));
    source.counts = take(lists * sizeof(int));
    source.shares = take(units * source.width * source.columns * kFloatBytes);
  }
}

}  // namespace

SparseGradientLayout sparse_gradient_layout(const SparseForwardArguments& a) {
  SparseGradientLayout layout;
  layout.packed = a.q.rank == 3;
  layout.entries = layout.packed ? 1 : a.q.shape[0];
  layout.seqlen_q = extent(a.q, 3);
  layout.heads_q = extent(a.q, 2);
  layout.heads_kv = extent(a.sources[0].k, 2);
  layout.group = layout.heads_kv == 0 ? 0 : layout.heads_q / layout.heads_kv;
  layout.head_dim = extent(a.q, 1);
  layout.head_dim_v = extent(a.o, 1);
  for (std::size_t i = 0; i < a.sources.size(); ++i) {
    if (!a.sources[i].k.given()) continue;
    layout.sources.push_back(rows_of_source(a, i, layout.unit_keys));
    layout.unit_keys = (Checked(layout.unit_keys) + layout.sources.back().width).value();
  }
  constexpr std::int64_t kRowsAtOnce = 4;
  const std::int64_t queries = (Checked(layout.entries) * layout.seqlen_q).value();
  layout.padded_rows = round_up(Checked(queries), kRowsAtOnce).value();
  const std::int64_t most = wave_bytes(layout) / std::max<std::int64_t>(1, bytes_of_query(layout));
  layout.wave = std::clamp<std::int64_t>(most, 1, std::max<std::int64_t>(queries, 1));
  place(layout);
  return layout;
}

}  // namespace strobe::gpu
