// SPDX-License-Identifier: Apache-2.0
// What a row of a cache holds, as a value: elements of any width, groups of columns that share a scale, a part that
// keeps 16 bits. A new format of a model is a new value, not a new kernel.
//
// Sources: DeepSeek-AI, FlashMLA, README and tests/quant.py (rows of 656 and 584 bytes); vLLM, pull request 56893, and
// SGLang, pull request 39123 (528 and 288); Rouhani et al., "Microscaling data formats for deep learning" (2023), for
// e8m0 and e2m1.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <string>

#include "strobe/attention.h"
#include "strobe/export.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe {

/// What a column is stored as. @experimental
enum class RowElement : std::uint8_t {
  float32,
  bfloat16,
  float16,
  float8_e4m3,
  int8,        // from -127 to 127
  int4,        // from -7 to 7, two's complement; two to a byte, the even column in its low half
  float4_e2m1  // 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; two to a byte, likewise
};

/// What a scale is stored as: an element stands for itself times the scale of its group. @experimental
enum class RowScale : std::uint8_t {
  none,
  float32,
  bfloat16,
  float8_e8m0,           // a power of 2: the byte less 127 is its exponent, 255 is NaN
  float32_power_of_two,  // float32, but what is written is a power of 2: products with it are exact
  float8_e4m3            // from 2^-9 to 448: groups whose scale is larger are limited
};

/// Columns of one element. Offsets are in bytes from the start of the row. @experimental
struct RowPart {
  RowElement element = RowElement::bfloat16;
  std::int32_t columns = 0;
  std::int32_t offset = 0;
  RowScale scale = RowScale::none;
  std::int32_t scale_columns = 0;  // that share a scale; the last group may be shorter
  std::int32_t scale_offset = 0;   // of the first group's; the others follow one another
  bool operator==(const RowPart&) const = default;
};

/// @experimental
inline constexpr std::int32_t kMaxRowParts = 4;

/// Columns of a row, and head_dim of sparse attention, at most. @experimental
inline constexpr std::int64_t kMaxRowColumns = 576;

/// A row: its parts one after another are its columns. Bytes that no part and no scale covers are padding, which is
/// written as 0 and not read. @experimental
struct RowFormat {
  std::array<RowPart, kMaxRowParts> parts{};
  std::int32_t part_count = 0;  // 0: no format
  std::int32_t head_dim_v = 0;  // V is the first so many columns of the row; 0: V has rows of its own
  std::int32_t row_bytes = 0;
  // The last so many bytes of each row lie behind the rows of its page: a page of n rows holds their first
  // row_bytes - tail_bytes bytes, one row after another, and then their tails.
  std::int32_t tail_bytes = 0;
  std::int32_t alignment = 1;  // what addresses of rows are multiples of: a power of 2 up to 256

  constexpr bool given() const { return part_count != 0; }
  constexpr std::int32_t columns() const {
    return std::accumulate(parts.begin(), parts.begin() + std::clamp(part_count, 0, kMaxRowParts), 0,
                           [](std::int32_t before, const RowPart& part) { return before + part.columns; });
  }
  bool operator==(const RowFormat&) const = default;
};

/// The rows of multi-head latent attention as bfloat16: 576 columns, of which V is the first 512. @experimental
constexpr RowFormat mla_bfloat16_rows() {
  return {.parts = {RowPart{.element = RowElement::bfloat16, .columns = 576}},
          .part_count = 1,
          .head_dim_v = 512,
          .row_bytes = 1152,
          .alignment = 16};
}

/// DeepSeek-V3.2's 656 bytes: 512 columns float8_e4m3, four float32 scales of 128 columns each, 64 columns bfloat16
/// (the rotary part). V is the first 512 columns. Source: FlashMLA. @experimental
constexpr RowFormat deepseek_v32_rows() {
  return {.parts = {RowPart{.element = RowElement::float8_e4m3,
                            .columns = 512,
                            .scale = RowScale::float32_power_of_two,
                            .scale_columns = 128,
                            .scale_offset = 512},
                    RowPart{.element = RowElement::bfloat16, .columns = 64, .offset = 528}},
          .part_count = 2,
          .head_dim_v = 512,
          .row_bytes = 656,
          .alignment = 16};
}

/// DeepSeek-V4's 584 bytes: 448 columns float8_e4m3 and 64 columns bfloat16; behind the rows of a page, for each row,
/// seven e8m0 scales of 64 columns each and a byte of padding. V is the whole row. FlashMLA, whose tests/quant.py is
/// the source, calls it MODEL1_FP8Sparse. @experimental
constexpr RowFormat deepseek_v4_rows() {
  return {.parts = {RowPart{.element = RowElement::float8_e4m3,
                            .columns = 448,
                            .scale = RowScale::float8_e8m0,
                            .scale_columns = 64,
                            .scale_offset = 576},
                    RowPart{.element = RowElement::bfloat16, .columns = 64, .offset = 448}},
          .part_count = 2,
          .head_dim_v = 512,
          .row_bytes = 584,
          .tail_bytes = 8,
          .alignment = 16};
}

/// DeepSeek-V4.1's 528 bytes: 512 columns float8_e4m3, the rotary part among them; behind the rows of a page, for each
/// row, sixteen e8m0 scales of 32 columns each. V is the whole row. Source: vLLM. @experimental
constexpr RowFormat deepseek_v41_rows() {
  return {.parts = {RowPart{.element = RowElement::float8_e4m3,
                            .columns = 512,
                            .scale = RowScale::float8_e8m0,
                            .scale_columns = 32,
                            .scale_offset = 512}},
          .part_count = 1,
          .head_dim_v = 512,
          .row_bytes = 528,
          .tail_bytes = 16,
          .alignment = 16};
}

/// DeepSeek-V4.1's 288 bytes, of its compressed keys: 512 columns float4_e2m1; behind the rows of a page, for each row,
/// 32 float8_e4m3 scales of 16 columns each. V is the whole row. Source: SGLang. @experimental
constexpr RowFormat deepseek_v41_four_bit_rows() {
  return {.parts = {RowPart{.element = RowElement::float4_e2m1,
                            .columns = 512,
                            .scale = RowScale::float8_e4m3,
                            .scale_columns = 16,
                            .scale_offset = 256}},
          .part_count = 1,
          .head_dim_v = 512,
          .row_bytes = 288,
          .tail_bytes = 32,
          .alignment = 16};
}

/// K or V of 8 bits: `columns` float8_e4m3 or int8, padded to a multiple of 4, then a float32 scale of the row.
/// @experimental
constexpr RowFormat eight_bit_rows(RowElement element, std::int32_t columns) {
  const std::int32_t padded = (columns + 3) / 4 * 4;
  return {.parts = {RowPart{.element = element,
                            .columns = columns,
                            .scale = RowScale::float32,
                            .scale_columns = columns,
                            .scale_offset = padded}},
          .part_count = 1,
          .row_bytes = padded + 4,
          .alignment = 4};
}

/// Whether the fields make sense: invalid_argument, saying which does not, for parts and scales that overlap or leave
/// the row, or are not aligned to their elements; for int8 and 4 bits without a scale; for more than kMaxRowColumns
/// columns. Every call that takes a format asks. @experimental
STROBE_API Status check_row_format(const RowFormat& format);

/// The format in a line: "576 columns in 656 bytes: 512 float8_e4m3 at 0, float32 scales of 128 at 512; ...".
/// @experimental
STROBE_API std::string describe_row_format(const RowFormat& format);

/// Writes rows [num_pages, page_size, heads_kv, columns], float32, float16 or bfloat16, to a cache of that format:
/// uint8 [num_pages, page_size, heads_kv, row_bytes]. Every byte of a row is written, and none between rows.
///
/// A group's scale is its largest magnitude over that of its element (448, 127, 7 or 6) in float32, at least 2^-80, and
/// rounded up to what it is stored as. An element is x / scale in float32, rounded to nearest even and limited to the
/// largest; without a scale x itself, where NaN stays NaN. A group that holds NaN or an infinity is written as zeros
/// with a scale that is NaN, and is read as NaN.
///
/// Of `execution` it reads engine, stream, threads and parallel_for; on a GPU it returns once its kernel is queued on
/// the stream. The bytes are the same on every engine, but for the payloads of NaN. invalid_argument, with nothing
/// written, for tensors that contradict this. @experimental
STROBE_API Status encode_rows(const ConstTensorView& rows, const TensorView& cache, const RowFormat& format,
                              const Execution& execution = {});

/// The reverse: element times scale, one product in float32, rounded to nearest even to the dtype of `rows`.
/// @experimental
STROBE_API Status decode_rows(const ConstTensorView& cache, const TensorView& rows, const RowFormat& format,
                              const Execution& execution = {});

/// The tensors of an append to a cache in a format; all integers are int32. @experimental
struct AppendRowsArguments {
  TensorView cache{};  // uint8 [batch_cache, seqlen, heads_kv, row_bytes], or pages [num_pages, page_size, ..]
  ConstTensorView
      rows{};  // [batch, seqlen_new, heads_kv, columns] or, with cu_seqlens_new, [total_new, heads_kv, columns]
  ConstTensorView cache_seqlens{};    // [batch]: rows that each sequence has before the append
  ConstTensorView cu_seqlens_new{};   // optional, [batch + 1]
  ConstTensorView page_table{};       // optional, [batch, max_pages], as of append()
  ConstTensorView cache_batch_idx{};  // optional, [batch]: which entry of a cache without pages sequence b is
};

/// append() for caches in a format: encode_rows() of new rows, float32, float16 or bfloat16, behind the rows that each
/// sequence has. No other byte changes; cache_seqlens is not changed either.
///
/// Reads of `execution` engine, stream, threads and parallel_for. invalid_argument, with nothing written, for tensors
/// that contradict this and, on the CPU, for rows and pages that the cache does not have, and two sequences that would
/// write to one row. On a GPU rows that have no place are not written, unless the environment has
/// STROBE_CHECK_VALUES=1, and it returns once its kernel is queued on the stream. @experimental
STROBE_API Status append_rows(const AppendRowsArguments& arguments, const RowFormat& format,
                              const Execution& execution = {});

}  // namespace strobe
