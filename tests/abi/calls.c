// SPDX-License-Identifier: Apache-2.0
#include "calls.h"

#include <math.h>

two_keys make_two_keys(void) {
  const two_keys call = {.q = {1.5F}, .k = {1.0F, 0.0F}, .v = {3.0F, -1.0F}, .d_o = {2.0F}};
  return call;
}

strobe_tensor column_of(float* data, int64_t rows) {
  const strobe_tensor tensor = {.data = data, .rank = 4, .shape = {1, rows, 1, 1}, .strides = {rows, 1, 1, 1}};
  return tensor;
}

strobe_tensor vector_of(void* data, int32_t dtype, int64_t length) {
  const strobe_tensor tensor = {.data = data, .dtype = dtype, .rank = 1, .shape = {length}, .strides = {1}};
  return tensor;
}

strobe_forward_arguments forward_of(two_keys* call) {
  strobe_forward_arguments arguments = {.struct_size = sizeof arguments};
  arguments.q = column_of(call->q, 1);
  arguments.k = column_of(call->k, 2);
  arguments.v = column_of(call->v, 2);
  arguments.o = column_of(call->o, 1);
  arguments.lse = column_of(call->lse, 1);
  arguments.lse.rank = 3;
  return arguments;
}

strobe_backward_arguments backward_of(two_keys* call) {
  const strobe_forward_arguments from = forward_of(call);
  strobe_backward_arguments arguments = {.struct_size = sizeof arguments};
  arguments.q = from.q;
  arguments.k = from.k;
  arguments.v = from.v;
  arguments.o = from.o;
  arguments.lse = from.lse;
  arguments.d_o = column_of(call->d_o, 1);
  arguments.dq = column_of(call->dq, 1);
  arguments.dk = column_of(call->dk, 2);
  arguments.dv = column_of(call->dv, 2);
  return arguments;
}

strobe_options unit_scale(void) {
  const strobe_options options = {.struct_size = sizeof options, .scale = 1.0F, .has_scale = 1};
  return options;
}

double expected_p(void) { return 1.0 / (1.0 + exp(-1.5)); }

double expected_o(void) { return 3.0 * expected_p() - (1.0 - expected_p()); }
