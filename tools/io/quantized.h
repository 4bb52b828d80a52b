// SPDX-License-Identifier: Apache-2.0
// 8-bit operands that own their host memory.
#pragma once

#include "io/host_tensor.h"
#include "strobe/quantize.h"

namespace strobe::io {

struct Quantized {
  HostTensor q8, k8, v8, q_descale, k_descale, v_descale, q_shift;
  Rotation v_rotation;

  /// The operands of a forward. Outputs, sequences and everything else are for the caller to add.
  ForwardArguments arguments() const;
};

/// q, k and v in host memory as quantize() writes them; packed as `sequences` say.
Result<Quantized> quantized(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                            const QuantizeOptions& options, const Execution& execution = {},
                            const Sequences& sequences = {});

}  // namespace strobe::io
