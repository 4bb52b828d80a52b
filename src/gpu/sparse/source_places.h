// SPDX-License-Identifier: Apache-2.0
// How the rows of a source lie as pages of one row each, which a forward reads through a page table, or are found to be
// converted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "call/problem.h"
#include "strobe/sparse.h"

namespace strobe::gpu {

/// Row `row` of page, batch entry or pool page `page` is place page * page_step + row * row_step, and with lists of
/// their own for key heads, head more.
struct SourcePlaces {
  ConstTensorView k, v;  // [places, 1, heads, columns]: heads is 1 where each key head has lists of its own
  std::int64_t page_step = 0;
  std::int64_t row_step = 1;
  std::int64_t list_step = 0;

  // Of rows that are converted to q's dtype: then k and v are the source's, a place is a row of all its heads, and
  // these are their formats; V's is none where V is part of K.
  RowFormat k_format{}, v_format{};
  bool in_place = false;       // the forward converts them as it reads them: else a kernel does before, list by list
  std::string not_in_place{};  // why it does not

  bool in_format() const { return k_format.given(); }
  bool converted() const { return in_format() && !in_place; }
  bool v_apart() const { return v_format.given(); }
};

/// unsupported where k and v of a source have another dtype than q. `name`: of the source.
Status check_elements(const SparseSource& source, const std::string& name, DType dtype);

/// Of source `index`. `lists`: of a query, 1 or as many as key heads. unsupported, naming what the engine takes, for
/// formats that it lacks, and for strides of rows that are not converted and no multiples of each other.
Result<SourcePlaces> source_places(const SparseForwardArguments& arguments, std::size_t index, std::int64_t lists);

}  // namespace strobe::gpu
