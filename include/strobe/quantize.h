// SPDX-License-Identifier: Apache-2.0
// Q, K and V in 8 bits, for forward(): elements int8 or float8_e4m3, float32 scales, rotated and centred on the way.
//
// What each step is for, and what it does to the error: docs/eight-bit.md.
// Layouts. q8 [batch, seqlen_q, heads_q, head_dim] and k8 [batch, seqlen_k, heads_kv, head_dim], as q and k.
// v8 [batch, heads_kv, head_dim_v, round_up(seqlen_k, 32)]: transposed, and within every 32 keys in the order in which
// tensor cores leave their scores: key 16 a + 8 b + 2 c + d lies at 16 a + 4 c + 2 b + d (a, b, d < 2, c < 4). Its
// padding is zero.
//
// Packed sequences, as of Sequences::cu_seqlens_q and cu_seqlens_k: q8 [total_q, heads_q, head_dim], k8 [total_k,
// heads_kv, head_dim] and v8 [heads_kv, head_dim_v, 32 * (total_k / 32 + batch)], division rounding down. The columns
// of sequence b begin at 32 * (cu_seqlens_k[b] / 32 + b), so that no two share 32, and have the order above. quantize()
// writes zeros to those that belong to no key. Scales and q_shift have a batch axis all the same, and positions count
// from the start of each sequence: where a shape below says seqlen, it is max_seqlen_q or max_seqlen_k.
#pragma once

#include <cstdint>

#include "strobe/attention.h"
#include "strobe/export.h"
#include "strobe/status.h"
#include "strobe/tensor.h"

namespace strobe {

/// Which rows of a tensor share a scale. A head without rows has one all the same, whatever the unit. @experimental
enum class ScaleUnit : std::uint8_t {
  tensor,  // all, of every sequence: scales [1, 1, 1]
  head,    // those of a sequence and head: [batch, heads, 1]
  block,   // 128 neighbours of a head: [batch, heads, ceil(seqlen / 128)]
  group,   // 32 neighbours: [batch, heads, ceil(seqlen / 32)]
  row,     // none: [batch, heads, seqlen]
};

/// @experimental
struct QuantizeOptions {
  DType element = DType::int8;  // int8 or float8_e4m3
  ScaleUnit q_scales = ScaleUnit::row;
  ScaleUnit k_scales = ScaleUnit::group;
  ScaleUnit v_scales = ScaleUnit::row;
  // Multiply the columns of Q and K by random signs and a Hadamard matrix, the same for both: their products remain.
  // head_dim is cut into powers of two, the largest first.
  bool rotate_qk = true;
  bool rotate_v = true;    // likewise V; forward() rotates O back, if told so by ForwardArguments::v_rotation
  std::uint64_t seed = 0;  // of the signs
  // Subtract from the keys of each sequence and head their mean. The softmax does not notice; q_shift, the products of
  // q and the mean, puts right what does: LSE, sink and softcap.
  bool center_k = true;
};

/// The tensors of a quantisation. q, k and v are as of a forward(), batched or packed, without a cache; outputs have
/// the layouts above. An output's dtype must be the options' element, of scales and q_shift float32.
///
/// A scale is the largest magnitude of its rows over 127 (int8) or 448 (float8_e4m3), at least 2^-80, and elements are
/// rounded to nearest even. A row that holds NaN or an infinity is written as zeros and makes the scale of its unit
/// NaN: so does its result become NaN. Of K it makes the V scale of that key NaN if V has scales by rows, and so
/// touches no other key.
///
/// Every element of the outputs is written. Of packed sequences each has the bits of a call on it alone, but for scales
/// of ScaleUnit::tensor; scales behind a sequence's end are 2^-80, q_shift is 0 there, and rows of q8 and k8 that
/// belong to no sequence are zeros. @experimental
struct QuantizeArguments {
  ConstTensorView q{};
  ConstTensorView k{};
  ConstTensorView v{};
  TensorView q8{};
  TensorView k8{};
  TensorView v8{};
  TensorView q_descale{};
  TensorView k_descale{};
  TensorView v_descale{};
  TensorView q_shift{};   // [batch, heads_q, seqlen_q]; given if options.center_k
  Sequences sequences{};  // of them cu_seqlens_q, cu_seqlens_k, max_seqlen_q and max_seqlen_k
};

/// Writes the 8-bit tensors. Runs on the engine of the tensors' device, and returns when the kernels are queued where
/// that is a GPU. Elements and scales have the same bits on every engine and for every number of threads. On a GPU
/// head_dims are multiples of 8 up to 256, and the workspace for means and magnitudes comes from allocate_workspace or
/// the library; Execution::workspace is not used. @experimental
STROBE_API Status quantize(const QuantizeArguments& arguments, const QuantizeOptions& options = {},
                           const Execution& execution = {});

}  // namespace strobe
