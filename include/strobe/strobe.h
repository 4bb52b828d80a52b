// SPDX-License-Identifier: Apache-2.0
/* The C ABI of Strobe. It throws no exceptions; layouts and semantics are those of attention.h.
 *
 * Every struct begins with struct_size: set it to sizeof(the struct). A newer library uses defaults for fields that
 * your struct does not have; an older one returns an error for unknown fields that are not zero. Zero-initialise
 * structs (= {0}) before setting fields: zero is every field's default. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "strobe/export.h"
#include "strobe/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* @stable */
#define STROBE_MAX_RANK 4

/* @stable */
typedef enum strobe_code {
  STROBE_OK = 0,
  STROBE_INVALID_ARGUMENT = 1,
  STROBE_UNSUPPORTED = 2,
  STROBE_OUT_OF_MEMORY = 3,
  STROBE_DEVICE_ERROR = 4,
  STROBE_INTERNAL_ERROR = 5 /* an exception in the caller's parallel_for or allocate_workspace */
} strobe_code;

/* @stable */
typedef enum strobe_dtype {
  STROBE_FLOAT32 = 0,
  STROBE_FLOAT16 = 1,
  STROBE_BFLOAT16 = 2,
  STROBE_INT32 = 3,
  STROBE_FLOAT8_E4M3 = 4,
  STROBE_UINT8 = 5,
  STROBE_INT8 = 6,
  STROBE_INT64 = 7
} strobe_dtype;

/* @stable */
typedef enum strobe_device_type { STROBE_CPU = 0, STROBE_CUDA = 1 } strobe_device_type;

/* @stable */
typedef enum strobe_causal {
  STROBE_CAUSAL_NONE = 0,
  STROBE_CAUSAL_BOTTOM_RIGHT = 1,
  STROBE_CAUSAL_TOP_LEFT = 2
} strobe_causal;

/* As strobe::Normalization. @experimental */
typedef enum strobe_normalization { STROBE_NORMALIZE_SOFTMAX = 0, STROBE_NORMALIZE_NONE = 1 } strobe_normalization;

/* @stable */
typedef enum strobe_engine {
  STROBE_ENGINE_AUTOMATIC = 0,
  STROBE_ENGINE_CPU = 1,
  STROBE_ENGINE_AMPERE = 2, /* deprecated: STROBE_ENGINE_GPU with the kernels "sm80" */
  STROBE_ENGINE_HOPPER = 3, /* deprecated: STROBE_ENGINE_GPU */
  STROBE_ENGINE_GPU = 4     /* NVIDIA GPUs of compute capability 8.0 and later */
} strobe_engine;

/* A non-owning view. rank 0: not given. Strides are in elements; the last one must be 1. @stable */
typedef struct strobe_tensor {
  void* data; /* inputs are never written */
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
  int32_t rank;
  int64_t shape[STROBE_MAX_RANK];
  int64_t strides[STROBE_MAX_RANK];
} strobe_tensor;

/* @stable */
typedef struct strobe_options {
  size_t struct_size;
  float scale; /* multiplies Q K^T; read only if has_scale is not 0, else 1/sqrt(head_dim) */
  int32_t has_scale;
  int32_t causal;       /* strobe_causal */
  int32_t has_window;   /* 0: no window, and the two bounds are not read */
  int64_t window_left;  /* keys before the diagonal; -1: no bound */
  int64_t window_right; /* keys after the diagonal; -1: no bound */
  float softcap;        /* 0: none */
  float dropout;        /* in [0, 511/512), rounded to 1/256; 0: none */
  int64_t chunk;        /* chunked attention; 0: none */
  int32_t deterministic;
  int32_t row_invariant; /* 0 or 1: a row's bits do not depend on the rest of the call (attention.h) */
  int64_t log_length;    /* log-length scaling beyond this many keys; 0: none */
  int32_t normalize;     /* strobe_normalization */
  int32_t reserved;      /* must be 0 */
} strobe_options;

/* As strobe::Sequences. A max_seqlen of 0 means unknown. @stable */
typedef struct strobe_sequences {
  strobe_tensor cu_seqlens_q;
  strobe_tensor cu_seqlens_k;
  strobe_tensor seqused_q;
  strobe_tensor seqused_k;
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;
} strobe_sequences;

/* As strobe::ScoreModifiers; every tensor is optional. @stable */
typedef struct strobe_score_modifiers {
  strobe_tensor alibi_slopes;
  strobe_tensor bias;
  strobe_tensor sink;
  strobe_tensor block_mask;
  int64_t block_size; /* of block_mask: 64 or 128; 0 means 128 */
} strobe_score_modifiers;

/* As strobe::RandomState. @stable */
typedef struct strobe_random_state {
  uint64_t seed;
  uint64_t offset;
} strobe_random_state;

/* As strobe::Rotation. @experimental */
typedef struct strobe_rotation {
  int32_t given;    /* 0: none */
  int32_t reserved; /* must be 0 */
  uint64_t seed;
} strobe_rotation;

/* A tensor that texts read, as strobe::CaptureType. @experimental */
typedef struct strobe_capture_type {
  const char* name; /* copied */
  int32_t dtype;    /* strobe_dtype */
  int32_t rank;     /* from 0 to 4; of rank 0 the tensor of a call has one element in one dimension */
} strobe_capture_type;

/* As strobe::ScoreFunction. @experimental */
typedef struct strobe_score_function strobe_score_function;

/* @stable, but for q_shift, v_rotation, offset_q, offset_k, dropout_first_batch, dropout_first_head, dropout_heads,
 * function, captures, capture_count, reserved, qv */
typedef struct strobe_forward_arguments {
  size_t struct_size;
  strobe_tensor q, k, v;
  strobe_tensor o;
  strobe_tensor lse; /* optional */
  strobe_sequences sequences;
  strobe_tensor q_descale, k_descale, v_descale; /* int8 and float8_e4m3 inputs */
  strobe_tensor page_table;                      /* optional: k and v are pools of pages */
  strobe_score_modifiers modifiers;
  strobe_random_state random; /* read when dropout is not 0 */
  strobe_tensor max_logits;   /* optional */
  /* As strobe::RandomState::on_device: null, or seed and offset on q's device, read instead of `random`. */
  const uint64_t* random_on_device;
  strobe_tensor q_shift;      /* int8 and float8_e4m3 inputs: optional */
  strobe_rotation v_rotation; /* likewise */
  /* As those of strobe::Sequences: optional. */
  strobe_tensor leftpad_k;
  strobe_tensor cache_batch_idx;
  strobe_tensor tree_mask;          /* optional: int64, a bit for each of the sequence's last keys */
  strobe_tensor offset_q, offset_k; /* as those of strobe::Sequences: optional */
  int64_t dropout_first_batch, dropout_first_head, dropout_heads; /* as those of strobe::RandomState */
  /* As those of strobe::ScoreModifiers: null, or the function of texts, and as many tensors as it has captures. */
  const strobe_score_function* function;
  const strobe_tensor* captures;
  int32_t capture_count;
  int32_t reserved; /* must be 0 */
  strobe_tensor qv; /* optional */
} strobe_forward_arguments;

/* As strobe::ScaleUnit. @experimental */
typedef enum strobe_scale_unit {
  STROBE_SCALE_TENSOR = 0,
  STROBE_SCALE_HEAD = 1,
  STROBE_SCALE_BLOCK = 2,
  STROBE_SCALE_GROUP = 3,
  STROBE_SCALE_ROW = 4
} strobe_scale_unit;

/* As strobe::QuantizeOptions, without its defaults. @experimental */
typedef struct strobe_quantize_options {
  size_t struct_size;
  int32_t element;                      /* strobe_dtype: int8 or float8_e4m3 */
  int32_t q_scales, k_scales, v_scales; /* strobe_scale_unit */
  int32_t rotate_qk, rotate_v, center_k;
  int32_t reserved; /* must be 0 */
  uint64_t seed;
} strobe_quantize_options;

/* As strobe::QuantizeArguments. @experimental */
typedef struct strobe_quantize_arguments {
  size_t struct_size;
  strobe_tensor q, k, v;
  strobe_tensor q8, k8, v8;
  strobe_tensor q_descale, k_descale, v_descale;
  strobe_tensor q_shift;
  strobe_sequences sequences; /* packed q, k and v */
} strobe_quantize_arguments;

/* As strobe::MergeArguments: part i is part_o[i] and part_lse[i]. @stable */
typedef struct strobe_merge_arguments {
  size_t struct_size;
  const strobe_tensor* part_o;
  const strobe_tensor* part_lse;
  int32_t parts;    /* from 1 to 256 */
  int32_t reserved; /* must be 0 */
  strobe_tensor o;
  strobe_tensor lse; /* optional */
} strobe_merge_arguments;

/* As strobe::MergeBackwardArguments: part i is part_o[i] and part_lse[i], and its gradient part_d_o[i] and
 * part_d_lse[i]. @experimental */
typedef struct strobe_merge_backward_arguments {
  size_t struct_size;
  const strobe_tensor* part_o;
  const strobe_tensor* part_lse;
  const strobe_tensor* part_d_o;
  const strobe_tensor* part_d_lse;
  int32_t parts;    /* from 1 to 256 */
  int32_t reserved; /* must be 0 */
  strobe_tensor d_o;
  strobe_tensor d_lse; /* optional */
} strobe_merge_backward_arguments;

/* As strobe::AppendArguments. @stable */
typedef struct strobe_append_arguments {
  size_t struct_size;
  strobe_tensor k_cache, v_cache;
  strobe_tensor k_new, v_new;
  strobe_tensor cu_seqlens_new; /* optional */
  strobe_tensor cache_seqlens;
  strobe_tensor page_table, leftpad_k, cache_batch_idx; /* optional */
  strobe_tensor cos, sin;                               /* optional */
  strobe_tensor positions;                              /* optional */
  strobe_tensor q, q_out, cu_seqlens_q, positions_q;    /* optional */
  strobe_tensor k_descale, v_descale;                   /* of caches of int8 and float8_e4m3 */
  int32_t interleaved;
  int32_t q_at_first_position;                /* not 0: q_in_order is false */
  strobe_tensor k_row_descale, v_row_descale; /* instead of k_descale and v_descale: written. @experimental */
} strobe_append_arguments;

/* As strobe::QuantizationMode. @experimental */
typedef enum strobe_quantization_mode {
  STROBE_QUANTIZATION_AUTOMATIC = 0,
  STROBE_QUANTIZATION_FAST = 1,
  STROBE_QUANTIZATION_ACCURATE = 2
} strobe_quantization_mode;

/* As strobe::ErrorBudget. @experimental */
typedef struct strobe_error_budget {
  size_t struct_size;
  int32_t mode;     /* strobe_quantization_mode */
  int32_t reserved; /* must be 0 */
  double max_rmse;  /* 0: none */
  double max_error; /* 0: none */
} strobe_error_budget;

/* As strobe::QuantizationPlan. @experimental */
typedef struct strobe_quantization_plan {
  size_t struct_size;
  strobe_quantize_options options; /* complete, for strobe_quantize */
  double rmse;
  double error_bound;
  int32_t measured; /* 0: q, k and v were taken to be normal */
  int32_t reserved;
  int64_t keys_per_sum;
  const char* explanation; /* valid until the calling thread's next strobe_plan_quantization */
} strobe_quantization_plan;

/* @stable, but for offset_q, offset_k, dropout_first_batch, dropout_first_head, dropout_heads, function, captures,
 * capture_count, reserved, d_captures, qv, dqv */
typedef struct strobe_backward_arguments {
  size_t struct_size;
  strobe_tensor q, k, v;
  strobe_tensor o, lse, d_o;
  strobe_tensor d_lse; /* optional */
  strobe_tensor dq, dk, dv;
  strobe_sequences sequences;
  strobe_score_modifiers modifiers;
  strobe_random_state random;
  strobe_tensor d_bias, d_sink;     /* optional */
  const uint64_t* random_on_device; /* the forward's */
  strobe_tensor offset_q, offset_k; /* likewise */
  int64_t dropout_first_batch, dropout_first_head, dropout_heads;
  const strobe_score_function* function; /* the forward's, with its captures */
  const strobe_tensor* captures;
  int32_t capture_count;
  int32_t reserved;                /* must be 0 */
  const strobe_tensor* d_captures; /* null, or capture_count tensors, float32; of rank 0 where none is wanted */
  strobe_tensor qv, dqv;           /* optional: the forward's, and its gradient */
} strobe_backward_arguments;

/* As strobe::JvpArguments, which says what is optional. @experimental */
typedef struct strobe_jvp_arguments {
  size_t struct_size;
  strobe_tensor q, k, v;
  strobe_tensor q_tangent, k_tangent, v_tangent; /* optional: zero */
  strobe_tensor o, lse;                          /* optional */
  strobe_tensor o_tangent;
  strobe_tensor lse_tangent; /* optional */
  strobe_sequences sequences;
  strobe_score_modifiers modifiers;
  strobe_random_state random;
  const uint64_t* random_on_device;
  strobe_tensor offset_q, offset_k; /* optional */
  int64_t dropout_first_batch, dropout_first_head, dropout_heads;
} strobe_jvp_arguments;

/* As strobe::ScoreFunction::parse; `score` or `mask` may be null. On success it writes *function, to be freed by
 * strobe_score_function_free when no call that was given it runs; the other two take null, too. The text of
 * strobe_score_function_explain is valid as long as the function. Errors name the column. @experimental */
STROBE_API strobe_code strobe_score_function_parse(const char* score, const char* mask,
                                                   const strobe_capture_type* captures, int32_t capture_count,
                                                   strobe_score_function** function);
STROBE_API const char* strobe_score_function_explain(const strobe_score_function* function);
STROBE_API void strobe_score_function_free(strobe_score_function* function);

/* Must call body(body_context, i) for every i < count, in parallel or one after another, and return when all are
 * done. `context` is strobe_execution's parallel_for_context. @stable */
typedef void (*strobe_parallel_for)(void* context, int32_t count, void (*body)(void* body_context, int32_t index),
                                    void* body_context);

/* As strobe::AllocateWorkspace. `context` is strobe_execution's allocate_workspace_context. @stable */
typedef void* (*strobe_allocate_workspace)(void* context, size_t bytes);

/* @stable, but for kernels */
typedef struct strobe_execution {
  size_t struct_size;
  int32_t engine;                   /* strobe_engine */
  int32_t threads;                  /* CPU workers; 0: one per hardware thread */
  strobe_parallel_for parallel_for; /* null: the library's own pool */
  void* parallel_for_context;
  void* stream;    /* GPU: a CUstream; must be null on the CPU */
  void* workspace; /* on the tensors' device; null: allocated for the call, on a GPU for the plan */
  size_t workspace_bytes;
  strobe_allocate_workspace allocate_workspace; /* null: the library allocates what a call without workspace needs */
  void* allocate_workspace_context;
  const char* kernels; /* GPU, attention: "sm90" or "sm80", for tests and benchmarks; null: the fastest of the call */
} strobe_execution;

/* @stable */
typedef struct strobe_plan strobe_plan;

/* The library's version, "major.minor.patch". @stable */
STROBE_API const char* strobe_version(void);

/* The error message of the calling thread's last call; "" if it succeeded. Valid until the thread's next call.
 * @stable */
STROBE_API const char* strobe_last_error(void);

/* `options` and `execution` may be null: defaults. @stable */
STROBE_API strobe_code strobe_forward(const strobe_forward_arguments* arguments, const strobe_options* options,
                                      const strobe_execution* execution);
STROBE_API strobe_code strobe_backward(const strobe_backward_arguments* arguments, const strobe_options* options,
                                       const strobe_execution* execution);

/* As strobe::jvp: the forward-mode derivative, on the CPU. @experimental */
STROBE_API strobe_code strobe_jvp(const strobe_jvp_arguments* arguments, const strobe_options* options,
                                  const strobe_execution* execution);

/* As strobe::quantize; `options` must be given. @experimental */
STROBE_API strobe_code strobe_quantize(const strobe_quantize_arguments* arguments,
                                       const strobe_quantize_options* options, const strobe_execution* execution);

/* As strobe::merge. @stable */
STROBE_API strobe_code strobe_merge(const strobe_merge_arguments* arguments, const strobe_execution* execution);
/* As strobe::merge_backward. @experimental */
STROBE_API strobe_code strobe_merge_backward(const strobe_merge_backward_arguments* arguments,
                                             const strobe_execution* execution);

/* As strobe::append. @stable */
STROBE_API strobe_code strobe_append(const strobe_append_arguments* arguments, const strobe_execution* execution);

/* As strobe::plan_quantization. `budget` and `options` may be null: defaults. Writes *plan, whose struct_size must be
 * set. @experimental */
STROBE_API strobe_code strobe_plan_quantization(const strobe_tensor* q, const strobe_tensor* k, const strobe_tensor* v,
                                                const strobe_error_budget* budget, const strobe_options* options,
                                                uint64_t seed, strobe_quantization_plan* plan);

/* As strobe::dropout_mask and the builders of block_mask.h. @stable */
STROBE_API strobe_code strobe_dropout_mask(float dropout, const strobe_random_state* random, const strobe_tensor* mask);
STROBE_API strobe_code strobe_local_block_mask(const strobe_tensor* mask, int64_t left, int64_t right);
STROBE_API strobe_code strobe_strided_block_mask(const strobe_tensor* mask, int64_t stride);
STROBE_API strobe_code strobe_butterfly_block_mask(const strobe_tensor* mask);

/* Plan a call from shapes, strides and dtypes alone: data pointers may be null. On success they write *plan, to be
 * freed by strobe_plan_destroy. @stable */
STROBE_API strobe_code strobe_plan_forward(const strobe_forward_arguments* arguments, const strobe_options* options,
                                           const strobe_execution* execution, strobe_plan** plan);
STROBE_API strobe_code strobe_plan_backward(const strobe_backward_arguments* arguments, const strobe_options* options,
                                            const strobe_execution* execution, strobe_plan** plan);
STROBE_API size_t strobe_plan_workspace_size(const strobe_plan* plan);
STROBE_API const char* strobe_plan_explain(const strobe_plan* plan); /* valid as long as the plan */
STROBE_API strobe_code strobe_plan_run_forward(const strobe_plan* plan, const strobe_forward_arguments* arguments,
                                               const strobe_execution* execution);
STROBE_API strobe_code strobe_plan_run_backward(const strobe_plan* plan, const strobe_backward_arguments* arguments,
                                                const strobe_execution* execution);
STROBE_API void strobe_plan_destroy(strobe_plan* plan); /* null is accepted */

#ifdef __cplusplus
} /* extern "C" */
#endif
