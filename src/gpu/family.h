// SPDX-License-Identifier: Apache-2.0
// What a family of kernels implements: one object that says which GPUs its kernels are for, and plans calls.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "gpu/call/request.h"
#include "gpu/plan/candidates.h"
#include "gpu/variant/pack_list.h"
#include "strobe/row_format.h"

namespace strobe::gpu {

class Family {
 public:
  Family() = default;
  Family(const Family&) = delete;
  Family& operator=(const Family&) = delete;

  /// The least compute capability that its kernels need: "sm80".
  virtual std::string_view name() const = 0;

  /// Whether its kernels run on this GPU; the Status says why not.
  virtual Status serves(const runtime::CudaDevice& device) const = 0;

  /// Whether it has kernels for q in 8 bits.
  virtual bool takes_eight_bit() const { return false; }

  /// Why the families after it are to be asked first for this call, as their kernels are faster or the only ones; empty
  /// where they are not.
  virtual std::string_view prefers_later(const AttentionProblem&) const { return {}; }

  /// A plan for a problem of that pass on a device that it serves, or unsupported, naming what its kernels lack.
  virtual engine::PlannedCallResult plan_forward(const Request& request) const = 0;
  virtual engine::PlannedCallResult plan_backward(const Request& request) const = 0;

  /// Whether it has a forward that reads and converts K's rows, whose first columns are V, where they lie in a format;
  /// else unsupported, saying why not. The problem's pages are rows.
  virtual Status takes_rows(const AttentionProblem& problem, const DeviceShape& shape, const RowFormat& format) const;
  /// That forward's plan. Its calls have the rows as K, [num_pages, page_size, 1, bytes] or packed, and in the page
  /// table their numbers, counted through the pages.
  virtual engine::PlannedCallResult plan_rows(const Request& request, const RowFormat& format) const;

  /// Adds the kernels that a plan with that choice for the problem's pass would load on a device of that shape, or is
  /// unsupported as the plan is.
  virtual Status list_kernels(const AttentionProblem& problem, const DeviceShape& shape, const Choice& choice,
                              PackList& list) const = 0;

  /// What a tune may choose for a problem of that pass, the rule first; unsupported as the plan is.
  virtual Result<std::vector<Candidate>> candidates(const AttentionProblem& problem,
                                                    const DeviceShape& shape) const = 0;

 protected:
  ~Family() = default;  // families live as long as the program
};

/// The families of this build in order of preference: the first that plans a call takes it.
std::span<const Family* const> families();

}  // namespace strobe::gpu
