// SPDX-License-Identifier: Apache-2.0
/* The C ABI, from C: scores and masks as texts, and gradients of the tensors that they read. */
#include <math.h>
#include <string.h>

#include "calls.h"
#include "check.h"

static strobe_score_function* parsed(const char* score, const char* mask, const strobe_capture_type* captures,
                                     int32_t count) {
  strobe_score_function* function = NULL;
  CHECK(strobe_score_function_parse(score, mask, captures, count, &function) == STROBE_OK);
  CHECK(function != NULL);
  return function;
}

/* make_two_keys() has the scores (1.5, 0) and v = (3, -1). */
static double softmax_o(double first, double second) {
  return (3.0 * exp(first) - exp(second)) / (exp(first) + exp(second));
}

static void test_a_score_and_its_captures_gradient_reach_the_engine(void) {
  two_keys call = make_two_keys();
  const strobe_capture_type type = {.name = "table", .dtype = STROBE_FLOAT32, .rank = 1};
  strobe_score_function* function = parsed("score + 2 * table[k]", NULL, &type, 1);
  float table[2] = {0.25F, -0.5F};
  const strobe_tensor captures[1] = {vector_of(table, STROBE_FLOAT32, 2)};
  strobe_forward_arguments forward = forward_of(&call);
  forward.function = function;
  forward.captures = captures;
  forward.capture_count = 1;
  CHECK(strobe_forward(&forward, NULL, NULL) == STROBE_OK);
  CHECK(near(call.o[0], softmax_o(2.0, -1.0)));
  strobe_backward_arguments backward = backward_of(&call);
  float d_table[2] = {7.0F, 7.0F};
  const strobe_tensor gradients[1] = {vector_of(d_table, STROBE_FLOAT32, 2)};
  backward.function = function;
  backward.captures = captures;
  backward.capture_count = 1;
  backward.d_captures = gradients;
  CHECK(strobe_backward(&backward, NULL, NULL) == STROBE_OK);
  const double p = 1.0 / (1.0 + exp(-3.0));
  CHECK(near(d_table[0], 2.0 * p * (1.0 - p) * 4.0 * 2.0));
  CHECK(near(d_table[1], -2.0 * p * (1.0 - p) * 4.0 * 2.0));
  strobe_score_function_free(function);
}

static void test_a_mask_hides_keys(void) {
  two_keys call = make_two_keys();
  strobe_score_function* function = parsed(NULL, "k == 1", NULL, 0);
  strobe_forward_arguments forward = forward_of(&call);
  forward.function = function;
  CHECK(strobe_forward(&forward, NULL, NULL) == STROBE_OK);
  CHECK(near(call.o[0], -1.0));
  strobe_score_function_free(function);
}

static void test_a_function_says_what_it_is(void) {
  strobe_score_function* function = parsed("30 * tanh(score / 30)", "k <= q", NULL, 0);
  CHECK(strstr(strobe_score_function_explain(function), "tanh") != NULL);
  CHECK(strstr(strobe_score_function_explain(function), "mask: k <= q") != NULL);
  strobe_score_function_free(function);
  strobe_score_function_free(NULL);
  CHECK(strcmp(strobe_score_function_explain(NULL), "") == 0);
}

static void test_wrong_texts_are_errors_that_name_the_column(void) {
  strobe_score_function* function = NULL;
  const strobe_capture_type type = {.name = "slope", .dtype = STROBE_FLOAT32, .rank = 1};
  CHECK(strobe_score_function_parse("score + slop[head]", NULL, &type, 1, &function) == STROBE_INVALID_ARGUMENT);
  CHECK(strstr(strobe_last_error(), "unknown name `slop`; did you mean `slope`? at column 9") != NULL);
  CHECK(strobe_score_function_parse(NULL, NULL, NULL, 0, &function) == STROBE_INVALID_ARGUMENT);
  CHECK(strobe_score_function_parse("score", NULL, NULL, 1, &function) == STROBE_INVALID_ARGUMENT);
  CHECK(strobe_score_function_parse("score", NULL, NULL, -1, &function) == STROBE_INVALID_ARGUMENT);
  CHECK(strobe_score_function_parse("score", NULL, NULL, 0, NULL) == STROBE_INVALID_ARGUMENT);
  const strobe_capture_type nameless = {.name = NULL, .dtype = STROBE_FLOAT32, .rank = 1};
  CHECK(strobe_score_function_parse("score", NULL, &nameless, 1, &function) == STROBE_INVALID_ARGUMENT);
  const strobe_capture_type of_no_dtype = {.name = "slope", .dtype = 99, .rank = 1};
  CHECK(strobe_score_function_parse("score", NULL, &of_no_dtype, 1, &function) == STROBE_INVALID_ARGUMENT);
  CHECK(function == NULL);
}

static void test_captures_without_a_place_are_errors(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments forward = forward_of(&call);
  forward.capture_count = 1;
  CHECK(strobe_forward(&forward, NULL, NULL) == STROBE_INVALID_ARGUMENT);
  forward.capture_count = 1000;
  CHECK(strobe_forward(&forward, NULL, NULL) == STROBE_INVALID_ARGUMENT);
  forward.capture_count = 0;
  forward.reserved = 1;
  CHECK(strobe_forward(&forward, NULL, NULL) == STROBE_INVALID_ARGUMENT);
}

static const named_test kTests[] = {
    TEST(a_score_and_its_captures_gradient_reach_the_engine),
    TEST(a_mask_hides_keys),
    TEST(a_function_says_what_it_is),
    TEST(wrong_texts_are_errors_that_name_the_column),
    TEST(captures_without_a_place_are_errors),
};

int main(int argc, char** argv) { return run_tests(kTests, sizeof kTests / sizeof kTests[0], argc, argv); }
