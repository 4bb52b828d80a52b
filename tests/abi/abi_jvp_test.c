// SPDX-License-Identifier: Apache-2.0
/* The C ABI, from C: the forward-mode derivative. */
#include <math.h>

#include "calls.h"
#include "check.h"

/* The scores of make_two_keys() are (1.5, 0): with q' = 1, k' = (0, 1) and v' = (0.5, 0) their tangents are (1, 1.5).
 */
typedef struct tangents {
  float q[1], k[2], v[2], o[1], lse[1];
} tangents;

static const tangents kTangents = {.q = {1.0F}, .k = {0.0F, 1.0F}, .v = {0.5F, 0.0F}, .o = {7.0F}, .lse = {7.0F}};

static strobe_jvp_arguments jvp_of(two_keys* call, tangents* of) {
  const strobe_forward_arguments from = forward_of(call);
  strobe_jvp_arguments arguments = {.struct_size = sizeof arguments};
  arguments.q = from.q;
  arguments.k = from.k;
  arguments.v = from.v;
  arguments.o = from.o;
  arguments.lse = from.lse;
  arguments.q_tangent = column_of(of->q, 1);
  arguments.k_tangent = column_of(of->k, 2);
  arguments.v_tangent = column_of(of->v, 2);
  arguments.o_tangent = column_of(of->o, 1);
  arguments.lse_tangent = column_of(of->lse, 1);
  arguments.lse_tangent.rank = 3;
  return arguments;
}

static void test_a_jvp_gives_tangents_and_outputs(void) {
  two_keys call = make_two_keys();
  tangents of = kTangents;
  const strobe_jvp_arguments arguments = jvp_of(&call, &of);
  const strobe_options options = unit_scale();
  CHECK(strobe_jvp(&arguments, &options, NULL) == STROBE_OK);
  const double p = expected_p();
  const double lse_tangent = p * 1.0 + (1.0 - p) * 1.5;
  CHECK(near(call.o[0], expected_o()));
  CHECK(near(call.lse[0], log1p(exp(1.5))));
  CHECK(near(of.lse[0], lse_tangent));
  CHECK(near(of.o[0], p * 0.5 + p * 1.0 * 3.0 - (1.0 - p) * 1.5 - lse_tangent * expected_o()));
}

static void test_tangents_that_are_not_given_are_zero(void) {
  two_keys call = make_two_keys();
  tangents of = kTangents;
  strobe_jvp_arguments arguments = jvp_of(&call, &of);
  arguments.q_tangent.rank = arguments.k_tangent.rank = 0;
  arguments.o.rank = arguments.lse.rank = arguments.lse_tangent.rank = 0;
  CHECK(strobe_jvp(&arguments, NULL, NULL) == STROBE_OK);
  CHECK(near(of.o[0], 0.5 * expected_p()));
  CHECK(of.lse[0] == 7.0F && call.o[0] == 0.0F);
}

static void test_jvps_that_are_not_valid_are_rejected(void) {
  two_keys call = make_two_keys();
  tangents of = kTangents;
  strobe_jvp_arguments arguments = jvp_of(&call, &of);
  CHECK_REJECTED(strobe_jvp(NULL, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "arguments is null: give a strobe_jvp_arguments");
  arguments.k_tangent.rank = 5;
  CHECK_REJECTED(strobe_jvp(&arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "k_tangent has rank 5: it must be from 1 to 4, or 0 for not given");
  arguments = jvp_of(&call, &of);
  arguments.k_tangent.shape[1] = 1;
  CHECK_REJECTED(strobe_jvp(&arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "k_tangent has shape [1, 1, 1, 1]: it must be [1, 2, 1, 1] as k");
  CHECK(of.o[0] == 7.0F);
}

static void test_structs_of_other_versions_are_read(void) {
  two_keys call = make_two_keys();
  tangents of = kTangents;
  const strobe_jvp_arguments ours = jvp_of(&call, &of);
  strobe_jvp_arguments* older = first_bytes(&ours, offsetof(strobe_jvp_arguments, modifiers));
  strobe_jvp_arguments* newer = with_new_field(&ours, sizeof ours, 1);
  CHECK(strobe_jvp(older, NULL, NULL) == STROBE_OK);
  CHECK(strobe_jvp(newer, NULL, NULL) == STROBE_UNSUPPORTED);
  free(older);
  free(newer);
}

static const named_test kTests[] = {
    TEST(a_jvp_gives_tangents_and_outputs),
    TEST(tangents_that_are_not_given_are_zero),
    TEST(jvps_that_are_not_valid_are_rejected),
    TEST(structs_of_other_versions_are_read),
};

int main(int argc, char** argv) { return run_tests(kTests, sizeof kTests / sizeof kTests[0], argc, argv); }
