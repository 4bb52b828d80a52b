# SPDX-License-Identifier: Apache-2.0
"""The options of a call, in one list: what Python, PyTorch's operators, JAX's calls and the documentation take from it.

An option is a field with its type and its docstring, in Annotated with its default if that is not None.
_option_list.py reads the list; docs/options.md has the equation of each option.
"""

from typing import Annotated, Any, Literal, TypedDict

Tensor = Annotated[Any, "tensor"]
"""An array of NumPy, PyTorch, JAX or CuPy, or of anything else that speaks DLPack."""

Causal = bool | Literal["bottom_right", "top_left"]
Normalize = Literal["softmax", "none"]
Word = Annotated[int, "word"]
"""From 0 to 2^64 - 1."""


class ScoreOptions(TypedDict, total=False):
    """What is computed. ``None`` stands for the default of any option."""

    scale: float | Tensor | None
    """Multiplies Q K^T; 1/sqrt(head_dim) where it is not given. strobe.torch.attention takes a tensor, too, of one
    element or [heads_q], which may require a gradient."""
    causal: Annotated[Causal, False]
    """True or "bottom_right": the last query sees every key. "top_left": the first query sees the first key alone."""
    window: Annotated[tuple[int, int], (-1, -1)]
    """Keys (left, right) of the diagonal that a query sees; -1 leaves a side open."""
    chunk: Annotated[int, 0]
    """A query sees the keys of its own chunk of this many positions alone; 0: no chunks."""
    softcap: Annotated[float, 0.0]
    """Scores become softcap * tanh(score / softcap); 0: they stay."""
    log_length: Annotated[int, 0]
    """Scores of a sequence that has n keys are multiplied by max(1, log(n) / log(log_length)), before softcap; 0: they
    stay."""
    dropout: Annotated[float, 0.0]
    """Each probability becomes 0 with this probability and is divided by 1 - dropout otherwise. It is rounded to a
    multiple of 1/256: less than 1/512 drops nothing, and 511/512 or more, which would drop everything, is an error."""
    deterministic: Annotated[bool, False]
    """Bit-reproducible backward; forwards and the CPU engine always are."""
    row_invariant: Annotated[bool, False]
    """Forward: the bits of a row of out and lse depend only on its query, the keys that it sees, its center and the
    options. A prompt in one call, in chunks or one query per call, alone or in a batch, gives the same bits. Not
    supported with log_length or 8-bit q, or on GPUs with a bias, dropout, a block mask or 8-bit k and v."""
    normalize: Annotated[Normalize, "softmax"]
    """"none": the scores, of which ``score`` says what becomes, are the probabilities, and 0 where a key is hidden: out
    = P v, as "sigmoid(score)" has it, or "score * sigmoid(score) / k_len". There is no lse, no max_logits, no sink and
    no JVP; on the CPU engine alone, and not with 8-bit q. "softmax": exp(score - lse)."""
    alibi_slopes: Tensor
    """[heads_q] or [batch, heads_q] float32: slope * distance is taken from each score."""
    bias: Tensor
    """[batch or 1, heads_q or 1, seqlen_q, seqlen_k], float32 or q's dtype: added to the scores."""
    sink: Tensor
    """[heads_q] float32: a logit that joins the softmax of every row and has no value."""
    block_mask: Tensor
    """[batch or 1, heads_q or 1, blocks of queries, blocks of keys] uint8 or bool: 0 hides a block."""
    block_size: Annotated[int, 128]
    """Rows and columns of a block of block_mask: 64 or 128."""
    score: str | Any
    """What becomes of a score, as text: "score + slope[head] * (k - q)", of the language that docs/expressions.md
    describes; or a strobe.ScoreFunction, which has a mask and captures, too. `score` is the scaled score after softcap,
    ALiBi and bias."""
    mask_text: str
    """Whether query `q` sees key `k`, as text: "k <= q && document[k] == document[q]"; beside every other mask. The
    argument mask takes the same text; this option stands beside a mask that is a tensor."""
    captures: dict[str, Tensor]
    """The tensors that the texts read, by name: float32, float16, bfloat16, int32, int64, uint8 or bool, of rank 0 to
    4, with any strides; elements of int64 must fit 32 bits. Other shapes and contents compile nothing. Those that the
    score reads as real numbers have gradients."""
    seed: Annotated[Word, 0]
    """With offset: which probabilities dropout takes, see dropout_mask. Each is from 0 to 2^64 - 1. With dropout one of
    the two or random_state must be given; for tensors of PyTorch alone a call without them draws a seed."""
    offset: Annotated[Word, 0]
    """The second number of dropout's seed: a counter of calls, for instance."""
    random_state: Tensor
    """[4] int32 on q's device: the words of seed and offset, low first, in place of both. They are read when the call
    runs there, so that each replay of a captured CUDA graph draws a new mask."""
    dropout_first_batch: int
    """With dropout_first_head and dropout_heads: a call on some sequences and query heads of a larger one drops what
    that drops. The first sequence of the call, in the larger one; 0 by default."""
    dropout_first_head: int
    """The first query head of the call, in the larger one; 0 by default."""
    dropout_heads: int
    """Query heads of the larger call; as many as q has by default."""
    cu_seqlens_q: Tensor
    """[batch + 1] int32: q is packed, sequence b has the rows from cu_seqlens_q[b] to cu_seqlens_q[b + 1]. Rows from
    cu_seqlens_q[batch] on belong to no sequence, and out is 0 there."""
    cu_seqlens_k: Tensor
    """[batch + 1] int32: likewise for k and v."""
    seqused_q: Tensor
    """[batch] int32: only the first seqused_q[b] queries of sequence b exist."""
    seqused_k: Tensor
    """[batch] int32: only the first seqused_k[b] keys of sequence b exist."""
    offset_q: Tensor
    """[batch] int32, of calls on a part of each sequence: the position of the first query that the call has of sequence
    b, in the whole sequence. Where it or offset_k is given, the other counts as zeros; query i is at offset_q[b] + i -
    offset_k[b] in the call's keys for causal masks of either kind, windows and ALiBi, chunks are those of the whole
    sequence, and dropout draws by these positions. A bias and a block mask are of the call's own queries and keys.
    strobe.merge joins parts of the keys; the backward of a part takes out and lse of the whole rows. Not with
    log_length or tree_mask."""
    offset_k: Tensor
    """[batch] int32: likewise the position of the first key."""
    max_seqlen_q: Annotated[int, -1]
    """The longest packed sequence of q, where the caller knows it: a tight bound makes a call faster. -1: unknown."""
    max_seqlen_k: Annotated[int, -1]
    """The longest packed sequence of k and v, likewise."""
    threads: Annotated[int, 0]
    """CPU: workers; 0: as many as ``strobe.get_threads`` says."""


class EightBitOptions(TypedDict, total=False):
    """What a call has besides its tensors where q, k and v are int8 or float8_e4m3fn: Quantized.options gives them.

    v is [batch, heads_kv, head_dim_v, seqlen_k rounded up to 32], with the keys in the order of strobe/quantize.h. An
    element stands for itself times its rows' scale. Packed, v is [heads_kv, head_dim_v, 32 * (total_k // 32 + batch)]
    (strobe.Quantized says where sequences begin), and seqlen_q and seqlen_k below are the bounds on the longest.

    Or k and v alone are, laid out as ever, with k_descale and v_descale: q and out keep their dtype, and the result has
    the bits of a call on k and v converted to it, or of few queries on Hopper and later GPUs is closer to that of
    products that are not rounded. Packed keys then take scales [batch or 1, heads_kv or 1, 1].
    """

    q_descale: Tensor
    """[batch or 1, heads_q or 1, n] float32, where n is 1, ceil(seqlen_q / 128), ceil(seqlen_q / 32) or seqlen_q; 1 of
    no rows."""
    k_descale: Tensor
    """[batch or 1, heads_kv or 1, n] float32, likewise of the keys."""
    v_descale: Tensor
    """[batch or 1, heads_kv or 1, n] float32, likewise of the rows of v."""
    q_shift: Tensor
    """[batch, heads_q, seqlen_q] float32, added to each product of a query and a key: what centring took away."""
    v_rotation: Word
    """The seed of the rotation that the rows of v went through; out is rotated back. Not given: there was none."""
    out_dtype: Any
    """Of out: "float32", "float16", "bfloat16", or the framework's own dtype. It must be given where out is not."""


class TensorOptions(ScoreOptions, EightBitOptions, total=False):
    """What is computed, of 8-bit tensors, too."""


class JaxOptions(TensorOptions, total=False):
    """What is computed, of arrays of JAX."""

    mask: Tensor | str
    """Text, which is mask_text; or bool, True where a query sees a key, or floating point, added to the scores: [batch,
    seqlen_k], [batch, seqlen_q, seqlen_k] or [batch, heads_q, seqlen_q, seqlen_k], any axis of extent 1 or whole.
    It joins causal, window and bias. Keys that it hides from every query may hold anything. Not with packed
    sequences."""
    q_segment_ids: Tensor
    """[batch, seqlen_q] int32, with kv_segment_ids: a query sees the keys of its own segment alone. They take memory
    for each query and key, which packed sequences do not."""
    kv_segment_ids: Tensor
    """[batch, seqlen_k] int32."""
    key: Tensor
    """Of jax.random, in place of seed and random_state: dropout's seed is drawn from it, a new key draws a new mask."""


class Options(TensorOptions, total=False):
    """What is computed, and where. ``None`` stands for the default of any option.

    Example:

        options = strobe.Options(causal=True, window=(1023, 0), softcap=30.0)
        out = strobe.attention(q, k, v, **options)
    """

    engine: Literal["automatic", "cpu", "gpu"]
    """The engine of the tensors' device by default. Deprecated: "hopper", the same as "gpu", and "ampere", the same as
    "gpu" with ``kernels="sm80"``."""
    kernels: Literal["sm90", "sm80"]
    """GPU: the family of kernels, instead of the fastest that serves the call. For tests and benchmarks."""
    stream: int
    """GPU: the CUDA stream to launch on; by default the one that the tensors' framework works on."""
    page_table: Tensor
    """[batch, max_pages] int32: k and v are pools of pages, [num_pages, page_size, heads_kv, head_dim], and row r of
    sequence b is row r % page_size of page page_table[b, r // page_size]. seqused_k has the lengths, max_pages *
    page_size by default; entries beyond them are never read. Forward only."""
    leftpad_k: Tensor
    """[batch] int32: the first leftpad_k[b] rows of a cache, which seqused_k[b] counts, are none of the keys of
    sequence b: its first key is at row leftpad_k[b]. Forward only."""
    cache_batch_idx: Tensor
    """[batch] int32: sequence b lies in entry cache_batch_idx[b] of k and v. Not with pages. Forward only."""
    tree_mask: Tensor
    """[batch, seqlen_q] or packed [total_q] int64, for the draft tokens of speculative decoding: of a sequence of n
    queries, at most 64, query i sees key j of the last n if bit j of its number is set, and keys before those as the
    other options say. seqlen_q or max_seqlen_q must be 64 or less. Not with block_mask. Forward only."""
    qv: Tensor
    """[batch, seqlen_q, heads_q, head_dim_v] or packed, of q's dtype: scores are scale * (q k^T + qv v^T), as
    FlashAttention-3's; scale is 1/sqrt(head_dim + head_dim_v) where it is not given. Not with 8-bit q. GPUs take it in
    16 bits, head_dim_v a multiple of 64, without gradients. docs/wide-heads.md has what it is for."""


class AppendOptions(TypedDict, total=False):
    """What an append may have besides the cache, its lengths and the new rows."""

    cu_seqlens_new: Tensor
    """[batch + 1] int32: k_new and v_new are packed, sequence b has the rows from cu_seqlens_new[b] on."""
    page_table: Tensor
    """[batch, max_pages] int32: the caches are pools of pages, [num_pages, page_size, heads_kv, head_dim], and row j of
    sequence b is row j % page_size of page page_table[b, j // page_size]."""
    leftpad_k: Tensor
    """[batch] int32: the first leftpad_k[b] of the rows that cache_seqlens[b] counts are left padding, no keys."""
    cache_batch_idx: Tensor
    """[batch] int32: sequence b lies in entry cache_batch_idx[b] of the caches. Not with pages."""
    cos: Tensor
    """[seqlen_ro, rotary_dim / 2]: with sin, the first rotary_dim columns of k_new and of q are rotated."""
    sin: Tensor
    """[seqlen_ro, rotary_dim / 2], of the dtype of cos."""
    interleaved: Annotated[bool, False]
    """Rotated pairs are columns 2 i and 2 i + 1; otherwise i and i + rotary_dim / 2."""
    positions: Tensor
    """[batch, seqlen_new] or packed [total_new] int32: the positions that rows of k_new are rotated to, by default
    cache_seqlens - leftpad_k + i for row i of a sequence."""
    q: Tensor
    """[batch, seqlen_q, heads_q, head_dim], or packed [total_q, heads_q, head_dim]: rotated as k_new is."""
    q_out: Tensor
    """Of q's shape and dtype: the rotated q is written to it."""
    cu_seqlens_q: Tensor
    """[batch + 1] int32: q is packed."""
    positions_q: Tensor
    """[batch, seqlen_q] or packed [total_q] int32: likewise for the rows of q."""
    q_in_order: Annotated[bool, True]
    """Row i of q is at position i of the new rows; otherwise all rows of q are at that of i = 0."""
    k_descale: Tensor
    """[batch or 1, heads_kv or 1, 1] float32: scales of an int8 or float8_e4m3fn cache, which stores x / scale, rounded
    to nearest even and limited to 127 or 448."""
    v_descale: Tensor
    """[batch or 1, heads_kv or 1, 1] float32, likewise of v_cache."""
    k_row_descale: Tensor
    """[batch_cache, heads_kv, seqlen] float32, of pages [num_pages, heads_kv, page_size]: instead of k_descale, scales
    that the append computes, one for each row of a head, and writes: the row's largest magnitude over 127 or 448, at
    least 2**-80. A row with NaN or an infinity is stored as zeros with the scale NaN."""
    v_row_descale: Tensor
    """[batch_cache, heads_kv, seqlen] float32, of pages [num_pages, heads_kv, page_size], likewise of v_cache."""
    threads: Annotated[int, 0]
    """CPU: workers; 0: as many as ``strobe.get_threads`` says."""
    engine: Annotated[str, "automatic"]
    """The engine of the tensors' device by default."""
    stream: int | None
    """GPU: the CUDA stream to launch on; by default the one that the tensors' framework works on."""


Unit = Literal["tensor", "head", "block", "group", "row"]
"""Rows that share a scale: all of the tensor, all of a head, 128 neighbours, 32 neighbours, or none."""


class QuantizeOptions(TypedDict, total=False):
    """How tensors are rounded to 8 bits; docs/eight-bit.md says what each step does to the error."""

    element: Annotated[Any, "int8"]
    """ "int8" or "float8_e4m3fn", or the framework's dtype of that name; NumPy holds the latter by ml_dtypes."""
    q_scales: Annotated[Unit, "row"]
    """Rows of q that share a scale: those of the whole "tensor", of their batch entry and "head", 128 neighbours
    ("block"), 32 ("group"), or each has its own ("row")."""
    k_scales: Annotated[Unit, "group"]
    """Likewise of k."""
    v_scales: Annotated[Unit, "row"]
    """Likewise of v."""
    rotate_qk: Annotated[bool, True]
    """Multiplies the columns of q and k by random signs and a Hadamard matrix: scores stay."""
    rotate_v: Annotated[bool, True]
    """Multiplies the columns of v likewise; attention rotates its output back."""
    center_k: Annotated[bool, True]
    """Takes the mean of the keys from them, which the softmax does not notice."""
    seed: Annotated[Word, 0]
    """Of the random signs, from 0 to 2^64 - 1."""
    cu_seqlens_q: Tensor
    """[batch + 1] int32: q is packed, [total_q, heads_q, head_dim]."""
    cu_seqlens_k: Tensor
    """[batch + 1] int32: k and v are packed, [total_k, heads_kv, head_dim] and [total_k, heads_kv, head_dim_v]."""
    max_seqlen_q: int | None
    """The longest packed sequence of q: scales take memory for as many rows in each sequence."""
    max_seqlen_k: int | None
    """The longest packed sequence of k and v, likewise."""
    threads: Annotated[int, 0]
    """CPU: workers; 0: as many as ``strobe.get_threads`` says. Results do not depend on it."""
    engine: Annotated[str, "automatic"]
    """The engine of the tensors' device by default."""
    stream: int | None
    """GPU: the CUDA stream to launch on; by default the one that the tensors' framework works on."""
