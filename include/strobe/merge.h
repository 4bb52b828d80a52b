// SPDX-License-Identifier: Apache-2.0
// Attention over several sets of keys, merged into attention over all of them: for a prefix that sequences share, for a
// cache that lies in several places, and for keys that were split among devices.
//
// Source: Dao et al., "FlashAttention" (2022), section 3.1; Dao, "FlashAttention-2" (2023), section 2.3.1.
#pragma once

#include <cstdint>
#include <span>

#include "strobe/attention.h"
#include "strobe/export.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe {

/// What forward() wrote for some of the keys. @stable
struct PartialResult {
  ConstTensorView o{};    // [batch, seqlen_q, heads_q, head_dim_v], or packed [total_q, heads_q, head_dim_v]
  ConstTensorView lse{};  // float32 [batch, heads_q, seqlen_q], or packed [heads_q, total_q]: natural logarithms
};

/// @stable
inline constexpr std::int64_t kMaxMergedParts = 256;

/// The tensors of a merge. The parts' o share a shape and a dtype, float32, float16 or bfloat16, and each key belongs
/// to one part (a sink, too: give it to one of the forwards alone). @stable
struct MergeArguments {
  std::span<const PartialResult> parts{};  // from 1 to kMaxMergedParts
  TensorView o{};                          // of the parts' shape; float32, float16 or bfloat16
  TensorView lse{};                        // optional: of the parts' shape
};

/// LSE = log(sum exp(LSE_i)) and O = sum exp(LSE_i - LSE) O_i, in float32. On a GPU it returns once the kernel is
/// queued on execution.stream. The same call gives the same bits every time. Outputs must not overlap any other tensor.
///
/// - A part whose LSE is -inf saw no key: its O is not read into the result, whatever it holds. A row of which all
///   parts are such gets O = 0 and LSE = -inf.
/// - A row with an LSE that is NaN or +inf gets O = NaN and LSE = NaN.
/// - An element of another part's O that is not finite makes that element of the result not finite.
///
/// Reads of `execution` the engine, stream, threads and parallel_for; there is no workspace. invalid_argument for
/// tensors that contradict the shapes above; unsupported where the device's engines have no merge. @stable
STROBE_API Status merge(const MergeArguments& arguments, const Execution& execution = {});

/// What merge_backward() writes for a part; float32, float16 or bfloat16 d_o of the part's shape, float32 d_lse.
/// @experimental
struct PartialGradient {
  TensorView d_o{};
  TensorView d_lse{};
};

/// The tensors of a merge's gradient. The parts are those that were merged. @experimental
struct MergeBackwardArguments {
  std::span<const PartialResult> parts{};
  ConstTensorView d_o{};                         // of the merged o: of the parts' shape; float32, float16 or bfloat16
  ConstTensorView d_lse{};                       // optional: of the merged lse
  std::span<const PartialGradient> gradients{};  // as many as parts; their d_o share a dtype
};

/// The gradient of merge(), with w_i = exp(LSE_i - LSE) and D_i the product of the rows of dO and O_i:
/// dO_i = w_i dO, dLSE_i = w_i (D_i - sum w_j D_j + dLSE). Sums are float32 and in one order, weights float64.
///
/// A part whose LSE is -inf has no gradient: 0 is written, whatever its o holds. A row with an LSE that is NaN or +inf
/// has NaN. invalid_argument as merge; unsupported on GPUs, whose engines do not have it. @experimental
STROBE_API Status merge_backward(const MergeBackwardArguments& arguments, const Execution& execution = {});

}  // namespace strobe
