// SPDX-License-Identifier: Apache-2.0
#include "eight_bit_needs.h"

namespace strobe::program {
namespace {

using Change = std::function<void(QuantizeOptions&)>;

/// Coarser units of one tensor's scales, the coarsest first, as changes.
std::vector<Change> coarser(ScaleUnit QuantizeOptions::* scales, ScaleUnit than) {
  std::vector<Change> changes;
  for (const ScaleUnit unit : {ScaleUnit::tensor, ScaleUnit::head, ScaleUnit::block, ScaleUnit::group}) {
    if (unit < than) changes.emplace_back([scales, unit](QuantizeOptions& options) { options.*scales = unit; });
  }
  return changes;
}

/// Does without a step, where it is there.
std::vector<Change> without(bool QuantizeOptions::* step, bool given) {
  if (!given) return {};
  return {[step](QuantizeOptions& options) { options.*step = false; }};
}

}  // namespace

Result<MeasuredQuantization> simplest(EightBitCalls& calls, const MeasuredQuantization& best,
                                      const std::function<void()>& step) {
  MeasuredQuantization found = best;
  // Of each group the first change that costs little is made.
  for (const std::vector<Change>& changes : {coarser(&QuantizeOptions::v_scales, best.options.v_scales),
                                             without(&QuantizeOptions::rotate_v, best.options.rotate_v),
                                             without(&QuantizeOptions::center_k, best.options.center_k),
                                             without(&QuantizeOptions::rotate_qk, best.options.rotate_qk),
                                             coarser(&QuantizeOptions::q_scales, best.options.q_scales),
                                             coarser(&QuantizeOptions::k_scales, best.options.k_scales)}) {
    for (const Change& change : changes) {
      MeasuredQuantization tried = found;
      change(tried.options);
      if (Status status = calls.run_eight_bit(tried.options); !status.ok()) return status;
      step();
      tried.rmse = calls.error();
      if (!(tried.rmse <= kNeedTolerance * best.rmse)) continue;
      found = tried;
      break;
    }
  }
  return found;
}

const char* name_of_unit(ScaleUnit unit) {
  switch (unit) {
    case ScaleUnit::tensor: return "tensor";
    case ScaleUnit::head: return "head";
    case ScaleUnit::block: return "block";
    case ScaleUnit::group: return "group";
    case ScaleUnit::row: break;
  }
  return "row";
}

}  // namespace strobe::program
