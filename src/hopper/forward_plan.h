// Kernel, tiles and schedule of the Hopper forward: a pure function of the problem and the device's shape.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "call/problem.h"
#include "kernels/hopper/forward/config.h"
#include "kernels/hopper/forward/params.h"
#include "runtime/variant.h"
#include "strobe/status.h"

namespace strobe::hopper {

/// What the plan must know of the device.
struct HopperShape {
  int multiprocessors = 0;
  std::size_t l2_bytes = 0;
};

struct HopperForwardPlan {
  KernelConfig config;
  int m_tiles = 0;                       // tiles of one sequence and head: config.cluster x block_m rows each
  int tiles = 0;                         // in all; 0: there is nothing to compute
  int lanes = 0;                         // CTAs or clusters that walk over the tiles
  std::shared_ptr<const TileList> list;  // listed variants: what each of them computes
};

/// The plan, or in one sentence what this engine does not do. Pointers and strides are not known here.
Result<HopperForwardPlan> hopper_forward_plan(const AttentionProblem& problem, const HopperShape& shape);

/// The variant for a problem, without a schedule.
Result<KernelConfig> hopper_forward_config(const AttentionProblem& problem, const HopperShape& shape);

/// The plan of a given variant that fits the problem: for measurements of the variant's own fields.
HopperForwardPlan hopper_forward_plan(const AttentionProblem& problem, const HopperShape& shape,
                                      const KernelConfig& config);

/// Keys on either side of the diagonal that a query sees, where the diagonal ends, and chunks. A chunk bounds both
/// sides: one that has no bound of its own reaches beyond all keys.
struct Band {
  bool bounded_left = false;
  bool bounded_right = false;
  int left = 0;
  int right = 0;
  bool bottom_right = true;
  int chunk = 0;  // 0: keys are not in chunks
};
Band band_of(const AttentionProblem& problem);

/// The kernel of a variant, for the kernel store.
runtime::Variant hopper_forward_variant(const KernelConfig& config);

/// The plan in a few lines of text.
std::string explain(const AttentionProblem& problem, const HopperForwardPlan& plan);

}  // namespace strobe::hopper
