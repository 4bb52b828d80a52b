// SPDX-License-Identifier: Apache-2.0
/* Attention on the CPU through the C interface. Set struct_size in every struct; zero is every other default. */
#include <math.h>
#include <stdio.h>
#include <strobe/strobe.h>

enum { kSeqlen = 256, kHeads = 2, kHeadDim = 64, kElements = kSeqlen * kHeads * kHeadDim };

/* A contiguous float32 tensor [1, seqlen, heads, head_dim]. Strides count elements. */
static strobe_tensor view(float* data) {
  const strobe_tensor tensor = {.data = data,
                                .dtype = STROBE_FLOAT32,
                                .device_type = STROBE_CPU,
                                .rank = 4,
                                .shape = {1, kSeqlen, kHeads, kHeadDim},
                                .strides = {kElements, kHeads * kHeadDim, kHeadDim, 1}};
  return tensor;
}

int main(void) {
  static float q[kElements], k[kElements], v[kElements], o[kElements];
  for (int i = 0; i < kElements; ++i) {
    q[i] = sinf(0.1F * (float)i);
    k[i] = cosf(0.2F * (float)i);
    v[i] = sinf(0.3F * (float)i);
  }

  const strobe_forward_arguments arguments = {
      .struct_size = sizeof arguments, .q = view(q), .k = view(k), .v = view(v), .o = view(o)};
  const strobe_options options = {.struct_size = sizeof options, .causal = STROBE_CAUSAL_BOTTOM_RIGHT};
  if (strobe_forward(&arguments, &options, NULL) != STROBE_OK) {
    fprintf(stderr, "%s\n", strobe_last_error());
    return 1;
  }

  /* The first query sees the first key alone, so its output is that key's value. */
  printf("Strobe %s: o[1] = %.6f, v[1] = %.6f\n", strobe_version(), o[1], v[1]);
  return fabsf(o[1] - v[1]) < 1e-6F ? 0 : 1;
}
