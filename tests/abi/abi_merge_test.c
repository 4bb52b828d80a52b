// SPDX-License-Identifier: Apache-2.0
/* strobe_merge through the C ABI. */
#include <math.h>

#include "check.h"

/* One row of two columns, in two parts: exp(LSE) is 1 and 3. */
typedef struct merge_call {
  float o[2][2], lse[2], merged[2], merged_lse[1];
  strobe_tensor part_o[2], part_lse[2];
  strobe_merge_arguments arguments;
} merge_call;

static strobe_tensor row_of(float* data, int32_t rank, int64_t columns) {
  strobe_tensor tensor = {.data = data, .dtype = STROBE_FLOAT32, .rank = rank};
  for (int axis = 0; axis < rank; ++axis) {
    tensor.shape[axis] = 1;
    tensor.strides[axis] = columns;
  }
  tensor.shape[rank - 1] = columns;
  tensor.strides[rank - 1] = 1;
  return tensor;
}

static void make_call(merge_call* c) {
  *c = (merge_call){.o = {{1.0F, 8.0F}, {5.0F, 0.0F}}, .lse = {0.0F, logf(3.0F)}};
  for (int i = 0; i < 2; ++i) {
    c->part_o[i] = row_of(c->o[i], 4, 2);
    c->part_lse[i] = row_of(&c->lse[i], 3, 1);
  }
  c->arguments = (strobe_merge_arguments){.struct_size = sizeof(c->arguments),
                                          .part_o = c->part_o,
                                          .part_lse = c->part_lse,
                                          .parts = 2,
                                          .o = row_of(c->merged, 4, 2),
                                          .lse = row_of(c->merged_lse, 3, 1)};
}

static void test_two_parts_become_one(void) {
  merge_call c;
  make_call(&c);
  CHECK(strobe_merge(&c.arguments, NULL) == STROBE_OK);
  CHECK(near(c.merged[0], 4.0));
  CHECK(near(c.merged[1], 2.0));
  CHECK(near(c.merged_lse[0], log(4.0)));
}

static void test_gradients_go_to_both_parts(void) {
  merge_call c;
  make_call(&c);
  float d_o[2] = {1.0F, 2.0F}, d_lse[1] = {0.5F}, part_d_o[2][2], part_d_lse[2];
  strobe_tensor of_o[2], of_lse[2];
  for (int i = 0; i < 2; ++i) {
    of_o[i] = row_of(part_d_o[i], 4, 2);
    of_lse[i] = row_of(&part_d_lse[i], 3, 1);
  }
  strobe_merge_backward_arguments arguments = {.struct_size = sizeof(arguments),
                                               .part_o = c.part_o,
                                               .part_lse = c.part_lse,
                                               .part_d_o = of_o,
                                               .part_d_lse = of_lse,
                                               .parts = 2,
                                               .d_o = row_of(d_o, 4, 2),
                                               .d_lse = row_of(d_lse, 3, 1)};
  CHECK(strobe_merge_backward(&arguments, NULL) == STROBE_OK);
  CHECK(near(part_d_o[0][1], 0.5));
  CHECK(near(part_d_o[1][0], 0.75));
  CHECK(near(part_d_lse[0], 0.25 * (17.0 - 8.0 + 0.5))); /* products 17 and 5, their mean 8 */
  CHECK(near(part_d_lse[1], 0.75 * (5.0 - 8.0 + 0.5)));
  arguments.part_d_lse = NULL;
  CHECK_REJECTED(strobe_merge_backward(&arguments, NULL), STROBE_INVALID_ARGUMENT,
                 "part_d_o or part_d_lse is null: give arrays of 2 tensors");
}

static void test_merges_that_are_not_valid_are_rejected(void) {
  merge_call c;
  make_call(&c);
  CHECK_REJECTED(strobe_merge(NULL, NULL), STROBE_INVALID_ARGUMENT, "arguments is null: give a strobe_merge_arguments");
  c.arguments.parts = 257;
  CHECK_REJECTED(strobe_merge(&c.arguments, NULL), STROBE_INVALID_ARGUMENT,
                 "strobe_merge_arguments.parts is 257: a merge takes from 1 to 256");
  c.arguments.parts = 0;
  CHECK_REJECTED(strobe_merge(&c.arguments, NULL), STROBE_INVALID_ARGUMENT,
                 "0 parts are given: a merge takes from 1 to 256");
  c.arguments.parts = 2;
  c.arguments.part_lse = NULL;
  CHECK_REJECTED(strobe_merge(&c.arguments, NULL), STROBE_INVALID_ARGUMENT,
                 "part_o or part_lse is null: give arrays of 2 tensors");
}

static const named_test kTests[] = {
    TEST(two_parts_become_one),
    TEST(gradients_go_to_both_parts),
    TEST(merges_that_are_not_valid_are_rejected),
};

int main(int argc, char** argv) { return run_tests(kTests, sizeof kTests / sizeof kTests[0], argc, argv); }
