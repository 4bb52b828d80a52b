// SPDX-License-Identifier: Apache-2.0
#include "gpu/sparse/backward_params.h"

#include <algorithm>
#include <cmath>

#include "call/arithmetic.h"
#include "call/checked.h"
#include "gpu/params/rows.h"
#include "gpu/sparse/listed_places.h"
#include "kernels/math/constants.h"

namespace strobe::gpu {
namespace {

Divisor divisor_of(std::int64_t number) { return Divisor::of(Checked(std::max<std::int64_t>(number, 1)).value<int>()); }

}  // namespace

Rows SparseGradientParams::rows_of(std::string_view name, const ConstTensorView& tensor) const {
  return gpu::rows_of({name, tensor}, b_.forward.q.dtype);
}

auxiliary::SparsePrepareParams SparseGradientParams::prepare() const {
  const ConstTensorView lse = b_.forward.lse;
  const std::size_t heads_axis = layout_.packed ? 0 : 1;
  auxiliary::SparsePrepareParams params{};
  params.o = rows_of("o", b_.forward.o);
  params.d_o = rows_of("d_o", b_.d_o);
  params.lse = static_cast<const float*>(lse.data);
  params.lse_batch_stride = layout_.packed ? 0 : lse.strides[0];
  params.lse_head_stride = lse.strides[heads_axis];
  params.lse_row_stride = lse.strides[heads_axis + 1];
  params.d_lse = static_cast<const float*>(b_.d_lse.data);
  params.d_lse_batch_stride = layout_.packed ? 0 : b_.d_lse.strides[0];
  params.d_lse_head_stride = b_.d_lse.strides[heads_axis];
  params.d_lse_row_stride = b_.d_lse.strides[heads_axis + 1];
  params.by_seqlen_q = divisor_of(layout_.seqlen_q);
  params.queries = Checked(layout_.queries()).value<int>();
  params.heads = static_cast<int>(layout_.heads_q);
  params.head_dim_v = static_cast<int>(layout_.head_dim_v);
  params.lse_log2 = at<float>(layout_.lse_log2);
  params.row_max = at<float>(layout_.row_max);
  params.d_sum = at<float>(layout_.d_sum);
  params.rows = layout_.padded_rows;
  return params;
}

auxiliary::SparseBackwardParams SparseGradientParams::products(const SparseOptions& options) const {
  auxiliary::SparseBackwardParams params{};
  for (const SparseGradientRows& source : layout_.sources) {
    params.sources[params.source_count++] = rows_of_source(source);
  }
  params.q = rows_of("q", b_.forward.q);
  params.d_o = rows_of("d_o", b_.d_o);
  params.dq = rows_of("dq", b_.dq);
  params.by_seqlen_q = divisor_of(layout_.seqlen_q);
  params.heads_kv = static_cast<int>(layout_.heads_kv);
  params.group = static_cast<int>(layout_.group);
  params.head_dim = static_cast<int>(layout_.head_dim);
  params.head_dim_v = static_cast<int>(layout_.head_dim_v);
  params.unit_keys = Checked(layout_.unit_keys).value<int>();
  params.scale = options.scale.value_or(1.0F / std::sqrt(static_cast<float>(layout_.head_dim)));
  params.scale_log2 = params.scale * kLog2E;
  if (options.softcap != 0.0F) {
    params.cap_scale = params.scale / options.softcap;
    params.cap_log2 = options.softcap * kLog2E;
  }
  params.lse_log2 = at<float>(layout_.lse_log2);
  params.d_sum = at<float>(layout_.d_sum);
  params.rows = layout_.padded_rows;
  params.p = at<unsigned short>(layout_.p);
  params.ds = at<unsigned short>(layout_.ds);
  return params;
}

auxiliary::SparseRows SparseGradientParams::rows_of_source(const SparseGradientRows& source) const {
  const SparseSource& of = b_.forward.sources[source.index];
  auxiliary::SparseRows rows{};
  rows.k = rows_of("k", of.k);
  rows.v = of.v.given() ? rows_of("v", of.v) : rows.k;
  rows.by_page_rows = divisor_of(source.page_rows);
  rows.places = at<int>(source.places);
  rows.counts = at<int>(source.counts);
  rows.lists = static_cast<int>(source.lists);
  rows.width = Checked(source.width).value<int>();
  rows.first_key = static_cast<int>(source.first_key);
  rows.v_apart = of.v.given();
  rows.first_v_column = static_cast<int>(source.first_v_column);
  rows.columns = static_cast<int>(source.columns);
  rows.shares = at<float>(source.shares);
  return rows;
}

auxiliary::ListedPlacesParams SparseGradientParams::places(const SparseGradientRows& source, std::int64_t first) const {
  const SourcePlaces places{.k = {}, .v = {}, .page_step = source.page_rows, .row_step = 1, .list_step = 0};
  auxiliary::ListedPlacesParams params = listed_places_params(b_.forward, source.index, places, source.lists);
  params.first_query = static_cast<int>(first);
  params.places = at<int>(source.places);
  params.counts = at<int>(source.counts);
  return params;
}

auxiliary::SparseSumParams SparseGradientParams::sum(const SparseGradientRows& source, std::int64_t queries,
                                                     std::int64_t ctas) const {
  auxiliary::SparseSumParams params{};
  params.places = at<int>(source.places);
  params.counts = at<int>(source.counts);
  params.queries = static_cast<int>(queries);
  params.lists = static_cast<int>(source.lists);
  params.width = static_cast<int>(source.width);
  params.by_width = divisor_of(source.width);
  params.heads_kv = static_cast<int>(layout_.heads_kv);
  params.shares = at<float>(source.shares);
  params.sums = at<float>(source.sums);
  params.columns = static_cast<int>(source.columns);
  // Ranges of rows that fill the device: more would only read the lists more often.
  const std::int64_t ranges = std::max<std::int64_t>(1, ctas / layout_.heads_kv);
  params.rows_of_cta = static_cast<int>(std::max<std::int64_t>(1, ceil_div(source.rows, ranges)));
  return params;
}

auxiliary::SparseStoreParams SparseGradientParams::store(const SparseGradientRows& source) const {
  const SparseSourceGradient& gradient = b_.gradients[source.index];
  auxiliary::SparseStoreParams params{};
  params.sums = at<float>(source.sums);
  params.by_page_rows = divisor_of(source.page_rows);
  params.by_heads = divisor_of(layout_.heads_kv);
  params.rows = (Checked(source.rows) * layout_.heads_kv).value<int>();
  params.columns = static_cast<int>(source.columns);
  params.first_v_column = static_cast<int>(source.first_v_column);
  params.head_dim = static_cast<int>(layout_.head_dim);
  params.head_dim_v = static_cast<int>(layout_.head_dim_v);
  params.dk = rows_of("dk", gradient.dk);
  if (gradient.dv.given()) params.dv = rows_of("dv", gradient.dv);
  return params;
}

auxiliary::SinkGradientParams SparseGradientParams::sink() const {
  return {.lse_log2 = at<float>(layout_.lse_log2),
          .row_max = at<float>(layout_.row_max),
          .score_scale = 0.0F,
          .d_sum = at<float>(layout_.d_sum),
          .sink = static_cast<const float*>(b_.forward.sink.data),
          .d_sink = static_cast<float*>(b_.d_sink.data),
          .rows = layout_.padded_rows};
}

}  // namespace strobe::gpu
