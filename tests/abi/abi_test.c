// SPDX-License-Identifier: Apache-2.0
/* The C ABI, from C: calls, plans, versions of structs, errors. */
#include <math.h>

#include "calls.h"
#include "check.h"

static void test_version_is_the_projects(void) {
  CHECK(strcmp(strobe_version(), STROBE_EXPECTED_VERSION) == 0);
  char of_header[32];
  snprintf(of_header, sizeof of_header, "%d.%d.%d", STROBE_VERSION_MAJOR, STROBE_VERSION_MINOR, STROBE_VERSION_PATCH);
  CHECK(strcmp(of_header, STROBE_EXPECTED_VERSION) == 0);
}

static void test_versions_compare_as_numbers(void) {
  CHECK(STROBE_VERSION == 10000 * STROBE_VERSION_MAJOR + 100 * STROBE_VERSION_MINOR + STROBE_VERSION_PATCH);
#if STROBE_VERSION < 200 || STROBE_VERSION >= 1000000
#error "0.2.0 is 200"
#endif
}

static void test_forward_and_backward(void) {
  two_keys call = make_two_keys();
  const strobe_options options = unit_scale();
  const strobe_forward_arguments forward = forward_of(&call);
  CHECK(strobe_forward(&forward, &options, NULL) == STROBE_OK);
  CHECK(near(call.o[0], expected_o()));
  CHECK(near(call.lse[0], log1p(exp(1.5))));
  const strobe_backward_arguments backward = backward_of(&call);
  CHECK(strobe_backward(&backward, &options, NULL) == STROBE_OK);
  const double p = expected_p();
  const double d_s = p * (1.0 - p) * 4.0 * 2.0;
  CHECK(near(call.dq[0], d_s));
  CHECK(near(call.dk[0], d_s * 1.5));
  CHECK(near(call.dk[1], -d_s * 1.5));
  CHECK(near(call.dv[0], 2.0 * p));
  CHECK(near(call.dv[1], 2.0 * (1.0 - p)));
}

static void test_options_may_be_null(void) {
  two_keys call = make_two_keys();
  const strobe_forward_arguments arguments = forward_of(&call);
  CHECK(strobe_forward(&arguments, NULL, NULL) == STROBE_OK); /* the default scale of head_dim 1 is 1 */
  CHECK(near(call.o[0], expected_o()));
}

static void test_options_reach_the_engine(void) {
  two_keys call = make_two_keys();
  const strobe_forward_arguments arguments = forward_of(&call);
  strobe_options options = {.struct_size = sizeof options, .causal = STROBE_CAUSAL_TOP_LEFT};
  CHECK(strobe_forward(&arguments, &options, NULL) == STROBE_OK);
  CHECK(call.o[0] == 3.0F); /* the first key alone */
  options = (strobe_options){.struct_size = sizeof options, .has_window = 1, .window_left = 0, .window_right = -1};
  CHECK(strobe_forward(&arguments, &options, NULL) == STROBE_OK);
  CHECK(call.o[0] == -1.0F); /* the query lies on the last key: that one alone */
  options = (strobe_options){.struct_size = sizeof options, .has_scale = 1, .scale = 0.0F};
  CHECK(strobe_forward(&arguments, &options, NULL) == STROBE_OK);
  CHECK(near(call.o[0], 1.0)); /* the mean */
  options = (strobe_options){.struct_size = sizeof options, .softcap = 2.0F};
  CHECK(strobe_forward(&arguments, &options, NULL) == STROBE_OK);
  CHECK(near(call.lse[0], log1p(exp(2.0 * tanh(0.75)))));
}

static void test_lengths_reach_the_engine(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments arguments = forward_of(&call);
  int32_t used = 1;
  arguments.sequences.seqused_k = vector_of(&used, STROBE_INT32, 1);
  CHECK(strobe_forward(&arguments, NULL, NULL) == STROBE_OK);
  CHECK(call.o[0] == 3.0F);
}

static void test_a_smaller_older_struct_gets_defaults(void) {
  two_keys call = make_two_keys();
  const strobe_forward_arguments newest = forward_of(&call);
  strobe_forward_arguments* arguments = first_bytes(&newest, offsetof(strobe_forward_arguments, q_descale));
  const strobe_options newest_options = unit_scale();
  strobe_options* options = first_bytes(&newest_options, offsetof(strobe_options, causal));
  const strobe_execution newest_execution = {.threads = 1};
  strobe_execution* execution = first_bytes(&newest_execution, offsetof(strobe_execution, parallel_for));
  CHECK(strobe_forward(arguments, options, execution) == STROBE_OK);
  CHECK(near(call.o[0], expected_o()));
  free(arguments);
  free(options);
  free(execution);
}

static void test_a_larger_newer_struct_passes_while_its_news_are_zero(void) {
  two_keys call = make_two_keys();
  const strobe_forward_arguments ours = forward_of(&call);
  const strobe_options our_options = unit_scale();
  void* arguments = with_new_field(&ours, sizeof ours, 0);
  void* options = with_new_field(&our_options, sizeof our_options, 0);
  CHECK(strobe_forward(arguments, options, NULL) == STROBE_OK);
  CHECK(near(call.o[0], expected_o()));
  free(options);
  call.o[0] = -7.0F;
  options = with_new_field(&our_options, sizeof our_options, 1);
  char message[160];
  snprintf(message, sizeof message,
           "strobe_options has a field at byte %zu that this version of the library does not know: it must be zero",
           sizeof our_options);
  CHECK_REJECTED(strobe_forward(arguments, options, NULL), STROBE_UNSUPPORTED, message);
  CHECK(call.o[0] == -7.0F);
  free(options);
  free(arguments);
}

static void test_a_missing_struct_size_is_rejected(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments arguments = forward_of(&call);
  strobe_options options = unit_scale();
  options.struct_size = 0;
  CHECK_REJECTED(strobe_forward(&arguments, &options, NULL), STROBE_INVALID_ARGUMENT,
                 "strobe_options.struct_size is 0: set it to sizeof(strobe_options)");
  arguments.struct_size = 7;
  CHECK_REJECTED(strobe_forward(&arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "strobe_forward_arguments.struct_size is 7: set it to sizeof(strobe_forward_arguments)");
  arguments.struct_size = 13; /* would cut a pointer */
  CHECK_REJECTED(strobe_forward(&arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "strobe_forward_arguments.struct_size is 13: set it to sizeof(strobe_forward_arguments)");
  arguments.struct_size = (size_t)1 << 40;
  CHECK_REJECTED(strobe_forward(&arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "strobe_forward_arguments.struct_size is 1099511627776: it must be at most 65536");
}

static void test_an_empty_tensor_may_have_strides_of_0(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments arguments = forward_of(&call);
  arguments.k.data = NULL;
  arguments.k.shape[1] = 0;
  memset(arguments.k.strides, 0, sizeof arguments.k.strides); /* NumPy's */
  arguments.v = arguments.k;
  CHECK(strobe_forward(&arguments, NULL, NULL) == STROBE_OK);
  CHECK(call.o[0] == 0.0F && call.lse[0] == -INFINITY);
}

static void test_another_device_than_the_cpus_only_one_is_rejected(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments arguments = forward_of(&call);
  strobe_tensor* const tensors[] = {&arguments.q, &arguments.k, &arguments.v, &arguments.o, &arguments.lse};
  for (int i = 0; i < 5; ++i) tensors[i]->device_index = 99;
  strobe_plan* plan = NULL;
  CHECK_REJECTED(strobe_plan_forward(&arguments, NULL, NULL, &plan), STROBE_INVALID_ARGUMENT,
                 "q is on device 99 of the cpu: its index must be 0");
  CHECK_REJECTED(strobe_forward(&arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "q is on device 99 of the cpu: its index must be 0");
}

static void test_null_arguments_are_rejected(void) {
  CHECK_REJECTED(strobe_forward(NULL, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "arguments is null: give a strobe_forward_arguments");
  CHECK_REJECTED(strobe_backward(NULL, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "arguments is null: give a strobe_backward_arguments");
}

static void test_numbers_that_name_nothing_are_rejected(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments arguments = forward_of(&call);
  strobe_options options = {.struct_size = sizeof options, .causal = 3};
  CHECK_REJECTED(strobe_forward(&arguments, &options, NULL), STROBE_INVALID_ARGUMENT,
                 "causal is 3: it must be from 0 to 2");
  options = (strobe_options){.struct_size = sizeof options, .row_invariant = 2};
  CHECK_REJECTED(strobe_forward(&arguments, &options, NULL), STROBE_INVALID_ARGUMENT,
                 "row_invariant is 2: it must be from 0 to 1");
  options = (strobe_options){.struct_size = sizeof options, .normalize = 2};
  CHECK_REJECTED(strobe_forward(&arguments, &options, NULL), STROBE_INVALID_ARGUMENT,
                 "normalize is 2: it must be from 0 to 1");
  options = (strobe_options){.struct_size = sizeof options, .reserved = 1};
  CHECK_REJECTED(strobe_forward(&arguments, &options, NULL), STROBE_INVALID_ARGUMENT,
                 "strobe_options.reserved is 1: it must be 0");
  strobe_execution execution = {.struct_size = sizeof execution, .engine = -1};
  CHECK_REJECTED(strobe_forward(&arguments, NULL, &execution), STROBE_INVALID_ARGUMENT,
                 "engine is -1: it must be from 0 to 4");
  execution = (strobe_execution){.struct_size = sizeof execution, .kernels = "sm80"};
  CHECK_REJECTED(strobe_forward(&arguments, NULL, &execution), STROBE_UNSUPPORTED,
                 "kernels is sm80: the cpu engine has one family");
  arguments.k.dtype = 9;
  CHECK_REJECTED(strobe_forward(&arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "k.dtype is 9: it must be from 0 to 7");
  arguments = forward_of(&call);
  arguments.v.device_type = 2;
  CHECK_REJECTED(strobe_forward(&arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "v.device_type is 2: it must be from 0 to 1");
  arguments = forward_of(&call);
  arguments.o.rank = 5;
  CHECK_REJECTED(strobe_forward(&arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "o has rank 5: it must be from 1 to 4, or 0 for not given");
}

static void test_engines_of_earlier_releases_are_the_gpus(void) {
  const int32_t engines[] = {STROBE_ENGINE_AMPERE, STROBE_ENGINE_HOPPER, STROBE_ENGINE_GPU};
  for (int index = 0; index < 3; ++index) {
    two_keys call = make_two_keys();
    const strobe_forward_arguments arguments = forward_of(&call);
    const strobe_execution execution = {.struct_size = sizeof execution, .engine = engines[index]};
    CHECK_REJECTED(strobe_forward(&arguments, NULL, &execution), STROBE_UNSUPPORTED,
                   "q is on cpu: the gpu engine takes tensors on a CUDA device");
  }
}

static void test_the_last_error_is_of_the_last_call(void) {
  two_keys call = make_two_keys();
  strobe_forward_arguments arguments = forward_of(&call);
  arguments.q.rank = 0;
  CHECK_REJECTED(strobe_forward(&arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "q is missing: give a tensor [batch, seqlen_q, heads_q, head_dim]");
  arguments = forward_of(&call);
  CHECK(strobe_forward(&arguments, NULL, NULL) == STROBE_OK);
  CHECK(strcmp(strobe_last_error(), "") == 0);
}

static void count_and_run(void* context, int32_t count, void (*body)(void* body_context, int32_t index),
                          void* body_context) {
  *(int*)context += 1;
  for (int32_t index = count - 1; index >= 0; --index) body(body_context, index);
}

static void test_the_callers_parallel_for_runs_everything(void) {
  enum { kSeqlen = 600, kHeads = 2, kHeadDim = 4, kElements = kSeqlen * kHeads * kHeadDim };
  static float q[kElements], o[kElements], o_of_pool[kElements];
  for (int index = 0; index < kElements; ++index) q[index] = (float)((index * 37) % 101) / 50.0F - 1.0F;
  strobe_tensor tensor = {.data = q,
                          .rank = 4,
                          .shape = {1, kSeqlen, kHeads, kHeadDim},
                          .strides = {kElements, kHeads * kHeadDim, kHeadDim, 1}};
  strobe_forward_arguments arguments = {.struct_size = sizeof arguments, .q = tensor, .k = tensor, .v = tensor};
  arguments.o = tensor;
  arguments.o.data = o;
  CHECK(strobe_forward(&arguments, NULL, NULL) == STROBE_OK);
  int calls = 0;
  const strobe_execution execution = {
      .struct_size = sizeof execution, .threads = 3, .parallel_for = count_and_run, .parallel_for_context = &calls};
  arguments.o.data = o_of_pool;
  CHECK(strobe_forward(&arguments, NULL, &execution) == STROBE_OK);
  CHECK(calls > 0);
  CHECK(memcmp(o, o_of_pool, sizeof o) == 0);
}

static void test_a_plan_runs_in_the_callers_workspace(void) {
  two_keys call = make_two_keys();
  const strobe_options options = unit_scale();
  const strobe_forward_arguments forward = forward_of(&call);
  const strobe_backward_arguments backward = backward_of(&call);
  strobe_plan* forward_plan = NULL;
  strobe_plan* backward_plan = NULL;
  CHECK(strobe_plan_forward(&forward, &options, NULL, &forward_plan) == STROBE_OK);
  CHECK(strobe_plan_backward(&backward, &options, NULL, &backward_plan) == STROBE_OK);
  CHECK(strstr(strobe_plan_explain(forward_plan), "cpu") != NULL);
  const size_t bytes =
      (strobe_plan_workspace_size(backward_plan) + strobe_plan_workspace_size(forward_plan) + 63) / 64 * 64;
  strobe_execution execution = {.struct_size = sizeof execution, .workspace_bytes = bytes};
  execution.workspace = aligned_alloc(64, bytes);
  CHECK(strobe_plan_run_forward(forward_plan, &forward, &execution) == STROBE_OK);
  CHECK(strobe_plan_run_backward(backward_plan, &backward, &execution) == STROBE_OK);
  CHECK(near(call.o[0], expected_o()));
  CHECK(near(call.dv[1], 2.0 * (1.0 - expected_p())));
  CHECK(strobe_plan_run_backward(forward_plan, &backward, &execution) == STROBE_INVALID_ARGUMENT);
  free(execution.workspace);
  strobe_plan_destroy(forward_plan);
  strobe_plan_destroy(backward_plan);
}

static void* allocate_once(void* context, size_t bytes) {
  void** memory = (void**)context;
  CHECK(*memory == NULL);
  *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *memory;
}

static void* allocate_nothing(void* context, size_t bytes) {
  *(size_t*)context = bytes;
  return NULL;
}

static void test_the_caller_allocates_the_workspace(void) {
  two_keys call = make_two_keys();
  const strobe_options options = unit_scale();
  const strobe_forward_arguments forward = forward_of(&call);
  void* memory = NULL;
  strobe_execution execution = {.struct_size = sizeof execution,
                                .allocate_workspace = allocate_once,
                                .allocate_workspace_context = (void*)&memory};
  CHECK(strobe_forward(&forward, &options, &execution) == STROBE_OK);
  CHECK(memory != NULL);
  CHECK(near(call.o[0], expected_o()));
  free(memory);
  size_t bytes = 0;
  execution.allocate_workspace = allocate_nothing;
  execution.allocate_workspace_context = &bytes;
  CHECK(strobe_forward(&forward, &options, &execution) == STROBE_OUT_OF_MEMORY);
  CHECK(bytes > 0);
}

static void test_null_plans_are_rejected(void) {
  two_keys call = make_two_keys();
  const strobe_forward_arguments arguments = forward_of(&call);
  CHECK_REJECTED(strobe_plan_forward(&arguments, NULL, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "plan is null: give the address of a strobe_plan pointer");
  CHECK_REJECTED(strobe_plan_run_forward(NULL, &arguments, NULL), STROBE_INVALID_ARGUMENT,
                 "plan is null: give a plan that strobe_plan_forward or strobe_plan_backward made");
  CHECK(strobe_plan_workspace_size(NULL) == 0);
  CHECK(strcmp(strobe_plan_explain(NULL), "") == 0);
  strobe_plan_destroy(NULL);
}

static const named_test kTests[] = {
    TEST(version_is_the_projects),
    TEST(versions_compare_as_numbers),
    TEST(forward_and_backward),
    TEST(options_may_be_null),
    TEST(options_reach_the_engine),
    TEST(lengths_reach_the_engine),
    TEST(a_smaller_older_struct_gets_defaults),
    TEST(a_larger_newer_struct_passes_while_its_news_are_zero),
    TEST(a_missing_struct_size_is_rejected),
    TEST(an_empty_tensor_may_have_strides_of_0),
    TEST(another_device_than_the_cpus_only_one_is_rejected),
    TEST(null_arguments_are_rejected),
    TEST(numbers_that_name_nothing_are_rejected),
    TEST(engines_of_earlier_releases_are_the_gpus),
    TEST(the_last_error_is_of_the_last_call),
    TEST(the_callers_parallel_for_runs_everything),
    TEST(a_plan_runs_in_the_callers_workspace),
    TEST(the_caller_allocates_the_workspace),
    TEST(null_plans_are_rejected),
};

int main(int argc, char** argv) { return run_tests(kTests, sizeof kTests / sizeof kTests[0], argc, argv); }
