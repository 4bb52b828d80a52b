// SPDX-License-Identifier: Apache-2.0
/* Row formats and sparse attention through the C ABI. */
#include "strobe/strobe_sparse.h"

#include <math.h>
#include <string.h>

#include "check.h"

static strobe_tensor tensor_of(void* data, int32_t dtype, int32_t rank, int64_t a, int64_t b, int64_t c, int64_t d) {
  const int64_t shape[4] = {a, b, c, d};
  strobe_tensor tensor = {.data = data, .dtype = dtype, .rank = rank};
  int64_t stride = 1;
  for (int axis = rank - 1; axis >= 0; --axis) {
    tensor.shape[axis] = shape[axis];
    tensor.strides[axis] = stride;
    stride *= shape[axis];
  }
  return tensor;
}

/* One query of one column and three keys of which it reads the last two; their scores are log(1) and log(3). */
typedef struct sparse_call {
  float q[1], k[3], v[3], o[1], lse[1];
  int32_t indices[2];
  strobe_sparse_source source;
  strobe_sparse_arguments arguments;
} sparse_call;

static void make_call(sparse_call* c) {
  *c = (sparse_call){.q = {1.0F}, .k = {NAN, 0.0F, logf(3.0F)}, .v = {NAN, 4.0F, 8.0F}, .indices = {2, 1}};
  c->source = (strobe_sparse_source){.struct_size = sizeof(c->source),
                                     .k = tensor_of(c->k, STROBE_FLOAT32, 4, 1, 3, 1, 1),
                                     .v = tensor_of(c->v, STROBE_FLOAT32, 4, 1, 3, 1, 1),
                                     .indices = tensor_of(c->indices, STROBE_INT32, 4, 1, 1, 1, 2)};
  c->arguments = (strobe_sparse_arguments){.struct_size = sizeof(c->arguments),
                                           .q = tensor_of(c->q, STROBE_FLOAT32, 4, 1, 1, 1, 1),
                                           .source = &c->source,
                                           .o = tensor_of(c->o, STROBE_FLOAT32, 4, 1, 1, 1, 1),
                                           .lse = tensor_of(c->lse, STROBE_FLOAT32, 3, 1, 1, 1, 1)};
}

static void test_listed_keys_are_attended_to(void) {
  sparse_call c;
  make_call(&c);
  CHECK(strobe_sparse_forward(&c.arguments, NULL, NULL) == STROBE_OK);
  CHECK(near(c.o[0], 7.0));
  CHECK(near(c.lse[0], log(4.0)));
  strobe_sparse_options options = {.struct_size = sizeof(options), .scale = 0.0F, .has_scale = 1};
  c.arguments.extra = &c.source;
  CHECK(strobe_sparse_forward(&c.arguments, &options, NULL) == STROBE_OK);
  CHECK(near(c.o[0], 6.0));
  CHECK(near(c.lse[0], log(4.0)));
}

static void test_a_call_is_explained(void) {
  sparse_call c;
  make_call(&c);
  size_t needed = 0;
  CHECK(strobe_explain_sparse_forward(&c.arguments, NULL, NULL, NULL, 0, &needed) == STROBE_OK);
  char text[4096], begin[11];
  CHECK(needed > sizeof(begin) && needed <= sizeof(text));
  CHECK(strobe_explain_sparse_forward(&c.arguments, NULL, NULL, text, sizeof(text), NULL) == STROBE_OK);
  CHECK(strlen(text) + 1 == needed);
  CHECK(strstr(text, "cpu") != NULL);
  CHECK(strobe_explain_sparse_forward(&c.arguments, NULL, NULL, begin, sizeof(begin), NULL) == STROBE_OK);
  CHECK(strlen(begin) + 1 == sizeof(begin) && strncmp(text, begin, strlen(begin)) == 0);
  CHECK_REJECTED(strobe_explain_sparse_forward(&c.arguments, NULL, NULL, NULL, 5, NULL), STROBE_INVALID_ARGUMENT,
                 "text is null and size is 5: it must be 0 then");
}

static void test_gradients_of_listed_keys(void) {
  sparse_call c;
  make_call(&c);
  CHECK(strobe_sparse_forward(&c.arguments, NULL, NULL) == STROBE_OK);
  float d_o[1] = {1.0F}, dq[1], dk[3], dv[3];
  strobe_sparse_backward_arguments backward = {.struct_size = sizeof(backward),
                                               .forward = &c.arguments,
                                               .d_o = tensor_of(d_o, STROBE_FLOAT32, 4, 1, 1, 1, 1),
                                               .dq = tensor_of(dq, STROBE_FLOAT32, 4, 1, 1, 1, 1),
                                               .dk = tensor_of(dk, STROBE_FLOAT32, 4, 1, 3, 1, 1),
                                               .dv = tensor_of(dv, STROBE_FLOAT32, 4, 1, 3, 1, 1)};
  CHECK(strobe_sparse_backward(&backward, NULL, NULL) == STROBE_OK);
  CHECK(dv[0] == 0.0F);
  CHECK(near(dv[1], 0.25));
  CHECK(near(dv[2], 0.75));
  CHECK(near(dk[1], 0.25 * (4.0 - 7.0)));
  CHECK(near(dk[2], 0.75 * (8.0 - 7.0)));
  CHECK(near(dq[0], 0.75 * log(3.0)));
}

static void test_rows_go_into_a_format_and_out(void) {
  strobe_row_format format = {.struct_size = sizeof(format)};
  CHECK(strobe_ready_row_format(STROBE_ROWS_DEEPSEEK_V32, &format) == STROBE_OK);
  CHECK(format.row_bytes == 656);
  float rows[576], back[576];
  _Alignas(16) unsigned char cache[656];
  for (int i = 0; i < 576; ++i) rows[i] = (float)(i % 8);
  strobe_tensor from = tensor_of(rows, STROBE_FLOAT32, 4, 1, 1, 1, 576);
  strobe_tensor to = tensor_of(cache, STROBE_UINT8, 4, 1, 1, 1, 656);
  CHECK(strobe_encode_rows(&from, &to, &format, NULL) == STROBE_OK);
  strobe_tensor out = tensor_of(back, STROBE_FLOAT32, 4, 1, 1, 1, 576);
  CHECK(strobe_decode_rows(&to, &out, &format, NULL) == STROBE_OK);
  CHECK(memcmp(rows, back, sizeof rows) == 0);
}

/* Columns of 4 bits and of 16 that no ready-made format has: written, read and attended over. */
static void test_a_format_of_ones_own_is_attended_over(void) {
  strobe_row_format format = {.struct_size = sizeof(format),
                              .parts = {{.element = STROBE_ROW_FLOAT4_E2M1,
                                         .columns = 16,
                                         .scale = STROBE_ROW_SCALE_FLOAT8_E4M3,
                                         .scale_columns = 8,
                                         .scale_offset = 8},
                                        {.element = STROBE_ROW_FLOAT16, .columns = 1, .offset = 10}},
                              .part_count = 2,
                              .head_dim_v = 16,
                              .row_bytes = 12,
                              .alignment = 2};
  float rows[2][17] = {{0}};
  rows[0][0] = 1.5F;
  rows[1][0] = 6.0F;
  rows[1][16] = 1.0F; /* a column of K alone */
  _Alignas(16) unsigned char cache[24];
  strobe_tensor from = tensor_of(rows, STROBE_FLOAT32, 4, 1, 2, 1, 17);
  strobe_tensor to = tensor_of(cache, STROBE_UINT8, 4, 1, 2, 1, 12);
  CHECK(strobe_encode_rows(&from, &to, &format, NULL) == STROBE_OK);
  float q[17] = {0}, o[16];
  q[16] = logf(3.0F);
  int32_t indices[2] = {0, 1};
  strobe_sparse_source source = {.struct_size = sizeof(source),
                                 .k = to,
                                 .k_format = &format,
                                 .indices = tensor_of(indices, STROBE_INT32, 4, 1, 1, 1, 2)};
  strobe_sparse_arguments arguments = {.struct_size = sizeof(arguments),
                                       .q = tensor_of(q, STROBE_FLOAT32, 4, 1, 1, 1, 17),
                                       .source = &source,
                                       .o = tensor_of(o, STROBE_FLOAT32, 4, 1, 1, 1, 16)};
  strobe_sparse_options options = {.struct_size = sizeof(options), .scale = 1.0F, .has_scale = 1};
  CHECK(strobe_sparse_forward(&arguments, &options, NULL) == STROBE_OK);
  CHECK(near(o[0], 0.25 * 1.5 + 0.75 * 6.0));
  CHECK(o[1] == 0.0F);
}

static void test_ready_made_formats(void) {
  const int32_t bytes[5] = {1152, 656, 584, 528, 288};
  strobe_row_format format = {.struct_size = sizeof(format)};
  for (int32_t which = STROBE_ROWS_MLA_BFLOAT16; which <= STROBE_ROWS_DEEPSEEK_V41_FOUR_BIT; ++which) {
    CHECK(strobe_ready_row_format(which, &format) == STROBE_OK);
    CHECK(format.row_bytes == bytes[which]);
  }
  CHECK(strobe_eight_bit_row_format(STROBE_ROW_INT8, 126, &format) == STROBE_OK);
  CHECK(format.row_bytes == 132 && format.parts[0].columns == 126 && format.parts[0].scale_offset == 128);
  CHECK_REJECTED(strobe_eight_bit_row_format(STROBE_ROW_INT4, 128, &format), STROBE_INVALID_ARGUMENT,
                 "element is 5: it must be STROBE_ROW_FLOAT8_E4M3 or STROBE_ROW_INT8");
  CHECK_REJECTED(strobe_eight_bit_row_format(STROBE_ROW_INT8, 577, &format), STROBE_INVALID_ARGUMENT,
                 "columns is 577: it must be from 1 to 576");
}

static void test_rows_are_appended_in_a_format(void) {
  strobe_row_format format = {.struct_size = sizeof(format)};
  CHECK(strobe_ready_row_format(STROBE_ROWS_MLA_BFLOAT16, &format) == STROBE_OK);
  float rows[576];
  _Alignas(16) unsigned char cache[3 * 1152] = {0};
  for (int i = 0; i < 576; ++i) rows[i] = 1.0F;
  int32_t seqlens[1] = {1};
  strobe_append_rows_arguments arguments = {.struct_size = sizeof(arguments),
                                            .cache = tensor_of(cache, STROBE_UINT8, 4, 1, 3, 1, 1152),
                                            .rows = tensor_of(rows, STROBE_FLOAT32, 4, 1, 1, 1, 576),
                                            .cache_seqlens = tensor_of(seqlens, STROBE_INT32, 1, 1, 1, 1, 1)};
  CHECK(strobe_append_rows(&arguments, &format, NULL) == STROBE_OK);
  CHECK(cache[1151] == 0);
  CHECK(cache[1152] == 0x80 && cache[1153] == 0x3F);
  CHECK(cache[2304] == 0);
  seqlens[0] = 3;
  CHECK_REJECTED(strobe_append_rows(&arguments, &format, NULL), STROBE_INVALID_ARGUMENT,
                 "sequence 0 has 3 rows and appends 1: its part of the cache has 3");
}

static void test_sparse_calls_that_are_not_valid_are_rejected(void) {
  sparse_call c;
  make_call(&c);
  CHECK_REJECTED(strobe_sparse_forward(NULL, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "arguments is null: give a strobe_sparse_arguments");
  CHECK_REJECTED(strobe_sparse_backward(NULL, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "arguments is null: give a strobe_sparse_backward_arguments");
  c.arguments.source = NULL;
  CHECK_REJECTED(strobe_sparse_forward(&c.arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "sources[0].k is missing: give a tensor of keys");
  strobe_row_format format = {.struct_size = sizeof(format)};
  CHECK_REJECTED(strobe_ready_row_format(5, &format), STROBE_INVALID_ARGUMENT, "which is 5: it must be from 0 to 4");
  CHECK(strobe_ready_row_format(STROBE_ROWS_DEEPSEEK_V4, &format) == STROBE_OK);
  format.parts[0].element = 1000;
  c.source.k_format = &format;
  c.arguments.source = &c.source;
  CHECK_REJECTED(
      strobe_sparse_forward(&c.arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
      "sources[0].k_format: parts[0] has element 255 and scale 3: there are no such numbers of RowElement or "
      "RowScale");
  format.reserved = 1;
  CHECK_REJECTED(strobe_sparse_forward(&c.arguments, NULL, NULL), STROBE_INVALID_ARGUMENT,
                 "strobe_row_format.reserved is 1: it must be 0");
}

static const named_test kTests[] = {
    TEST(listed_keys_are_attended_to),
    TEST(a_call_is_explained),
    TEST(gradients_of_listed_keys),
    TEST(rows_go_into_a_format_and_out),
    TEST(a_format_of_ones_own_is_attended_over),
    TEST(ready_made_formats),
    TEST(rows_are_appended_in_a_format),
    TEST(sparse_calls_that_are_not_valid_are_rejected),
};

int main(int argc, char** argv) { return run_tests(kTests, sizeof kTests / sizeof kTests[0], argc, argv); }
