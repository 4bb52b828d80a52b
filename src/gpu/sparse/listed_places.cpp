// SPDX-License-Identifier: Apache-2.0
#include "gpu/sparse/listed_places.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "call/checked.h"

namespace strobe::gpu {
namespace {

const int* ints_of(const ConstTensorView& tensor) { return static_cast<const int*>(tensor.data); }

/// Of a tensor that has q's leading axes.
auxiliary::QueryStrides query_strides(const ConstTensorView& tensor, bool packed) {
  return packed ? auxiliary::QueryStrides{0, tensor.strides[0]}
                : auxiliary::QueryStrides{tensor.strides[0], tensor.strides[1]};
}

}  // namespace

std::int64_t list_width(const SparseSource& source) {
  const std::int64_t topk = source.indices.shape[static_cast<std::size_t>(source.indices.rank - 1)];
  return std::max<std::int64_t>((Checked(topk) * source.block_size).value(), 1);
}

runtime::Variant listed_places_variant(const auxiliary::ListedPlacesConfig& config, std::string_view architecture) {
  return {.name = fmt::format("rows of lists ({})", short_text(config)),
          .include = "kernels/auxiliary/listed_places.h",
          .expression = fmt::format("strobe::auxiliary::find_listed_places<{}>", cpp_text(config)),
          .architecture = std::string(architecture),
          .options = {}};
}

auxiliary::ListedPlacesParams listed_places_params(const SparseForwardArguments& arguments, std::size_t index,
                                                   const SourcePlaces& places, std::int64_t lists) {
  const SparseSource& source = arguments.sources[index];
  const bool packed_q = arguments.q.rank == 3;
  const bool packed_k = source.k.rank == 3;
  const bool in_pages = source.page_table.given();
  const std::int64_t rows = source.k.shape[packed_k ? 0 : 1];
  const auto last = static_cast<std::size_t>(source.indices.rank - 1);
  auxiliary::ListedPlacesParams params{};
  params.indices = ints_of(source.indices);
  params.index_strides = query_strides(source.indices, packed_q);
  params.index_list_stride = source.indices.shape[last - 1] > 1 ? source.indices.strides[last - 1] : 0;
  params.topk_length = ints_of(source.topk_length);
  if (source.topk_length.given()) params.length_strides = query_strides(source.topk_length, packed_q);
  params.cu_seqlens_q = ints_of(arguments.cu_seqlens_q);
  params.cu_seqlens_k = ints_of(source.cu_seqlens_k);
  params.seqused_k = ints_of(source.seqused_k);
  params.page_table = ints_of(source.page_table);
  params.table_sequence_stride = source.page_table.strides[0];
  params.table_page_stride = source.page_table.strides[1];
  params.by_page_size = Divisor::of(static_cast<int>(std::max<std::int64_t>(rows, 1)));
  params.pages = Checked(source.k.shape[0]).value<int>();
  params.sequences = Checked(!packed_q                        ? arguments.q.shape[0]
                             : arguments.cu_seqlens_q.given() ? arguments.cu_seqlens_q.shape[0] - 1
                                                              : 1)
                         .value<int>();
  params.seqlen_q = Checked(arguments.q.shape[packed_q ? 0 : 1]).value<int>();
  const Checked capacity = in_pages         ? Checked(source.page_table.shape[1]) * rows
                           : source.in_pool ? Checked(source.k.shape[0]) * rows
                                            : Checked(rows);
  params.seqlen_k = capacity.value<int>();
  params.lists = static_cast<int>(lists);
  params.topk = static_cast<int>(source.indices.shape[last]);
  params.block_size = static_cast<int>(source.block_size);
  params.packed_q = packed_q;
  params.batched_k = !packed_k && !in_pages && !source.in_pool;
  params.in_pool = source.in_pool;
  params.causal = source.causal;
  params.page_step = places.page_step;
  params.row_step = places.row_step;
  params.list_step = static_cast<int>(places.list_step);
  params.width = Checked(list_width(source)).value<int>();
  return params;
}

}  // namespace strobe::gpu
