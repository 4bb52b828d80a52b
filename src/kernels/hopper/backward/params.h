// SPDX-License-Identifier: Apache-2.0
// What the host hands to the backward kernels beside the tensor maps. Plain C++ without std headers, shared by host and
// device.
#pragma once

#include "kernels/hopper/tile/tensor_map.h"
#include "kernels/math/rows.h"

namespace strobe::hopper::backward {

struct Params {
  // Of every query row, [batch, heads, rows], rows rounded up to whole blocks: what the step before computes.
  const float* lse_log2;  // LSE times log2(e); +inf where a row sees no key or does not exist
  const float* d_sum;     // rowsum(dO O), less the gradient of LSE
  // dQ / scale in float32, [batch, heads, m_blocks] tiles in the order of the accumulators' registers.
  float* dq_sum;
  // By roles: dS^T in tiles of 64 keys x 64 queries, swizzled as in shared memory, [heads of this launch, n, m].
  unsigned char* ds;

  Rows dk, dv;  // what their tensor maps describe, for keys that no query sees

  int batch, heads, heads_kv;
  int head_dim, head_dim_v;  // columns that exist
  int heads_per_kv;
  int seqlen_q, seqlen_k;
  int m_blocks, n_blocks;
  int first_head_kv;  // of batch * heads_kv: where this launch begins; only by roles other than 0
  int items;          // key blocks of all key heads
  int section_heads;  // key heads that are in flight at once, so that what they read and reduce to stays in L2

  int window_left, window_right;  // keys visible on either side of the diagonal, where the variant has that mask
  int diagonal;                   // key on query 0's diagonal

  float scale_log2;  // scores times this are exponents of 2
  float scale;       // dK and dQ are multiplied by it at the end
};

}  // namespace strobe::hopper::backward
