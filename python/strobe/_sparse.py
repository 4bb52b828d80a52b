# SPDX-License-Identifier: Apache-2.0
"""Attention over lists of keys."""

import dataclasses
import inspect
from typing import Any

from strobe import _core
from strobe._frameworks import check_outputs, framework_of, mark_written
from strobe._options import Tensor
from strobe._row_format import RowFormat
from strobe._shapes import lse_shape, shape_of
from strobe._sparse_source import SparseSource, value_columns

NOT_RECORDED = "strobe.sparse_attention does not record: call strobe.torch.sparse_attention"


def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    indices: Tensor,
    *,
    topk_length: Tensor | None = None,
    block_size: int = 1,
    k_format: RowFormat | None = None,
    v_format: RowFormat | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    page_table: Tensor | None = None,
    seqused_k: Tensor | None = None,
    in_pool: bool = False,
    causal: bool = False,
    extra: SparseSource | None = None,
    head_dim_v: int | None = None,
    sink: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    out: Tensor | None = None,
    return_lse: bool = False,
    threads: int = 0,
    engine: str = "automatic",
) -> Any:
    """softmax(scale * Q K^T) V over the keys that lists name. Gives o, or (o, lse) with ``return_lse``.

    q is [batch, seqlen_q, heads_q, head_dim], or packed [total_q, heads_q, head_dim] with ``cu_seqlens_q``; k [batch,
    seqlen_k, heads_kv, head_dim], packed with ``cu_seqlens_k``, or with ``page_table`` or ``in_pool`` [num_pages,
    page_size, heads_kv, head_dim], float32, float16 or bfloat16, whatever q is. With ``k_format`` k is uint8 [..,
    row_bytes], and likewise v with ``v_format``. v is None where V is the first ``head_dim_v`` columns of k's rows.

    ``indices`` int32 [batch, seqlen_q, heads, topk] or [total_q, heads, topk]: heads is 1 where all heads of a query
    share a list, or heads_kv. A number is a key of the query's sequence; with ``block_size`` 16, 32, 64 or 128 a run of
    so many keys; with ``in_pool`` row page * page_size + row of the pool. -1 names nothing, a key that is named twice
    counts twice. Of each list the first ``topk_length`` [batch, seqlen_q] or [total_q] count. ``causal`` leaves out
    keys ahead of the query. ``seqused_k`` [batch]: keys that each sequence has. Rows that no list names are not read.

    ``extra`` has more keys with lists of their own: one softmax goes over both. ``sink`` float32 [heads_q] joins every
    row without a value. A query that reads no key has o = 0 and lse = -inf, or the sink.

    There are no gradients: strobe.torch.sparse_attention has them. On GPUs rows in a format, or of another dtype than
    q, are rounded to q's, formats whose parts are no multiples of 8 columns are a NotImplementedError, and numbers out
    of range name nothing. Raises ValueError for tensors that contradict this and, on the CPU, for numbers out of range,
    TypeError for what are no tensors.

    Sources: DeepSeek-AI, "DeepSeek-V3.2-Exp" (2025); Yuan et al., "Native sparse attention" (2025).
    """
    source = SparseSource(
        k, v, indices, k_format, v_format, topk_length, block_size, cu_seqlens_k, page_table, seqused_k, in_pool, causal
    )
    sources = [source] if extra is None else [source, extra]
    framework = framework_of(q)
    if framework.name == "jax":
        raise NotImplementedError("sparse_attention does not take arrays of JAX: give NumPy's")
    tensors = {"q": q, "sink": sink, "k": k, "v": v}
    if extra is not None:
        tensors |= {"extra.k": extra.k, "extra.v": extra.v}
    framework.reject_gradients(NOT_RECORDED, **tensors)
    check_outputs(out=out)
    if framework.is_compiling():
        from strobe.torch import sparse

        return sparse.into(
            out, return_lse, q, sources, cu_seqlens_q=cu_seqlens_q, head_dim_v=head_dim_v, sink=sink, scale=scale,
            softcap=softcap, threads=threads, engine=engine,
        )  # fmt: skip
    if out is None:
        out = framework.empty((*shape_of(q)[:-1], value_columns(source, head_dim_v)), q)
    lse = framework.empty(lse_shape(q), q, "float32") if return_lse else None
    _core.sparse_forward(
        q, sources, out, lse, sink, cu_seqlens_q, scale, softcap,
        threads=threads, engine=engine, stream=framework.stream(None),
    )  # fmt: skip
    mark_written(out, lse)
    return (out, lse) if return_lse else out


def explain_sparse_attention(q: Tensor, k: Tensor, v: Tensor | None, indices: Tensor, **options: Any) -> str:
    """Which engine and kernels sparse_attention takes, and how it reads the rows, in a few lines of text.

    Takes what strobe.sparse_attention takes, and raises what it would raise, without running it or reading the tensors'
    memory. On GPUs kernels that are not there yet are compiled.
    """
    call = inspect.signature(sparse_attention).bind(q, k, v, indices, **options)
    call.apply_defaults()
    a = call.arguments
    fields = (field.name for field in dataclasses.fields(SparseSource))
    source = SparseSource(**{name: a[name] for name in fields})
    framework = framework_of(q)
    return _core.explain_sparse(
        q, [source] if a["extra"] is None else [source, a["extra"]], value_columns(source, a["head_dim_v"]),
        a["return_lse"], a["sink"], a["cu_seqlens_q"], a["scale"], a["softcap"],
        threads=a["threads"], engine=a["engine"], stream=framework.stream(None),
    )  # fmt: skip
