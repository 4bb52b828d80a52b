// SPDX-License-Identifier: Apache-2.0
// K and V to shared memory by TMA, a feeder each: each walks over the tiles by itself, into a ring of its own, so
// neither waits for the other's consumers. See tile/tensor_map.h for the axes of the maps.
#pragma once

#include "kernels/sm90/forward/barriers.h"
#include "kernels/sm90/forward/produce/key_cursor.h"
#include "kernels/sm90/forward/produce/key_tags.h"
#include "kernels/sm90/forward/produce/scales.h"
#include "kernels/sm90/forward/produce/stage.h"
#include "kernels/sm90/forward/tile/rows.h"

namespace strobe::sm90::forward {

/// Blocks of K, or with `values` of V, right to left over each tile. With 8-bit V come the scales of both.
template <Config C, bool values>
class KeyFeeder {
 public:
  using StageBarriers = uint64_t (&)[C.stages];

  __device__ __forceinline__ KeyFeeder(const TensorMap& map, const Params& params, const ScheduleOf<C>& schedule,
                                       unsigned char* smem, StageBarriers full, StageBarriers empty)
      : map_(map), params_(params), cursor_(params, schedule), smem_(smem), full_(full), empty_(empty) {}

  /// The next block, of the next tile where this one's are done. False when there is none.
  __device__ __forceinline__ bool feed() {
    if (!cursor_.next()) {
      return false;
    }
    const SequenceStart rows =
        kTransposed ? SequenceStart{{0, 0}, cursor_.work().tile.sequence} : key_start<C>(params_, cursor_.work());
    const int head = cursor_.head();
    const int first = cursor_.block() * C.block_n;
    uint64_t& full = full_[at_.stage];
    const KeyTags<C, values> tags(cursor_);
    if constexpr (kTransposed) {
      const ScaleFeeder<C> scales(params_, cursor_.work(), head, cursor_.block());
      wait<C>(empty_[at_.stage], at_.parity);
      scales.store(smem_ + kPlan.scales + at_.stage * scale_bytes(C));
    } else {
      wait<C>(empty_[at_.stage], at_.parity);
    }
    if (this_thread_feeds<C>()) {
      tags.store(smem_, at_.stage);
      if (cursor_.has_none()) {
        cuda::ptx::mbarrier_arrive(&full);
      } else {
        load_panels(
            map_, !C.entries || rows.batch != kNoEntry, kPanels, kStageBytes / kPanels,
            smem_ + (values ? kPlan.v : kPlan.k) + at_.stage * kStageBytes, full,
            [&](int panel) { return box_of(rows, panel * kColumns<C>, first, head); }, tags.bits_bytes());
        tags.load_bits(params_, cursor_, smem_, at_.stage, full);
      }
    } else if constexpr (kTransposed && C.debug) {
      arrive<C>(full);  // this lane has written scales
    }
    at_.advance();
    return true;
  }

 private:
  static constexpr bool kTransposed = values && eight_bit(C);

  /// Of a panel `along` a row of the stage.
  __device__ __forceinline__ BoxStart box_of(const SequenceStart& rows, int along, int first, int head) const {
    if constexpr (!kTransposed) {
      return rows.box(along, first, head);
    } else if (is_packed_value<C>(params_)) {
      return packed_value_box<C>(params_, cursor_.work(), first + along, head);
    } else {
      // V that lies transposed has keys as columns, which no bound ends: zeros and what is hidden meet there.
      return rows.box(first + along, 0, head);
    }
  }

  static constexpr int kPanels = kTransposed ? panels_of_bytes(C.block_n)
                                 : values    ? panels(C.head_dim_v)
                                             : kRowPanels<C>;
  static constexpr SmemPlan kPlan = smem_plan(C);
  static constexpr int kStageBytes = values ? kPlan.v_bytes : kPlan.k_bytes;

  const TensorMap& map_;
  const Params& params_;
  typename KeyTags<C, values>::Cursor cursor_;
  unsigned char* smem_;
  StageBarriers full_;
  StageBarriers empty_;
  RingPosition<C.stages> at_{0, 1};
};

}  // namespace strobe::sm90::forward
