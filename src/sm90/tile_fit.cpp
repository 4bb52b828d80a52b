// SPDX-License-Identifier: Apache-2.0
#include "sm90/tile_fit.h"

#include "kernels/score/modifiers/dropout.h"
#include "kernels/sm90/forward/smem.h"
#include "sm90/forward_fields.h"
#include "sm90/forward_registers.h"

namespace strobe::sm90 {

bool fits_shared_memory(const forward::Config& config) {
  return smem_plan(completed(config)).total_bytes <= (config.ctas_per_sm == 2 ? kMaxSmemBytesOfTwo : kMaxSmemBytes);
}

bool fits_options(const forward::Config& config) {
  return (!config.rule.dropout || config.block_n % kDropoutColumns == 0) &&
         config.rule.block_mask % config.block_n == 0;
}

bool fits(const forward::Config& config) {
  return fits_options(config) && fits_registers(config) && fits_shared_memory(config);
}

}  // namespace strobe::sm90
