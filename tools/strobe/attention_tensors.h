// The tensors of one attention call, owned; and ways to fill them.
#pragma once

#include <cstdint>
#include <vector>

#include "flags.h"
#include "io/host_tensor.h"
#include "strobe/attention.h"

namespace strobe::program {

/// Batched layout, contiguous. A pass's outputs are there after allocate_outputs().
struct AttentionTensors {
  io::HostTensor q, k, v, d_o;
  io::HostTensor o, lse, dq, dk, dv;

  /// Outputs for both passes in the shapes that q, k and v imply; q and v have rank 4.
  void allocate_outputs();

  ForwardArguments forward();
  BackwardArguments backward();
};

/// The same arguments for planning: shapes and dtype, no data.
ForwardArguments planned_forward(const Shape& shape, DType dtype);
BackwardArguments planned_backward(const Shape& shape, DType dtype);

enum class Distribution {
  normal,    // N(0, 1)
  outliers,  // N(0, 1) + N(0, 100) * Bernoulli(0.001), variance 100: FlashAttention-3 (2024), section 4.3
};

/// q, k and v from `distribution`, d_o from N(0, 1), and zeroed outputs. An element depends on seed, tensor and
/// position alone, so that every machine draws the same.
AttentionTensors random_tensors(const Shape& shape, DType dtype, Distribution distribution, std::uint64_t seed);

/// Rounds to `dtype` (float32, float16 or bfloat16) through float32; int32 is left as it is.
io::HostTensor converted(const io::HostTensor& tensor, DType dtype);

}  // namespace strobe::program
