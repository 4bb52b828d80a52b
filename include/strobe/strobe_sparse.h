// SPDX-License-Identifier: Apache-2.0
/* Row formats and sparse attention in C: as row_format.h and sparse.h have them, with the conventions of strobe.h. */
#pragma once

#include "strobe/strobe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As strobe::RowElement. @experimental */
typedef enum strobe_row_element {
  STROBE_ROW_FLOAT32 = 0,
  STROBE_ROW_BFLOAT16 = 1,
  STROBE_ROW_FLOAT16 = 2,
  STROBE_ROW_FLOAT8_E4M3 = 3,
  STROBE_ROW_INT8 = 4,
  STROBE_ROW_INT4 = 5,
  STROBE_ROW_FLOAT4_E2M1 = 6
} strobe_row_element;

/* As strobe::RowScale. @experimental */
typedef enum strobe_row_scale {
  STROBE_ROW_SCALE_NONE = 0,
  STROBE_ROW_SCALE_FLOAT32 = 1,
  STROBE_ROW_SCALE_BFLOAT16 = 2,
  STROBE_ROW_SCALE_FLOAT8_E8M0 = 3,
  STROBE_ROW_SCALE_FLOAT32_POWER_OF_TWO = 4,
  STROBE_ROW_SCALE_FLOAT8_E4M3 = 5
} strobe_row_scale;

/* @experimental */
#define STROBE_MAX_ROW_PARTS 4

/* As strobe::RowPart. @experimental */
typedef struct strobe_row_part {
  int32_t element; /* strobe_row_element */
  int32_t columns;
  int32_t offset;
  int32_t scale; /* strobe_row_scale */
  int32_t scale_columns;
  int32_t scale_offset;
} strobe_row_part;

/* As strobe::RowFormat. @experimental */
typedef struct strobe_row_format {
  size_t struct_size;
  strobe_row_part parts[STROBE_MAX_ROW_PARTS];
  int32_t part_count;
  int32_t head_dim_v;
  int32_t row_bytes;
  int32_t tail_bytes;
  int32_t alignment;
  int32_t reserved; /* must be 0 */
} strobe_row_format;

/* Formats that are ready to use. @experimental */
typedef enum strobe_ready_rows {
  STROBE_ROWS_MLA_BFLOAT16 = 0,
  STROBE_ROWS_DEEPSEEK_V32 = 1,
  STROBE_ROWS_DEEPSEEK_V4 = 2,
  STROBE_ROWS_DEEPSEEK_V41 = 3,
  STROBE_ROWS_DEEPSEEK_V41_FOUR_BIT = 4
} strobe_ready_rows;

/* As strobe::AppendRowsArguments. @experimental */
typedef struct strobe_append_rows_arguments {
  size_t struct_size;
  strobe_tensor cache, rows, cache_seqlens;
  strobe_tensor cu_seqlens_new, page_table, cache_batch_idx; /* optional */
} strobe_append_rows_arguments;

/* As strobe::SparseSource. @experimental */
typedef struct strobe_sparse_source {
  size_t struct_size;
  strobe_tensor k;
  strobe_tensor v;                   /* optional */
  const strobe_row_format* k_format; /* null: none */
  const strobe_row_format* v_format; /* null: none */
  strobe_tensor indices;
  strobe_tensor topk_length, cu_seqlens_k, page_table, seqused_k; /* optional */
  int64_t block_size;                                             /* 0: 1 */
  int32_t in_pool;
  int32_t causal;
} strobe_sparse_source;

/* As strobe::SparseOptions. @experimental */
typedef struct strobe_sparse_options {
  size_t struct_size;
  float scale; /* read only if has_scale is not 0, else 1/sqrt(head_dim) */
  int32_t has_scale;
  float softcap;    /* 0: none */
  int32_t reserved; /* must be 0 */
} strobe_sparse_options;

/* As strobe::SparseForwardArguments. @experimental */
typedef struct strobe_sparse_arguments {
  size_t struct_size;
  strobe_tensor q;
  const strobe_sparse_source* source;
  const strobe_sparse_source* extra; /* null: none */
  strobe_tensor o;
  strobe_tensor lse, sink, cu_seqlens_q; /* optional */
} strobe_sparse_arguments;

/* As strobe::SparseBackwardArguments. @experimental */
typedef struct strobe_sparse_backward_arguments {
  size_t struct_size;
  const strobe_sparse_arguments* forward; /* with o and lse as the forward wrote them */
  strobe_tensor d_o;
  strobe_tensor d_lse; /* optional */
  strobe_tensor dq;
  strobe_tensor dk, dv;             /* of forward->source; dv where it has v */
  strobe_tensor extra_dk, extra_dv; /* of forward->extra, likewise */
  strobe_tensor d_sink;             /* optional */
} strobe_sparse_backward_arguments;

/* Writes one of strobe_ready_rows to *format, whose struct_size must be set. @experimental */
STROBE_API strobe_code strobe_ready_row_format(int32_t which, strobe_row_format* format);

/* As strobe::eight_bit_rows, likewise; `element` is STROBE_ROW_FLOAT8_E4M3 or STROBE_ROW_INT8. @experimental */
STROBE_API strobe_code strobe_eight_bit_row_format(int32_t element, int32_t columns, strobe_row_format* format);

/* As strobe::encode_rows and strobe::decode_rows. @experimental */
STROBE_API strobe_code strobe_encode_rows(const strobe_tensor* rows, const strobe_tensor* cache,
                                          const strobe_row_format* format, const strobe_execution* execution);
STROBE_API strobe_code strobe_decode_rows(const strobe_tensor* cache, const strobe_tensor* rows,
                                          const strobe_row_format* format, const strobe_execution* execution);

/* As strobe::append_rows. @experimental */
STROBE_API strobe_code strobe_append_rows(const strobe_append_rows_arguments* arguments,
                                          const strobe_row_format* format, const strobe_execution* execution);

/* As strobe::sparse_forward and strobe::sparse_backward. `options` and `execution` may be null: defaults.
 * @experimental */
STROBE_API strobe_code strobe_sparse_forward(const strobe_sparse_arguments* arguments,
                                             const strobe_sparse_options* options, const strobe_execution* execution);
STROBE_API strobe_code strobe_sparse_backward(const strobe_sparse_backward_arguments* arguments,
                                              const strobe_sparse_options* options, const strobe_execution* execution);

/* As strobe::explain_sparse_forward: runs nothing. Writes the text, cut to `size` bytes with the 0 that ends it, and to
 * *needed how many bytes all of it takes, likewise. `text` may be null where size is 0, and `needed` where nobody asks.
 * @experimental */
STROBE_API strobe_code strobe_explain_sparse_forward(const strobe_sparse_arguments* arguments,
                                                     const strobe_sparse_options* options,
                                                     const strobe_execution* execution, char* text, size_t size,
                                                     size_t* needed);

#ifdef __cplusplus
} /* extern "C" */
#endif
