// SPDX-License-Identifier: Apache-2.0
// Exact attention, O = softmax(scale * Q K^T) V, and its gradients, without storing the N x N matrix.
//
// Layouts. Batched: q [batch, seqlen_q, heads_q, head_dim], k [batch, seqlen_k, heads_kv, head_dim],
// v [batch, seqlen_k, heads_kv, head_dim_v], o [batch, seqlen_q, heads_q, head_dim_v], lse [batch, heads_q, seqlen_q].
// Packed (when cu_seqlens is given for that side): q [total_q, heads_q, head_dim], k [total_k, heads_kv, head_dim],
// v [total_k, heads_kv, head_dim_v], o [total_q, heads_q, head_dim_v], lse [heads_q, total_q].
// Any non-negative strides, the last one 1. Query head h reads key head h / (heads_q / heads_kv).
//
// Source: Dao et al., "FlashAttention" (2022), algorithms 1 and 4; Dao, "FlashAttention-2" (2023), algorithms 1 and 2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "strobe/export.h"
#include "strobe/expression.h"
#include "strobe/status.h"
#include "strobe/tensor.h"
#include "strobe/version.h"

namespace strobe {

/// Which keys a query sees along the diagonal, for lengths sq and sk of its sequence. @stable
enum class CausalMask : std::uint8_t {
  none,
  bottom_right,  // key <= query + sk - sq: the last query sees every key
  top_left,      // key <= query: the first query sees the first key
};

/// Local attention: key is visible only if center - left <= key <= center + right, where center is query + sk - sq
/// (or query, when causal is top_left, or as the offsets of Sequences say). -1 leaves that side unbounded. @stable
struct Window {
  std::int64_t left = -1;
  std::int64_t right = -1;
  bool operator==(const Window&) const = default;
};

/// What becomes of scores: probabilities of each row, or what they are. @experimental
enum class Normalization : std::uint8_t {
  softmax,  // P = exp(s - LSE)
  none,     // P = s, and 0 where a key is hidden or s is -inf: no maximum, no sum and no LSE
};

/// @stable, but for normalize
struct AttentionOptions {
  std::optional<float> scale{};  // multiplies Q K^T; 1/sqrt(head_dim) when not given
  CausalMask causal = CausalMask::none;
  Window window{};
  // Chunked attention: a query sees only keys of its own chunk, floor(key / chunk) == floor(center / chunk); 0 turns it
  // off.
  std::int64_t chunk = 0;
  float softcap = 0.0F;  // s -> softcap * tanh(s / softcap) after scaling; 0 turns it off
  // Each probability becomes 0 with this probability, in [0, 511/512) and rounded to a multiple of 1/256, and is
  // divided by 1 - dropout otherwise. RandomState and position alone decide which ones: dropout_mask() in dropout.h.
  float dropout = 0.0F;
  bool deterministic = false;  // bit-reproducible backward; forwards and the CPU engine always are
  // Forward: the bits of a row of o and lse depend only on its query, the keys that it sees, its center and the
  // options, not on the other rows, sequences and heads of the call, nor on its layout, pages and padding. Not
  // supported with log_length, 8-bit q, or on GPUs with a bias, dropout, a block mask or 8-bit k and v. Dropout (CPU)
  // still draws by the row's place in the call. A backward ignores it.
  bool row_invariant = false;
  // Log-length scaling: the scores of a sequence that has n keys are multiplied by max(1, log(n) / log(log_length)), so
  // that attention over more keys than a model was trained on stays as sharp (Chiang and Cholak, "Overcoming a
  // theoretical limitation of self-attention", 2022, section 5.3). At least 2; 0 turns it off. Before softcap.
  std::int64_t log_length = 0;
  // none: O = P V with P as ScoreModifiers' texts say, after everything else that scores meet: "sigmoid(score)" is
  // sigmoid attention (Ramapuram et al., 2024), "score * sigmoid(score) / k_len" that of HSTU (Zhai et al., 2024), and
  // without a text it is linear attention. O is not divided by anything; a row that sees no key has O = 0. There is no
  // lse, d_lse or max_logits, no sink and no JVP; a backward reads neither o nor lse. Not with 8-bit q.
  Normalization normalize = Normalization::softmax;
};

/// What is added to the scores in both passes: s = softcap(scale * Q K^T) - slope * |center - key| + bias, of which
/// `function` makes the score. `center` is as in Window. All tensors are optional and on q's device.
/// @stable, but for function, captures
struct ScoreModifiers {
  ConstTensorView alibi_slopes{};  // [heads_q] or [batch, heads_q] float32 (Press et al., 2022)
  // [batch or 1, heads_q or 1, seqlen_q, seqlen_k], float32 or q's dtype; an extent of 1 broadcasts over batch or
  // heads. A bias of -inf gives the key no weight. Not with packed layouts.
  ConstTensorView bias{};
  ConstTensorView sink{};  // [heads_q] float32: a logit that joins the softmax of every row, without a value
  // [batch or 1, heads_q or 1, ceil(seqlen_q / block_size), ceil(seqlen_k / block_size)] uint8: 0 hides a block of
  // keys from a block of queries, with positions counted from the start of the sequence. Hidden blocks are not computed
  // (FlashAttention, section 3.3).
  ConstTensorView block_mask{};
  std::int64_t block_size = 128;                // 64 or 128
  const ScoreFunction* function = nullptr;      // what texts make of the scores and which keys they hide
  std::span<const ConstTensorView> captures{};  // the function's, in its order; any non-negative strides
};

/// Seed and offset of dropout's random numbers, Philox4x32-7 (Salmon et al., 2011). Give both passes the same.
/// @stable, but for first_batch, first_head, heads
struct RandomState {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  // Not null: seed and offset are these two numbers instead, in memory of q's device, 8-byte aligned. They are read
  // when the call runs there: a captured CUDA graph draws a new mask in each replay.
  const std::uint64_t* on_device = nullptr;
  // A call on some sequences and query heads of a larger one drops what that drops: its first sequence and query head
  // there, and how many query heads the larger one has; 0: as many as the call, and first_head is 0.
  std::int64_t first_batch = 0;
  std::int64_t first_head = 0;
  std::int64_t heads = 0;
};

/// A random rotation of the columns of a tensor: signs, then a Hadamard transform (quantize.h). @experimental
struct Rotation {
  bool given = false;
  std::uint64_t seed = 0;  // of the signs
};

/// Sequences of unequal length. All tensors are int32 and on q's device. @stable, but for offset_q, offset_k
struct Sequences {
  ConstTensorView cu_seqlens_q{};  // [batch + 1], from 0, never decreasing; given: q, o and lse are packed
  ConstTensorView cu_seqlens_k{};  // [batch + 1], likewise for k and v
  ConstTensorView seqused_q{};     // [batch]: only the first seqused_q[b] queries of sequence b exist
  ConstTensorView seqused_k{};     // [batch]: only the first seqused_k[b] keys of sequence b exist
  // Upper bounds on the longest sequence (packed layouts); -1: total_q, total_k. A tight bound is faster; a longer
  // sequence is an error.
  std::int64_t max_seqlen_q = -1;
  std::int64_t max_seqlen_k = -1;
  // Of a key-value cache: forward only, not with cu_seqlens_k.
  ConstTensorView leftpad_k{};  // [batch]: the first leftpad_k[b] rows, which seqused_k[b] counts, are none of its keys
  // [batch]: sequence b lies in entry cache_batch_idx[b] of k and v, which may have more entries than the batch, or
  // fewer. Not with pages.
  ConstTensorView cache_batch_idx{};
  // Calls on a part of each sequence. [batch], 0 or more: the position, in its whole sequence, of the first query and
  // of the first key that the call has of sequence b; positions are below 2^30. Where one of the two is given, the
  // other counts as zeros, and positions say all: query i is at center offset_q[b] + i - offset_k[b], counted in the
  // call's keys, with either kind of causal mask; chunks are floor(position / chunk) of whole sequences, and dropout
  // draws by these positions. A bias and a block mask have the call's own queries and keys. Parts of the keys are
  // merged by merge(); a backward of a part takes O and LSE of the whole row. Not with log_length or tree_mask.
  ConstTensorView offset_q{};
  ConstTensorView offset_k{};
};

/// The tensors of a forward. q, k, v and o share one dtype: float32, float16 or bfloat16; lse is float32.
/// Or q, k and v are int8 or float8_e4m3 in the layout of quantize.h, with their scales; o is any of the three.
/// Or k and v alone are int8 or float8_e4m3, laid out as ever and with scales: caches that take half the memory. The
/// call has the same bits as one on k and v converted to q's dtype: products of elements and their row's scale in
/// float32, rounded to nearest even. Every element of o and lse is written: positions that no sequence uses get O = 0
/// and LSE = -inf, like queries that see no key (with a sink, their LSE is the sink). Outputs must not overlap any
/// other tensor. @stable, but for q_shift, v_rotation, qv
struct ForwardArguments {
  ConstTensorView q{};
  ConstTensorView k{};
  ConstTensorView v{};
  TensorView o{};
  TensorView lse{};  // optional: natural logarithm of the row's sum of exponentials, the sink's included
  Sequences sequences{};
  ScoreModifiers modifiers{};
  RandomState random{};     // read when options.dropout is not 0
  TensorView max_logits{};  // optional: [batch, heads_q] float32, the largest visible score; -inf where there is none
  // int8 and float8_e4m3 tensors (quantize.h): scales, float32 [batch or 1, heads or 1, n] of the tensor's own heads,
  // with n = 1, ceil(seqlen / 128), ceil(seqlen / 32) or seqlen: an element stands for itself times its rows' scale,
  // which must not be negative.
  // Beside a packed 8-bit q, k or v, seqlen is the bound on the longest sequence, here and of q_shift.
  // Packed k and v, and those of a cache with left padding, beside a q that is not 8-bit: n = 1. Of a cache in pages or
  // entries scales are those of a sequence's rows all the same, in their order: see docs/serving.md.
  ConstTensorView q_descale{};
  ConstTensorView k_descale{};
  ConstTensorView v_descale{};
  ConstTensorView q_shift{};  // optional, float32 [batch, heads_q, seqlen_q]: added to each product of a row of q
  Rotation v_rotation{};      // what the rows of v went through, o goes through backwards
  // [batch, max_pages] int32, on q's device: k and v are pools of pages, [num_pages, page_size, heads_kv, head_dim] and
  // [num_pages, page_size, heads_kv, head_dim_v]. Row r of sequence b is row r % page_size of page
  // page_table[b][r / page_size]; seqlen_k is max_pages * page_size. Any page_size from 1 up, any strides. Entries
  // beyond the pages that hold a sequence's used rows are never read. On a GPU the rows of a page that does not exist
  // are zeros; elsewhere it is an error. Not with cu_seqlens_k.
  ConstTensorView page_table{};
  // Tree masks, for the draft tokens of speculative decoding (Miao et al., "SpecInfer", 2023): int64, [batch,
  // seqlen_q], packed [total_q]. Of a sequence of n queries, at most 64, the last n keys are the queries' own: bit j of
  // query i's number says whether it sees key j of those n, its ancestors' and its own. Keys before them are seen as
  // the options say, and what options hide stays hidden. Bits from n on are not read. seqlen_q or, packed, max_seqlen_q
  // may not be above 64. Not with 8-bit q, nor with a block mask. Forward only: a backward has no such argument.
  ConstTensorView tree_mask{};
  // Optional: [.., heads_q, head_dim_v], in q's layout and dtype. Scores are scale * (Q K^T + qv V^T), as
  // FlashAttention-3 has them, and scale is 1/sqrt(head_dim + head_dim_v) when not given. Multi-head Latent Attention
  // is such a call: k holds the rotary columns and v the latent ones (DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1).
  // Not with 8-bit q. GPUs take it in 16 bits, head_dim_v a multiple of 64, without 8-bit caches. @experimental
  ConstTensorView qv{};
};

/// The tensors of a backward: the forward's inputs and outputs, dO, and the gradients. A gradient has its tensor's
/// shape and dtype; every element is written, zeros where nothing contributes. Outputs must not overlap any other
/// tensor. @stable, but for d_captures, qv, dqv
struct BackwardArguments {
  ConstTensorView q{};
  ConstTensorView k{};
  ConstTensorView v{};
  ConstTensorView o{};
  ConstTensorView lse{};
  ConstTensorView d_o{};
  ConstTensorView d_lse{};  // optional: the gradient with respect to lse, in lse's layout
  TensorView dq{};
  TensorView dk{};
  TensorView dv{};
  Sequences sequences{};
  ScoreModifiers modifiers{};
  RandomState random{};  // the forward's
  TensorView d_bias{};   // optional: float32, modifiers.bias's shape, summed over the batches or heads that share it
  TensorView d_sink{};   // optional: [heads_q] float32, summed over the batch
  // Empty, or one for each capture, in order, not given where none is wanted: the gradient of one that the function's
  // score reads, float32, of its shape. @experimental
  std::span<const TensorView> d_captures{};
  // The forward's, and its gradient, given together; dv gets the part of the scores, too. @experimental
  ConstTensorView qv{};
  TensorView dqv{};
};

/// Runs body(0) ... body(count - 1), in parallel or one after another, and returns when all are done. body does not
/// throw. An exception of the function itself passes through the call to its caller, as it was thrown. @stable
using ParallelFor = std::function<void(int count, const std::function<void(int index)>& body)>;

/// Allocates the workspace of a call: `bytes` bytes on the device of its tensors, 64-byte aligned, or null where there
/// is no memory. It must stay allocated until the call returns and, on a GPU, until the work that it enqueued is done:
/// memory that is freed in the order of the stream may be freed when the call has returned. An exception passes through
/// as ParallelFor's does. @stable
using AllocateWorkspace = std::function<void*(std::size_t bytes)>;

/// @stable
enum class Engine : std::uint8_t {
  automatic,  // the engine of the tensors' device
  cpu,
  ampere,  // deprecated: gpu with the kernels "sm80"
  hopper,  // deprecated: gpu
  gpu      // NVIDIA GPUs of compute capability 8.0 and later
};

/// "automatic", "cpu" or "gpu"; "ampere" and "hopper" for the deprecated ones. @stable
STROBE_API const char* name_of(Engine engine);

/// Where and how a call runs. Results never depend on threads, parallel_for or workspace. @stable, but for kernels
struct Execution {
  Engine engine = Engine::automatic;
  // GPU, attention: the family of kernels to take, "sm90" or "sm80", instead of the fastest that serves the call. For
  // tests and benchmarks.
  std::string_view kernels{};
  int threads = 0;                            // CPU: workers; 0 takes one per hardware thread
  const ParallelFor* parallel_for = nullptr;  // CPU: the caller's thread pool instead of oneTBB
  void* stream = nullptr;                     // GPU: the CUstream to launch on; must be null on the CPU
  // Plan::workspace_size() bytes on the tensors' device, 64-byte aligned. Null: allocated for the call, by
  // allocate_workspace if that is given, else by the library: on a GPU by the plan, when it is first needed, and kept
  // as long as the plan.
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
  const AllocateWorkspace* allocate_workspace = nullptr;
};

/// O = softmax(mask(softcap(scale * Q K^T))) V and, if arguments.lse is given, LSE. On a GPU it returns once the kernel
/// is queued on execution.stream. @stable
STROBE_API Status forward(const ForwardArguments& arguments, const AttentionOptions& options = {},
                          const Execution& execution = {});

/// dQ, dK and dV from dO (and dLSE), recomputing the probabilities from q, k and lse. Returns as forward() does.
/// @stable
STROBE_API Status backward(const BackwardArguments& arguments, const AttentionOptions& options = {},
                           const Execution& execution = {});

}  // namespace strobe
