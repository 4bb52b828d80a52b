# SPDX-License-Identifier: Apache-2.0
"""New keys and values for a cache."""

from typing import Any

from strobe import _core
from strobe._frameworks import check_outputs, framework_of, mark_written
from strobe._options import Tensor
from strobe._shapes import shape_of


def append(
    k_cache: Tensor,
    v_cache: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    cache_seqlens: Tensor,
    *,
    cu_seqlens_new: Tensor | None = None,
    page_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    interleaved: bool = False,
    positions: Tensor | None = None,
    q: Tensor | None = None,
    q_out: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    positions_q: Tensor | None = None,
    q_in_order: bool = True,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    threads: int = 0,
    engine: str = "automatic",
    stream: int | None = None,
) -> Tensor | None:
    """Writes k_new and v_new into a cache, behind the rows that its sequences have. Gives the rotated q, if q is given.

    The cache is k_cache [batch_cache, seqlen, heads_kv, head_dim] and v_cache [.., head_dim_v], of which sequence b is
    entry b or ``cache_batch_idx[b]``; or, with ``page_table`` [batch, max_pages], pages [num_pages, page_size, ..]: row
    j of sequence b is row j % page_size of page ``page_table[b, j // page_size]``. ``cache_seqlens`` [batch] counts the
    rows before the append, the first ``leftpad_k`` [batch] of which, left padding, are no keys; it is not changed.
    k_new and v_new are [batch, seqlen_new, heads_kv, head_dim], or packed [total_new, heads_kv, head_dim] with
    ``cu_seqlens_new`` [batch + 1]: float32, float16 or bfloat16. Integers are int32.

    With ``cos`` and ``sin`` [seqlen_ro, rotary_dim / 2] the first rotary_dim columns of k_new, and of ``q``
    [batch, seqlen_q, heads_q, head_dim] or packed with ``cu_seqlens_q``, are rotated: pairs are columns 2 i and 2 i + 1
    where ``interleaved``, else i and i + rotary_dim / 2. Row i of a sequence is at position
    cache_seqlens - leftpad_k + i, or at ``positions`` and ``positions_q``, [batch, seqlen] or packed [total]; with
    ``q_in_order=False`` all queries are at that of i = 0. The rotated q is written to ``q_out`` if that is given. It is
    computed in float32 and rounded once.

    A cache of int8 or float8_e4m3fn has scales, ``k_descale`` and ``v_descale`` [batch or 1, heads_kv or 1, 1]: it
    stores x / scale, rounded to nearest even and limited to 127 or 448.

    On a GPU the call returns when its launch is queued, and numbers in tensors are not looked at: rows whose page,
    entry, row or position does not exist are not written, queries without angles become NaN.

    There are no gradients. Raises ValueError, with nothing written, for tensors that are recorded on PyTorch's tape or
    contradict this description and, on the CPU, rows or pages that the cache does not have and two sequences that would
    write to one row; TypeError for what are no tensors.

    Sources: Kwon et al., "PagedAttention" (2023), section 4.3; Su et al., "RoFormer" (2021), section 3.4.2.
    """
    framework = framework_of(k_cache)
    if framework.name == "jax":
        raise NotImplementedError("append writes to the cache, and arrays of JAX cannot be written to")
    framework.reject_gradients(
        "an append does not have: detach it", k_cache=k_cache, v_cache=v_cache, k_new=k_new, v_new=v_new, q=q
    )
    check_outputs(q_out=q_out)
    if q is not None and q_out is None:
        q_out = framework_of(q).empty(shape_of(q), q)
    tensors: dict[str, Any] = {
        "cu_seqlens_new": cu_seqlens_new,
        "page_table": page_table,
        "leftpad_k": leftpad_k,
        "cache_batch_idx": cache_batch_idx,
        "cos": cos,
        "sin": sin,
        "positions": positions,
        "q": q,
        "q_out": q_out,
        "cu_seqlens_q": cu_seqlens_q,
        "positions_q": positions_q,
        "k_descale": k_descale,
        "v_descale": v_descale,
    }
    _core.append(
        *(k_cache, v_cache, k_new, v_new, cache_seqlens, tensors, interleaved, q_in_order),
        threads=threads,
        engine=engine,
        stream=framework.stream(stream),
    )
    mark_written(k_cache, v_cache, q_out)
    return q_out
