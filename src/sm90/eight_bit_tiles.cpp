// SPDX-License-Identifier: Apache-2.0
#include "sm90/eight_bit_tiles.h"

#include <algorithm>
#include <array>

#include "call/eight_bit.h"
#include "gpu/params/element.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/tile_candidates.h"
#include "sm90/tile_fit.h"

namespace strobe::sm90 {
namespace {

using forward::Config;
using forward::Loop;

/// What registers leave the choice of, beside stages.
struct Shape {
  Loop loop;
  int warpgroups, block_n;
  bool ping_pong;
};

// Integers' probabilities are rounded relative to the largest of kProbabilityKeys, whatever the tiles; their time is
// that of instructions, not of products, and turns cost some. log: int8-early-exponentials
constexpr Shape kIntegers{Loop::eight_bit, 2, kProbabilityKeys, false};
constexpr Shape kFloats{Loop::eight_bit, 2, kProbabilityKeys, true};
// Registers, or memory for sums, hold no block of scores beside P of the one before.
constexpr Shape kWideIntegers{Loop::eight_bit_serial, 2, kProbabilityKeys, false};
constexpr Shape kWideFloats{Loop::eight_bit_serial, 2, kProbabilityKeys, true};
// One step after another, registers hold a third and a fourth warpgroup, whose exponentials run under the others'
// products. log: sm90-forward-one-step-after-another-table
constexpr Shape kThreeWarpgroups{Loop::eight_bit_serial, 3, kProbabilityKeys, false};
constexpr Shape kFourWarpgroups{Loop::eight_bit_serial, 4, 96, false};

Shape shape_of(const Config& call, const AttentionProblem& problem) {
  constexpr std::int64_t kLeastKeys = 4096;  // log: sm90-forward-one-step-after-another-table
  const ScoreRule& rule = call.rule;
  const bool integers = call.operands == Element::int8;
  const bool by_rows = call.keys_per_value_scale == 1;
  const int widest = std::max(call.head_dim, call.head_dim_v);
  if (call.head_dim_v > 128 || (call.head_dim > 128 && !integers)) return integers ? kWideIntegers : kWideFloats;
  const bool plain = !rule.mask_left && !rule.sink && !rule.softcap && !rule.alibi;
  // Integers with V scales by rows: as registers allow.
  const bool pays_by_rows =
      widest <= 64 ? problem.seqlen_k >= kLeastKeys : !is_masked(rule) && !rule.scale_first && !call.float_output;
  if (integers) return plain && (!by_rows || pays_by_rows) ? kThreeWarpgroups : kIntegers;
  if (!plain || by_rows) return kFloats;
  return widest <= 64 ? kFourWarpgroups : kThreeWarpgroups;
}

}  // namespace

Config with_eight_bit_operands(const Config& call, const AttentionProblem& problem) {
  const EightBitShape& shape = problem.eight_bit;
  const bool integers = problem.dtype == DType::int8;
  const int shared = integers ? kProbabilityKeys : forward::kKeysPerScale;
  Config config = call;
  config.operands = gpu::element_of(problem.dtype);
  config.rotated_columns = shape.v_rotated ? static_cast<int>(problem.head_dim_v) : 0;
  config.float_output = shape.output == DType::float32;
  config.keys_per_value_scale = shape.v_rows >= problem.seqlen_k || shape.v_rows % shared == 0 ? shared : 1;
  return config;
}

Config with_eight_bit_tiles(const Config& call, const AttentionProblem& problem) {
  const Shape shape = shape_of(call, problem);
  const auto tiles = [&](int stages, int q_stages) {
    return Tiles{shape.warpgroups, shape.block_n, stages, q_stages, 1, shape.ping_pong};
  };
  Config with_loop = call;
  with_loop.loop = shape.loop;
  if (call.rule.varlen) with_loop.schedule = Schedule::sorted;  // whose table must fit, too
  return first_that_fits(with_loop, std::array{tiles(4, 2), tiles(3, 2), tiles(2, 2), tiles(2, 1)}, fits_shared_memory);
}

}  // namespace strobe::sm90
