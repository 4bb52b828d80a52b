// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <string>

#include "call/checked.h"
#include "call/row_format.h"
#include "cpu/passes.h"
#include "cpu/sparse/list_split.h"
#include "cpu/sparse/sparse.h"

namespace strobe::cpu {
namespace {

std::int64_t extent(const ConstTensorView& tensor, int from_last) {
  return tensor.shape[static_cast<std::size_t>(tensor.rank - from_last)];
}

std::string rows_text(const SparseSource& source) {
  const auto one = [](const ConstTensorView& rows, const RowFormat& format) {
    return format.given() ? fmt::format("of {} bytes", format.row_bytes) : std::string(name_of(rows.dtype));
  };
  std::string text = one(source.k, source.k_format);
  if (source.v.given()) text += fmt::format(" of K and {} of V", one(source.v, source.v_format));
  return text;
}

}  // namespace

std::string explain_sparse_forward(const SparseForwardArguments& a) {
  const Machine& machine = this_machine();
  std::string text = "engine        cpu: the tensors are in host memory\n";
  text += fmt::format("instructions  {} ({} float32 lanes), float32 accumulation\n", machine.kernels.target,
                      machine.kernels.lanes);
  const std::int64_t queries = (Checked(a.q.rank == 3 ? 1 : a.q.shape[0]) * extent(a.q, 3)).value();
  const std::int64_t heads_kv = extent(a.sources[0].k, 2);
  Checked keys = 0;
  std::string rows;
  for (std::size_t i = 0; i < a.sources.size(); ++i) {
    const SparseSource& source = a.sources[i];
    if (!source.k.given()) continue;
    keys = keys + Checked(extent(source.indices, 1)) * source.block_size;
    rows += fmt::format("source {}      rows {}, converted to float32 as they are read\n", i, rows_text(source));
  }
  const ListSplit split((Checked(queries) * heads_kv).value(), keys.value());
  text += fmt::format("tasks         {} queries by {} key heads", queries, heads_kv);
  text += split.parts > 1 ? fmt::format(", their lists in {} parts of {} keys\n", split.parts, split.places) : "\n";
  return text + rows;
}

}  // namespace strobe::cpu
