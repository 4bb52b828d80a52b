# SPDX-License-Identifier: Apache-2.0
"""New keys and values for a cache."""

from contextlib import nullcontext
from typing import Unpack

from strobe import _appended
from strobe._documented import with_options
from strobe._frameworks import check_outputs, framework_of
from strobe._option_list import check_options
from strobe._options import AppendOptions, Tensor
from strobe._shapes import shape_of


@with_options(AppendOptions)
def append(
    k_cache: Tensor,
    v_cache: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    cache_seqlens: Tensor,
    **options: Unpack[AppendOptions],
) -> Tensor | None:
    """Writes k_new and v_new into a cache, behind the rows that its sequences have. Gives the rotated q, if q is given.

    The cache is k_cache [batch_cache, seqlen, heads_kv, head_dim] and v_cache [.., head_dim_v], of which sequence b is
    entry b or ``cache_batch_idx[b]``; or, with ``page_table``, pages [num_pages, page_size, ..]. ``cache_seqlens``
    [batch] counts the rows before the append, left padding among them; it is not changed. k_new and v_new are [batch,
    seqlen_new, heads_kv, head_dim], or packed [total_new, heads_kv, head_dim] with ``cu_seqlens_new``: float32, float16
    or bfloat16. Integers are int32.

    With ``cos`` and ``sin`` k_new and ``q`` are rotated, in float32 and rounded once.

    On a GPU the call returns when its launch is queued, and numbers in tensors are not looked at: rows whose page,
    entry, row or position does not exist are not written, queries without angles become NaN.

    There are no gradients. Raises ValueError, with nothing written, for tensors that are recorded on PyTorch's tape or
    contradict this description and, on the CPU, rows or pages that the cache does not have and two sequences that would
    write to one row; TypeError for what are no tensors.

    The options are those of ``strobe.AppendOptions``.

    Sources: Kwon et al., "PagedAttention" (2023), section 4.3; Su et al., "RoFormer" (2021), section 3.4.2.
    """
    check_options("strobe.append", options, AppendOptions.__annotations__)
    framework = framework_of(k_cache)
    if framework.name == "jax":
        raise NotImplementedError("append writes to the cache, and arrays of JAX cannot be written to")
    q, q_out = options.get("q"), options.get("q_out")
    framework.reject_gradients(
        "an append does not have: detach it", k_cache=k_cache, v_cache=v_cache, k_new=k_new, v_new=v_new, q=q
    )
    check_outputs(q_out=q_out, **{name: options.get(name) for name in _appended.WRITTEN_SCALES})
    if q is not None and q_out is None:
        q_out = framework_of(q).empty(shape_of(q), q)
    if framework.is_compiling():
        from strobe.torch import graphs

        graphs.append(k_cache, v_cache, k_new, v_new, cache_seqlens, q_out, options)
        return q_out
    with framework.region("strobe::append") or nullcontext():
        stream = framework.stream(options.get("stream"))
        _appended.append(k_cache, v_cache, k_new, v_new, cache_seqlens, q_out, options, stream)
    return q_out
