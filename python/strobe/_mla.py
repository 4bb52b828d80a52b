# SPDX-License-Identifier: Apache-2.0
"""Absorbed Multi-head Latent Attention: one row a token, which is key and, but for its last columns, value."""

from typing import Any, Unpack

from strobe._attention import attention
from strobe._documented import with_options
from strobe._frameworks import framework_of
from strobe._options import Options, Tensor
from strobe._query_values import gpus_take_query_values
from strobe._shapes import check_tensors, dtype_name, shape_of


@with_options(Options)
def mla(
    q_latent: Tensor,
    q_rope: Tensor,
    cache: Tensor,
    *,
    out: Tensor | None = None,
    return_lse: bool = False,
    **options: Unpack[Options],
) -> Any:
    """``attention`` of Multi-head Latent Attention over the latent rows themselves, for prefill and for decoding.

    A token has one row for all heads: ``cache`` is [batch, seqlen_k, latent + rope], or packed [total_k, latent + rope]
    with ``cu_seqlens_k``, or pages [num_pages, page_size, latent + rope] with ``page_table``; before the last there may
    be an axis of one head. Its first ``latent`` columns are the compressed key and value, its last ``rope`` columns the
    rotated key: 512 and 64 in DeepSeek's models. Both are read where they lie, as views of the cache.

    ``q_latent`` is [batch, seqlen_q, heads, latent]: the part of each query without position, multiplied by that head's
    matrix from latents to keys; ``q_rope`` is [batch, seqlen_q, heads, rope], rotated. With ``cu_seqlens_q`` both are
    packed. Any number of heads. Returns out, of q_latent's shape, which each head's matrix from latents to values
    turns into its output; with ``return_lse`` also lse, as ``attention`` does. docs/wide-heads.md has the equations.

    ``scale`` has no default: it is that of the heads before absorption, 1/sqrt(nope + rope), with what the model
    multiplies it by for long contexts. The options are those of ``attention``, ``causal`` among them. The columns of a
    cache of int8 or float8_e4m3fn share scales: ``k_descale`` alone.

    Raises what ``attention`` raises. On GPUs rows of more than 256 columns have no float32: NotImplementedError.
    There are no gradients: training computes the heads' own keys and values.

    Source: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1; "DeepSeek-V3 Technical Report" (2024), section 2.1.1.
    """
    check_tensors(q_latent=q_latent, q_rope=q_rope, cache=cache)
    if options.get("scale") is None:
        raise ValueError("scale is not given: it is that of the heads before absorption, 1/sqrt(nope + rope)")
    if options.get("qv") is not None:
        raise ValueError("qv is given: q_latent is what it would be")
    latent, rope = shape_of(q_latent), shape_of(q_rope)
    if len(latent) < 3 or latent[:-1] != rope[:-1]:
        raise ValueError(
            f"q_latent has shape {latent} and q_rope {rope}: they must be [.., heads, latent] and [.., heads, rope], "
            "with equal axes before the last"
        )
    framework = framework_of(q_latent)
    if not framework.has_arithmetic:
        raise TypeError(f"q_latent is of type {type(q_latent).__name__}: mla takes tensors of NumPy, PyTorch and CuPy")
    if q_rope.dtype != q_latent.dtype:
        raise ValueError(
            f"q_rope is {dtype_name(q_rope.dtype)}: it must be {dtype_name(q_latent.dtype)}, as q_latent is"
        )
    cache = _rows(cache, latent[-1], rope[-1], packed=options.get("cu_seqlens_k") is not None)
    if options.get("k_descale") is not None:
        options["v_descale"] = options["k_descale"]
    values = cache[..., : latent[-1]]
    is_eager_on_gpu = framework.is_on_gpu(q_latent) and not framework.is_compiling()
    if is_eager_on_gpu and gpus_take_query_values(q_rope, cache, values):  # which reads both parts where they lie
        options["qv"] = framework.dense(q_latent)
        rotated = cache[..., latent[-1] :]
        return attention(framework.dense(q_rope), rotated, values, out=out, return_lse=return_lse, **options)
    q = framework.join_columns(q_latent, q_rope)
    return attention(q, cache, values, out=out, return_lse=return_lse, **options)


def _rows(cache: Tensor, latent: int, rope: int, *, packed: bool) -> Any:
    """[.., 1, latent + rope]."""
    shape = shape_of(cache)
    rank = 2 if packed else 3
    if shape[-1:] != (latent + rope,) or len(shape) not in (rank, rank + 1):
        raise ValueError(
            f"cache has shape {shape}: it must be {'[total_k' if packed else '[.., rows'}, {latent + rope}], which are "
            f"the {latent} columns of q_latent and the {rope} of q_rope"
        )
    return cache if len(shape) == rank + 1 else cache[..., None, :]
