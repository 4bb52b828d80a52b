// SPDX-License-Identifier: Apache-2.0
/* Quantisation and the forward on 8-bit tensors through the C ABI. */
#include "calls.h"
#include "check.h"

/* A contiguous tensor of rank 3 or 4; of rank 3 the last extent is not read. */
static strobe_tensor tensor_of(void* data, int32_t dtype, int32_t rank, int64_t b, int64_t c, int64_t d) {
  strobe_tensor tensor = {.data = data, .dtype = dtype, .rank = rank};
  const int64_t shape[4] = {1, b, c, d};
  int64_t stride = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    tensor.shape[axis] = shape[axis];
    tensor.strides[axis] = stride;
    stride *= shape[axis];
  }
  return tensor;
}

/* One query, two keys, two columns. */
typedef struct eight_bit_call {
  float q[2], k[4], v[4], o[2], lse[1];
  signed char q8[2], k8[4], v8[2 * 32];
  float q_descale[1], k_descale[1], v_descale[2], q_shift[1];
  strobe_quantize_arguments arguments;
  strobe_quantize_options options;
} eight_bit_call;

static void make_call(eight_bit_call* c) {
  memset(c, 0, sizeof(*c));
  const float q[2] = {1.5F, 0.0F}, k[4] = {1.0F, 0.0F, 0.0F, 0.0F}, v[4] = {3.0F, 1.0F, -1.0F, 0.5F};
  memcpy(c->q, q, sizeof(q));
  memcpy(c->k, k, sizeof(k));
  memcpy(c->v, v, sizeof(v));
  c->arguments = (strobe_quantize_arguments){.struct_size = sizeof(c->arguments),
                                             .q = tensor_of(c->q, STROBE_FLOAT32, 4, 1, 1, 2),
                                             .k = tensor_of(c->k, STROBE_FLOAT32, 4, 2, 1, 2),
                                             .v = tensor_of(c->v, STROBE_FLOAT32, 4, 2, 1, 2),
                                             .q8 = tensor_of(c->q8, STROBE_INT8, 4, 1, 1, 2),
                                             .k8 = tensor_of(c->k8, STROBE_INT8, 4, 2, 1, 2),
                                             .v8 = tensor_of(c->v8, STROBE_INT8, 4, 1, 2, 32),
                                             .q_descale = tensor_of(c->q_descale, STROBE_FLOAT32, 3, 1, 1, 0),
                                             .k_descale = tensor_of(c->k_descale, STROBE_FLOAT32, 3, 1, 1, 0),
                                             .v_descale = tensor_of(c->v_descale, STROBE_FLOAT32, 3, 1, 2, 0),
                                             .q_shift = tensor_of(c->q_shift, STROBE_FLOAT32, 3, 1, 1, 0)};
  c->options = (strobe_quantize_options){.struct_size = sizeof(c->options),
                                         .element = STROBE_INT8,
                                         .q_scales = STROBE_SCALE_ROW,
                                         .k_scales = STROBE_SCALE_GROUP,
                                         .v_scales = STROBE_SCALE_ROW,
                                         .rotate_qk = 1,
                                         .rotate_v = 1,
                                         .center_k = 1,
                                         .seed = 5};
}

static strobe_forward_arguments forward_of_call(eight_bit_call* c) {
  return (strobe_forward_arguments){.struct_size = sizeof(strobe_forward_arguments),
                                    .q = c->arguments.q8,
                                    .k = c->arguments.k8,
                                    .v = c->arguments.v8,
                                    .o = tensor_of(c->o, STROBE_FLOAT32, 4, 1, 1, 2),
                                    .lse = tensor_of(c->lse, STROBE_FLOAT32, 3, 1, 1, 0),
                                    .q_descale = c->arguments.q_descale,
                                    .k_descale = c->arguments.k_descale,
                                    .v_descale = c->arguments.v_descale,
                                    .q_shift = c->arguments.q_shift,
                                    .v_rotation = {.given = 1, .seed = 5}};
}

static int within(double actual, double expected, double error) {
  return actual - expected <= error && expected - actual <= error;
}

static void test_quantised_tensors_give_the_same_output(void) {
  eight_bit_call call;
  make_call(&call);
  CHECK(strobe_quantize(&call.arguments, &call.options, NULL) == STROBE_OK);
  CHECK(within(call.q_shift[0], 0.75, 1e-6)); /* q times the keys' mean, (0.5, 0) */
  const strobe_forward_arguments arguments = forward_of_call(&call);
  const strobe_options options = unit_scale();
  CHECK(strobe_forward(&arguments, &options, NULL) == STROBE_OK);
  const double p = expected_p(); /* of scores 1.5 and 0 */
  CHECK(within(call.o[0], 3.0 * p - (1.0 - p), 0.05));
  CHECK(within(call.o[1], p + 0.5 * (1.0 - p), 0.05));
  CHECK(within(call.lse[0], 1.7014133, 0.02)); /* log(e^1.5 + 1) */
}

static void test_a_rotation_that_is_not_undone_shows(void) {
  eight_bit_call call;
  make_call(&call);
  CHECK(strobe_quantize(&call.arguments, &call.options, NULL) == STROBE_OK);
  strobe_forward_arguments arguments = forward_of_call(&call);
  arguments.v_rotation.given = 0;
  const strobe_options options = unit_scale();
  CHECK(strobe_forward(&arguments, &options, NULL) == STROBE_OK);
  const double p = expected_p();
  CHECK(!within(call.o[0], 3.0 * p - (1.0 - p), 0.05));
}

/* [1, b, c, d] as [b, c, d]. */
static strobe_tensor without_batch(strobe_tensor tensor) {
  for (int axis = 0; axis + 1 < tensor.rank; ++axis) {
    tensor.shape[axis] = tensor.shape[axis + 1];
    tensor.strides[axis] = tensor.strides[axis + 1];
  }
  tensor.rank -= 1;
  return tensor;
}

static strobe_tensor ends_tensor(int32_t* ends) {
  return (strobe_tensor){.data = ends, .dtype = STROBE_INT32, .rank = 1, .shape = {2}, .strides = {1}};
}

static void test_a_packed_sequence_gives_the_same_output(void) {
  eight_bit_call call;
  make_call(&call);
  CHECK(strobe_quantize(&call.arguments, &call.options, NULL) == STROBE_OK);
  strobe_forward_arguments arguments = forward_of_call(&call);
  const strobe_options options = unit_scale();
  CHECK(strobe_forward(&arguments, &options, NULL) == STROBE_OK);
  eight_bit_call packed;
  make_call(&packed);
  int32_t ends_q[2] = {0, 1}, ends_k[2] = {0, 2};
  strobe_tensor* const tensors[] = {&packed.arguments.q,  &packed.arguments.k,  &packed.arguments.v,
                                    &packed.arguments.q8, &packed.arguments.k8, &packed.arguments.v8};
  for (int i = 0; i < 6; ++i) *tensors[i] = without_batch(*tensors[i]);
  strobe_sequences* const sequences = &packed.arguments.sequences;
  sequences->cu_seqlens_q = ends_tensor(ends_q);
  sequences->cu_seqlens_k = ends_tensor(ends_k);
  CHECK(strobe_quantize(&packed.arguments, &packed.options, NULL) == STROBE_OK);
  CHECK(memcmp(packed.v8, call.v8, sizeof(call.v8)) == 0);
  arguments = forward_of_call(&packed);
  arguments.o = without_batch(arguments.o);
  arguments.lse = without_batch(arguments.lse);
  arguments.lse.rank = 2;
  arguments.sequences = *sequences;
  CHECK(strobe_forward(&arguments, &options, NULL) == STROBE_OK);
  CHECK(memcmp(packed.o, call.o, sizeof(call.o)) == 0);
  CHECK(memcmp(packed.lse, call.lse, sizeof(call.lse)) == 0);
  sequences->seqused_k = sequences->cu_seqlens_k;
  CHECK_REJECTED(strobe_quantize(&packed.arguments, &packed.options, NULL), STROBE_INVALID_ARGUMENT,
                 "seqused_k is given: quantize() takes all rows of its sequences");
}

static void test_quantisations_that_are_not_valid_are_rejected(void) {
  eight_bit_call call;
  make_call(&call);
  CHECK_REJECTED(strobe_quantize(NULL, &call.options, NULL), STROBE_INVALID_ARGUMENT,
                 "arguments is null: give a strobe_quantize_arguments");
  CHECK_REJECTED(strobe_quantize(&call.arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "options is null: give a strobe_quantize_options");
  call.options.k_scales = 5;
  CHECK_REJECTED(strobe_quantize(&call.arguments, &call.options, NULL), STROBE_INVALID_ARGUMENT,
                 "k_scales is 5: it must be from 0 to 4");
  call.options.k_scales = STROBE_SCALE_GROUP;
  call.options.element = STROBE_FLOAT16;
  CHECK_REJECTED(strobe_quantize(&call.arguments, &call.options, NULL), STROBE_INVALID_ARGUMENT,
                 "element is float16: it must be int8 or float8_e4m3");
  strobe_forward_arguments arguments = forward_of_call(&call);
  arguments.v_rotation.reserved = 1;
  CHECK_REJECTED(strobe_forward(&arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "strobe_rotation.reserved is 1: it must be 0");
}

static void test_a_budget_is_planned(void) {
  eight_bit_call call;
  make_call(&call);
  const strobe_quantize_arguments* a = &call.arguments;
  strobe_quantization_plan plan = {.struct_size = sizeof plan};
  strobe_error_budget budget = {.struct_size = sizeof budget, .mode = STROBE_QUANTIZATION_ACCURATE};
  CHECK(strobe_plan_quantization(&a->q, &a->k, &a->v, &budget, NULL, 5, &plan) == STROBE_OK);
  CHECK(plan.options.element == STROBE_INT8 && plan.options.v_scales == STROBE_SCALE_ROW && plan.options.seed == 5);
  CHECK(plan.measured == 1 && plan.rmse > 0.0 && plan.error_bound > plan.rmse);
  CHECK(strstr(plan.explanation, "operands      int8") == plan.explanation);
  CHECK(strobe_quantize(a, &plan.options, NULL) == STROBE_OK);
  budget.max_rmse = 1e-9;
  CHECK(strobe_plan_quantization(&a->q, &a->k, &a->v, &budget, NULL, 5, &plan) == STROBE_UNSUPPORTED);
  budget.max_rmse = -1.0;
  CHECK_REJECTED(strobe_plan_quantization(&a->q, &a->k, &a->v, &budget, NULL, 5, &plan), STROBE_INVALID_ARGUMENT,
                 "max_rmse is -1: it must be positive, or 0 for none");
  CHECK_REJECTED(strobe_plan_quantization(&a->q, &a->k, &a->v, NULL, NULL, 5, NULL), STROBE_INVALID_ARGUMENT,
                 "plan is null: give a strobe_quantization_plan");
  plan.struct_size = (size_t)1 << 63;
  CHECK_REJECTED(strobe_plan_quantization(&a->q, &a->k, &a->v, NULL, NULL, 5, &plan), STROBE_INVALID_ARGUMENT,
                 "strobe_quantization_plan.struct_size is 9223372036854775808: it must be at most 65536");
  plan.struct_size = 0;
  CHECK_REJECTED(strobe_plan_quantization(&a->q, &a->k, &a->v, NULL, NULL, 5, &plan), STROBE_INVALID_ARGUMENT,
                 "strobe_quantization_plan.struct_size is 0: set it to sizeof(strobe_quantization_plan)");
}

static const named_test kTests[] = {
    TEST(quantised_tensors_give_the_same_output),
    TEST(a_rotation_that_is_not_undone_shows),
    TEST(a_packed_sequence_gives_the_same_output),
    TEST(quantisations_that_are_not_valid_are_rejected),
    TEST(a_budget_is_planned),
};

int main(int argc, char** argv) { return run_tests(kTests, sizeof kTests / sizeof kTests[0], argc, argv); }
