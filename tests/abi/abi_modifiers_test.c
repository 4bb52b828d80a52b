// SPDX-License-Identifier: Apache-2.0
/* The C ABI, from C: score modifiers, dropout, the largest scores, and the masks that the library writes. */
#include <math.h>
#include <string.h>

#include "calls.h"
#include "check.h"

/* make_two_keys() has the scores (1.5, 0) and v = (3, -1). */
static strobe_tensor of_rank_4(void* data, int32_t dtype, int64_t last) {
  const strobe_tensor tensor = {
      .data = data, .dtype = dtype, .rank = 4, .shape = {1, 1, 1, last}, .strides = {last, last, last, 1}};
  return tensor;
}

static double softmax_o(double first, double second) {
  return (3.0 * exp(first) - exp(second)) / (exp(first) + exp(second));
}

static void test_alibi_reaches_the_engine(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments arguments = forward_of(&call);
  float slope = 1.0F; /* the query lies on the last key, one from the first */
  arguments.modifiers.alibi_slopes = vector_of(&slope, STROBE_FLOAT32, 1);
  CHECK(strobe_forward(&arguments, NULL, NULL) == STROBE_OK);
  CHECK(near(call.o[0], softmax_o(0.5, 0.0)));
}

static void test_a_bias_and_its_gradient_reach_the_engine(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments forward = forward_of(&call);
  float bias[2] = {0.5F, -0.5F};
  forward.modifiers.bias = of_rank_4(bias, STROBE_FLOAT32, 2);
  CHECK(strobe_forward(&forward, NULL, NULL) == STROBE_OK);
  CHECK(near(call.o[0], softmax_o(2.0, -0.5)));
  strobe_backward_arguments backward = backward_of(&call);
  float d_bias[2] = {7.0F, 7.0F};
  backward.modifiers = forward.modifiers;
  backward.d_bias = of_rank_4(d_bias, STROBE_FLOAT32, 2);
  CHECK(strobe_backward(&backward, NULL, NULL) == STROBE_OK);
  const double p = 1.0 / (1.0 + exp(-2.5));
  CHECK(near(d_bias[0], p * (1.0 - p) * 4.0 * 2.0));
  CHECK(near(d_bias[1], -p * (1.0 - p) * 4.0 * 2.0));
}

static void test_a_sink_and_its_gradient_reach_the_engine(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments forward = forward_of(&call);
  float sink = 0.25F;
  forward.modifiers.sink = vector_of(&sink, STROBE_FLOAT32, 1);
  CHECK(strobe_forward(&forward, NULL, NULL) == STROBE_OK);
  const double sum = exp(1.5) + 1.0 + exp(0.25);
  const double o = (3.0 * exp(1.5) - 1.0) / sum;
  CHECK(near(call.lse[0], log(sum)));
  CHECK(near(call.o[0], o));
  strobe_backward_arguments backward = backward_of(&call);
  float d_sink = 7.0F;
  backward.modifiers = forward.modifiers;
  backward.d_sink = vector_of(&d_sink, STROBE_FLOAT32, 1);
  CHECK(strobe_backward(&backward, NULL, NULL) == STROBE_OK);
  CHECK(near(d_sink, -exp(0.25) / sum * 2.0 * o));
}

static void test_a_block_mask_reaches_the_engine(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments arguments = forward_of(&call);
  uint8_t visible = 1;
  arguments.modifiers.block_mask = of_rank_4(&visible, STROBE_UINT8, 1); /* block_size 0 stands for 128 */
  CHECK(strobe_forward(&arguments, NULL, NULL) == STROBE_OK);
  CHECK(near(call.o[0], expected_o()));
  visible = 0;
  CHECK(strobe_forward(&arguments, NULL, NULL) == STROBE_OK);
  CHECK(call.o[0] == 0.0F && isinf(call.lse[0]));
  arguments.modifiers.block_size = 64;
  CHECK(strobe_forward(&arguments, NULL, NULL) == STROBE_OK);
  arguments.modifiers.block_size = 7;
  CHECK_REJECTED(strobe_forward(&arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "block_size is 7: it must be 64 or 128");
}

static void test_the_largest_score_comes_out(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments arguments = forward_of(&call);
  float largest = -7.0F;
  arguments.max_logits = vector_of(&largest, STROBE_FLOAT32, 1);
  arguments.max_logits.rank = 2;
  arguments.max_logits.shape[1] = 1;
  arguments.max_logits.strides[1] = 1;
  CHECK(strobe_forward(&arguments, NULL, NULL) == STROBE_OK);
  CHECK(near(largest, 1.5));
}

static void test_row_invariant_reaches_the_plan(void) {
  two_keys call = make_two_keys();
  const strobe_forward_arguments arguments = forward_of(&call);
  const strobe_options options = {.struct_size = sizeof options, .row_invariant = 1};
  strobe_plan* plan = NULL;
  CHECK(strobe_plan_forward(&arguments, &options, NULL, &plan) == STROBE_OK);
  CHECK(strstr(strobe_plan_explain(plan), "row-invariant") != NULL);
  strobe_plan_destroy(plan);
}

static void test_chunk_and_deterministic_reach_the_engine(void) {
  two_keys call = make_two_keys();
  const strobe_forward_arguments arguments = forward_of(&call);
  strobe_options options = {.struct_size = sizeof options, .chunk = 1, .deterministic = 1};
  CHECK(strobe_forward(&arguments, &options, NULL) == STROBE_OK);
  CHECK(call.o[0] == -1.0F); /* the last key is a chunk of its own */
  options.chunk = -1;
  CHECK_REJECTED(strobe_forward(&arguments, &options, NULL), STROBE_INVALID_ARGUMENT,
                 "chunk is -1: it must be positive, or 0 for none");
}

static void test_dropout_drops_what_its_mask_says(void) {
  const strobe_options options = {.struct_size = sizeof options, .dropout = 0.5F};
  int kept[3] = {0, 0, 0};
  for (uint64_t seed = 0; seed < 64; ++seed) {
    two_keys call = make_two_keys();
    strobe_forward_arguments arguments = forward_of(&call);
    arguments.random.seed = seed;
    arguments.random.offset = 9;
    CHECK(strobe_forward(&arguments, &options, NULL) == STROBE_OK);
    uint8_t mask[2];
    const strobe_tensor view = of_rank_4(mask, STROBE_UINT8, 2);
    CHECK(strobe_dropout_mask(0.5F, &arguments.random, &view) == STROBE_OK);
    const double p = expected_p();
    CHECK(near(call.o[0], 2.0 * (mask[0] * 3.0 * p - mask[1] * (1.0 - p))));
    CHECK(near(call.lse[0], log1p(exp(1.5))));
    ++kept[mask[0] + mask[1]];
  }
  CHECK(kept[0] > 0 && kept[1] > 0 && kept[2] > 0);
}

/* The first known answer of philox4x32-7, counter and key 0, begins with 5f6fb709: query 0's slices, lowest first. */
static void test_the_dropout_mask_is_philox(void) {
  uint8_t mask[32];
  const strobe_tensor view = of_rank_4(mask, STROBE_UINT8, 32);
  const strobe_random_state random = {.seed = 0, .offset = 0};
  CHECK(strobe_dropout_mask(0.25F, &random, &view) == STROBE_OK); /* slices from 0x40 on are kept */
  CHECK(mask[0] == 0 && mask[1] == 1 && mask[8] == 1 && mask[9] == 1);
  CHECK(strobe_dropout_mask(0.4F, &random, &view) == STROBE_OK); /* from 0x66 on */
  CHECK(mask[0] == 0 && mask[1] == 1 && mask[8] == 1 && mask[9] == 0);
}

static void test_masks_that_cannot_be_written_are_rejected(void) {
  uint8_t mask[4];
  strobe_tensor view = of_rank_4(mask, STROBE_UINT8, 4);
  const strobe_random_state random = {.seed = 0, .offset = 0};
  CHECK_REJECTED(strobe_dropout_mask(0.5F, &random, NULL), STROBE_INVALID_ARGUMENT,
                 "mask is null: give a strobe_tensor");
  CHECK_REJECTED(strobe_dropout_mask(0.5F, NULL, &view), STROBE_INVALID_ARGUMENT,
                 "random is null: give a strobe_random_state");
  CHECK_REJECTED(strobe_dropout_mask(1.5F, &random, &view), STROBE_INVALID_ARGUMENT,
                 "dropout is 1.5: it must be at least 0 and less than 1");
  CHECK_REJECTED(strobe_local_block_mask(NULL, 0, 0), STROBE_INVALID_ARGUMENT, "mask is null: give a strobe_tensor");
  CHECK_REJECTED(strobe_local_block_mask(&view, -2, 0), STROBE_INVALID_ARGUMENT,
                 "left is -2 and right 0: each must be 0 or more, or -1 for no bound");
  CHECK_REJECTED(strobe_strided_block_mask(&view, 0), STROBE_INVALID_ARGUMENT, "stride is 0: it must be 1 or more");
  view.dtype = STROBE_INT32;
  CHECK_REJECTED(strobe_butterfly_block_mask(&view), STROBE_INVALID_ARGUMENT, "mask is int32: it must be uint8");
  view.dtype = 8;
  CHECK_REJECTED(strobe_butterfly_block_mask(&view), STROBE_INVALID_ARGUMENT,
                 "mask.dtype is 8: it must be from 0 to 7");
  view.rank = 0;
  CHECK_REJECTED(strobe_butterfly_block_mask(&view), STROBE_INVALID_ARGUMENT,
                 "mask has rank 0: it must be [.., query blocks, key blocks]");
}

static void test_block_masks_are_written(void) {
  uint8_t mask[16];
  const strobe_tensor view = {.data = mask, .dtype = STROBE_UINT8, .rank = 2, .shape = {4, 4}, .strides = {4, 1}};
  CHECK(strobe_local_block_mask(&view, 1, 0) == STROBE_OK);
  CHECK(memcmp(mask, (const uint8_t[16]){1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1}, 16) == 0);
  CHECK(strobe_strided_block_mask(&view, 3) == STROBE_OK);
  CHECK(memcmp(mask, (const uint8_t[16]){1, 0, 0, 1, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 1}, 16) == 0);
  CHECK(strobe_butterfly_block_mask(&view) == STROBE_OK);
  CHECK(memcmp(mask, (const uint8_t[16]){1, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 0, 1, 1, 1}, 16) == 0);
}

static void test_structs_from_before_the_modifiers_get_defaults(void) {
  two_keys call = make_two_keys();
  const strobe_forward_arguments newest_forward = forward_of(&call);
  const strobe_backward_arguments newest_backward = backward_of(&call);
  const strobe_options newest_options = unit_scale();
  strobe_forward_arguments* forward = first_bytes(&newest_forward, offsetof(strobe_forward_arguments, modifiers));
  strobe_backward_arguments* backward = first_bytes(&newest_backward, offsetof(strobe_backward_arguments, modifiers));
  strobe_options* options = first_bytes(&newest_options, offsetof(strobe_options, softcap));
  CHECK(strobe_forward(forward, options, NULL) == STROBE_OK);
  CHECK(near(call.o[0], expected_o()));
  CHECK(strobe_backward(backward, options, NULL) == STROBE_OK);
  CHECK(near(call.dv[0], 2.0 * expected_p()));
  free(forward);
  free(backward);
  free(options);
}

static void test_modifiers_that_name_nothing_are_rejected(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments forward = forward_of(&call);
  float value = 0.0F;
  forward.modifiers.alibi_slopes = vector_of(&value, 9, 1);
  CHECK_REJECTED(strobe_forward(&forward, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "alibi_slopes.dtype is 9: it must be from 0 to 7");
  forward = forward_of(&call);
  forward.modifiers.bias = of_rank_4(&value, STROBE_FLOAT32, 1);
  forward.modifiers.bias.rank = 7;
  CHECK_REJECTED(strobe_forward(&forward, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "bias has rank 7: it must be from 1 to 4, or 0 for not given");
  forward = forward_of(&call);
  forward.modifiers.block_mask = of_rank_4(&value, STROBE_UINT8, 1);
  forward.modifiers.block_mask.device_type = -1;
  CHECK_REJECTED(strobe_forward(&forward, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "block_mask.device_type is -1: it must be from 0 to 1");
  forward = forward_of(&call);
  forward.max_logits = vector_of(&value, STROBE_FLOAT32, 1);
  forward.max_logits.rank = -1;
  CHECK_REJECTED(strobe_forward(&forward, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "max_logits has rank -1: it must be from 1 to 4, or 0 for not given");
  strobe_backward_arguments backward = backward_of(&call);
  backward.d_sink = vector_of(&value, 8, 1);
  CHECK_REJECTED(strobe_backward(&backward, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "d_sink.dtype is 8: it must be from 0 to 7");
  backward = backward_of(&call);
  backward.d_bias = of_rank_4(&value, STROBE_FLOAT32, 1);
  CHECK_REJECTED(strobe_backward(&backward, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "d_bias is given without a bias: give modifiers.bias, too");
}

static const named_test kTests[] = {
    TEST(alibi_reaches_the_engine),
    TEST(a_bias_and_its_gradient_reach_the_engine),
    TEST(a_sink_and_its_gradient_reach_the_engine),
    TEST(a_block_mask_reaches_the_engine),
    TEST(the_largest_score_comes_out),
    TEST(chunk_and_deterministic_reach_the_engine),
    TEST(row_invariant_reaches_the_plan),
    TEST(dropout_drops_what_its_mask_says),
    TEST(the_dropout_mask_is_philox),
    TEST(masks_that_cannot_be_written_are_rejected),
    TEST(block_masks_are_written),
    TEST(structs_from_before_the_modifiers_get_defaults),
    TEST(modifiers_that_name_nothing_are_rejected),
};

int main(int argc, char** argv) { return run_tests(kTests, sizeof kTests / sizeof kTests[0], argc, argv); }
