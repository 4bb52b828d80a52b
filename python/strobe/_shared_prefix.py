# SPDX-License-Identifier: Apache-2.0
"""Attention of sequences that share the first pages of a cache."""

from typing import Any

from strobe import _core
from strobe._attention import attention
from strobe._frameworks import framework_of
from strobe._merge import merge
from strobe._options import Tensor
from strobe._shapes import check_tensors, lse_shape, output_shape, shape_of


def shared_prefix_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    page_table: Tensor,
    seqused_k: Tensor,
    prefix_pages: int,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    scale: float | None = None,
    causal: bool = False,
    softcap: float = 0.0,
    out: Tensor | None = None,
    return_lse: bool = False,
    threads: int = 0,
    engine: str = "automatic",
) -> Any:
    """``attention`` over pages of which all sequences have the first ``prefix_pages`` in common: those are read once.

    q [batch, seqlen_q, heads_q, head_dim], or packed [total_q, heads_q, head_dim] with ``cu_seqlens_q``; k and v are
    pages, and ``page_table`` [batch, max_pages] and ``seqused_k`` [batch] as in ``strobe.Options``. The first
    ``prefix_pages`` columns of page_table must be the same in all rows; those of the first row are read. With
    ``causal`` a sequence must have at least as many keys behind the prefix as queries, so that each sees all of it.

    Returns out, and with ``return_lse`` lse, as ``attention`` does. It is a call over the prefix, in which the queries
    of all sequences are those of one, a call over what follows, and ``merge``. The result is that of ``attention`` up
    to the order of sums; in 16 bits each of the two parts has been rounded as well.

    Raises ValueError for a prefix that the page table or a sequence is too short for, of which a GPU's numbers are not
    looked at, since that would wait for it; otherwise what ``attention`` and
    ``merge`` raise. There are no gradients.

    Source: Juravsky et al., "Hydragen" (2024), section 3; Dao, "FlashAttention-2" (2023), section 2.3.1.
    """
    check_tensors(q=q, k=k, v=v, page_table=page_table, seqused_k=seqused_k)
    prefix_pages = _core.integer("prefix_pages", prefix_pages)
    shape, table = shape_of(q), shape_of(page_table)
    if len(table) != 2:
        raise ValueError(f"page_table has rank {len(table)}: it must have rank 2 [batch, max_pages]")
    columns = table[1]
    if not 0 < prefix_pages <= columns:
        raise ValueError(f"prefix_pages is {prefix_pages}: it must be from 1 to the columns of page_table, {columns}")
    queries = shape[1] if cu_seqlens_q is None else cu_seqlens_q[1:] - cu_seqlens_q[:-1]
    prefix = prefix_pages * shape_of(k)[1]
    behind = seqused_k - prefix
    if not framework_of(seqused_k).is_on_gpu(seqused_k) and bool((behind < (queries if causal else 0)).any()):
        wanted = " and as many more as it has queries" if causal else ""
        raise ValueError(f"seqused_k is too small: each sequence must have the {prefix} keys of the prefix{wanted}")

    options: dict[str, Any] = {"scale": scale, "softcap": softcap, "threads": threads, "engine": engine}
    packed: dict[str, Any] = {"cu_seqlens_q": cu_seqlens_q, "max_seqlen_q": max_seqlen_q}
    first: dict[str, Any] = {"page_table": page_table[:1, :prefix_pages]}
    rest: dict[str, Any] = {"page_table": page_table[:, prefix_pages:], "seqused_k": behind, "causal": causal}
    o, lse = attention(q.reshape(1, -1, *shape[-2:]), k, v, return_lse=True, **first, **options)
    if cu_seqlens_q is None:
        lse = lse.reshape(shape[2], *shape[:2]).swapaxes(0, 1)
    shared = o.reshape(output_shape(q, v)), lse.reshape(lse_shape(q))
    own = attention(q, k, v, return_lse=True, **rest, **packed, **options)
    result = merge([shared, own], out=out, threads=threads, engine=engine)
    return result if return_lse else result[0]
