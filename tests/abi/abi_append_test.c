// SPDX-License-Identifier: Apache-2.0
/* strobe_append through the C ABI. */
#include "calls.h"
#include "check.h"

/* One sequence with one row in a cache of two pages of one row; its second, of two columns, is turned by a right angle.
 */
typedef struct append_call {
  float k[4], v[2], k_new[2], v_new[1], cos[2], sin[2], q[4], q_out[4];
  int32_t cache_seqlens[1], page_table[2];
  strobe_append_arguments arguments;
} append_call;

static strobe_tensor rows_of(float* data, int64_t batch, int64_t rows, int64_t columns) {
  return (strobe_tensor){.data = data,
                         .dtype = STROBE_FLOAT32,
                         .rank = 4,
                         .shape = {batch, rows, 1, columns},
                         .strides = {rows * columns, columns, columns, 1}};
}

static strobe_tensor matrix_of(void* data, int32_t dtype, int64_t rows, int64_t columns) {
  return (strobe_tensor){.data = data, .dtype = dtype, .rank = 2, .shape = {rows, columns}, .strides = {columns, 1}};
}

static void make_call(append_call* c) {
  *c = (append_call){.k_new = {3.0F, 4.0F},
                     .v_new = {5.0F},
                     .cos = {1.0F, 0.0F},
                     .sin = {0.0F, 1.0F},
                     .q = {1.0F, 2.0F, 3.0F, 4.0F},
                     .cache_seqlens = {1},
                     .page_table = {1, 0}};
  c->arguments = (strobe_append_arguments){.struct_size = sizeof(c->arguments),
                                           .k_cache = rows_of(c->k, 2, 1, 2),
                                           .v_cache = rows_of(c->v, 2, 1, 1),
                                           .k_new = rows_of(c->k_new, 1, 1, 2),
                                           .v_new = rows_of(c->v_new, 1, 1, 1),
                                           .cache_seqlens = vector_of(c->cache_seqlens, STROBE_INT32, 1),
                                           .page_table = matrix_of(c->page_table, STROBE_INT32, 1, 2),
                                           .cos = matrix_of(c->cos, STROBE_FLOAT32, 2, 1),
                                           .sin = matrix_of(c->sin, STROBE_FLOAT32, 2, 1),
                                           .q = rows_of(c->q, 1, 2, 2),
                                           .q_out = rows_of(c->q_out, 1, 2, 2),
                                           .q_at_first_position = 1};
}

static void test_a_row_is_appended_to_its_page(void) {
  append_call c;
  make_call(&c);
  CHECK(strobe_append(&c.arguments, NULL) == STROBE_OK);
  CHECK(near(c.k[0], -4.0) && near(c.k[1], 3.0));
  CHECK(near(c.v[0], 5.0));
  CHECK(c.k[2] == 0.0F && c.k[3] == 0.0F && c.v[1] == 0.0F);
  CHECK(near(c.q_out[0], -2.0) && near(c.q_out[1], 1.0) && near(c.q_out[2], -4.0) && near(c.q_out[3], 3.0));
}

static void test_scales_of_rows_are_written(void) {
  append_call c;
  make_call(&c);
  int8_t k[4] = {0}, v[2] = {0};
  float k_scales[2] = {7.0F, 7.0F}, v_scales[2] = {7.0F, 7.0F};
  c.arguments.k_cache.data = k;
  c.arguments.v_cache.data = v;
  c.arguments.k_cache.dtype = c.arguments.v_cache.dtype = STROBE_INT8;
  c.arguments.k_row_descale = c.arguments.v_row_descale =
      (strobe_tensor){.data = k_scales, .dtype = STROBE_FLOAT32, .rank = 3, .shape = {2, 1, 1}, .strides = {1, 1, 1}};
  c.arguments.v_row_descale.data = v_scales;
  CHECK(strobe_append(&c.arguments, NULL) == STROBE_OK);
  CHECK(near(k_scales[0], 4.0 / 127.0) && k_scales[1] == 7.0F);
  CHECK(near(v_scales[0], 5.0 / 127.0) && v_scales[1] == 7.0F);
  CHECK(k[0] == -127 && k[1] == 95 && k[2] == 0 && v[0] == 127 && v[1] == 0);
}

static void test_queries_advance_by_default(void) {
  append_call c;
  make_call(&c);
  c.arguments.q_at_first_position = 0;
  CHECK_REJECTED(strobe_append(&c.arguments, NULL), STROBE_INVALID_ARGUMENT,
                 "query 1 of sequence 0 is at position 2: cos and sin have 2 positions");
}

static void test_appends_that_are_not_valid_are_rejected(void) {
  append_call c;
  make_call(&c);
  CHECK_REJECTED(strobe_append(NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "arguments is null: give a strobe_append_arguments");
  c.page_table[1] = 2;
  CHECK_REJECTED(strobe_append(&c.arguments, NULL), STROBE_INVALID_ARGUMENT,
                 "page_table[0][1] is 2: the pages of k_cache and v_cache are numbered from 0 to 1");
  CHECK(c.k[0] == 0.0F);
}

static const named_test kTests[] = {
    TEST(a_row_is_appended_to_its_page),
    TEST(scales_of_rows_are_written),
    TEST(queries_advance_by_default),
    TEST(appends_that_are_not_valid_are_rejected),
};

int main(int argc, char** argv) { return run_tests(kTests, sizeof kTests / sizeof kTests[0], argc, argv); }
