// SPDX-License-Identifier: Apache-2.0
/* A small forward and backward with known results: one query, two keys, head_dim 1, scores (q k_0, q k_1). */
#pragma once

#include "strobe/strobe.h"

typedef struct two_keys {
  float q[1], k[2], v[2], o[1], lse[1], d_o[1], dq[1], dk[2], dv[2];
} two_keys;

/* q = 1.5, k = (1, 0), v = (3, -1), dO = 2; scale 1 must be given. */
two_keys make_two_keys(void);

/* A contiguous float32 tensor [1, rows, 1, 1]. */
strobe_tensor column_of(float* data, int64_t rows);

/* A contiguous tensor of rank 1. */
strobe_tensor vector_of(void* data, int32_t dtype, int64_t length);

strobe_forward_arguments forward_of(two_keys* call);
strobe_backward_arguments backward_of(two_keys* call);
strobe_options unit_scale(void);

/* What O, LSE and the gradients of make_two_keys() come to. */
double expected_p(void);
double expected_o(void);
