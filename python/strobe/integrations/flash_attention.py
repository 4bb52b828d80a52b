# SPDX-License-Identifier: Apache-2.0
"""The calls of FlashAttention-2 and -3 on Strobe: what the modules `flash_attn` and `flash_attn_interface` share.

Tensors are [batch, seqlen, heads, head_dim], or [total, heads, head_dim] with cumulative lengths; causal is aligned to
the bottom right; a window's -1 is no bound. Arguments that only steer how a kernel is launched are accepted and not
read.
"""

from typing import Any

import torch
from torch import Tensor

import strobe
from strobe._query_values import HEAD_DIM_MULTIPLE, MOST_HEAD_DIM, gpus_take_query_values
from strobe._shapes import wrong_type
from strobe.integrations import checks
from strobe.torch import attention
from strobe.torch.ops import is_traced, rows


def reject_unsupported(**arguments: Any) -> None:
    """NotImplementedError for the first argument that is given."""
    for name, value in arguments.items():
        if value is not None:
            raise NotImplementedError(f"{name} is given, but no engine of this build has it")


def window_of(window_size: Any) -> tuple[int, int]:
    """A pair, or a tensor of two numbers; every negative number stands for no bound."""
    try:
        left, right = window_size
    except (TypeError, ValueError):
        raise wrong_type("window_size", window_size, "a pair of integers (left, right)") from None
    left, right = (checks.whole("window_size", side) for side in (left, right))
    return (max(left, -1), max(right, -1))


def options_of(
    *,
    softmax_scale: float | None,
    causal: bool,
    window_size: Any,
    softcap: float,
    deterministic: bool = False,
    attention_chunk: int = 0,
    dropout_p: float = 0.0,
    alibi_slopes: Tensor | None = None,
) -> dict[str, Any]:
    """Theirs as Strobe's, without those that ask for nothing: each costs a call some time before its launch."""
    options: dict[str, Any] = {"causal": bool(causal)}
    if softmax_scale is not None:
        options["scale"] = softmax_scale
    if type(window_size) is not tuple or window_size != (-1, -1):
        options["window"] = window_of(window_size)
    if softcap:
        options["softcap"] = softcap
    if deterministic:
        options["deterministic"] = True
    if attention_chunk:
        options["chunk"] = attention_chunk
    if dropout_p:
        options["dropout"] = dropout_p
    if alibi_slopes is not None:
        checks.check_float32(alibi_slopes=alibi_slopes)
        options["alibi_slopes"] = alibi_slopes
    return options


def _by_head(descale: Tensor | None, q: Tensor, heads: int, heads_kv: int) -> Tensor:
    """A scale of each sequence and key head, [batch, heads_kv], as [batch, heads, 1]; ones where none is given."""
    if descale is None:
        return torch.ones((1, 1, 1), device=q.device)
    return descale.repeat_interleave(heads // heads_kv, dim=1).unsqueeze(-1)


def _key_at(place: Tensor) -> Tensor:
    """The key of each column of 8-bit values: at 16 a + 4 c + 2 b + d lies key 16 a + 8 b + 2 c + d."""
    return (place & ~15) | (place & 12) >> 1 | (place & 2) << 2 | (place & 1)


def _transposed_values(v: Tensor) -> Tensor:
    """v [batch, seqlen, heads, head_dim] as [batch, heads, head_dim, keys], in the order of strobe/quantize.h."""
    keys = -(-v.shape[1] // 32) * 32
    key = _key_at(torch.arange(keys, device=v.device))
    rows = torch.nn.functional.pad(v.view(torch.uint8), (0, 0, 0, 0, 0, keys - v.shape[1]))
    return rows[:, key].permute(0, 2, 3, 1).contiguous().view(v.dtype)


def _packed_values(v: Tensor, cu_seqlens_k: Tensor) -> Tensor:
    """v [total, heads, head_dim] as [heads, head_dim, columns], laid out as strobe/quantize.h has packed sequences.

    Nothing waits for the device: the number of columns depends on shapes alone.
    """
    total, batch = v.shape[0], cu_seqlens_k.shape[0] - 1
    columns = 32 * (total // 32 + batch)
    if total == 0 or batch == 0:
        return torch.zeros((*v.shape[1:], columns), dtype=torch.uint8, device=v.device).view(v.dtype)
    begins, ends = cu_seqlens_k[:-1].long(), cu_seqlens_k[1:].long()
    first = 32 * (begins // 32 + torch.arange(batch, device=v.device))
    column = torch.arange(columns, device=v.device)
    sequence = torch.searchsorted(first, column, right=True) - 1
    row = begins[sequence] + _key_at(column - first[sequence])
    exists = (row < ends[sequence]).view(-1, 1, 1)
    values = v.view(torch.uint8)[row.clamp(0, total - 1)].masked_fill(~exists, 0)
    return values.permute(1, 2, 0).contiguous().view(v.dtype)


def _in_one_row(first: Tensor, second: Tensor) -> Tensor | None:
    """A view of the rows whose columns are those of `first` and then of `second`, if they lie so in memory."""
    if first.shape[:-1] != second.shape[:-1] or first.stride() != second.stride() or first.stride(-1) != 1:
        return None
    begins = first.storage_offset() + first.shape[-1] == second.storage_offset()
    if not begins or first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr():
        return None
    columns = first.shape[-1] + second.shape[-1]
    return first.as_strided((*first.shape[:-1], columns), first.stride())


def joined_columns(q: Tensor, k: Tensor, v: Tensor, qv: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys whose products are q k^T + qv v^T.

    Servers of latent attention keep V and K in one row, V first: then these are the keys, and V is their first columns.
    Others' are copied, and all that have gradients.
    """
    if not (k.requires_grad or v.requires_grad):
        keys = _in_one_row(v, k)
        if keys is not None:
            return torch.cat([qv, q], dim=-1), keys
    return torch.cat([q, qv], dim=-1), torch.cat([k, v], dim=-1)


def with_query_values(
    q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None, options: dict[str, Any]
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """q, k and the options of a call whose scores are q k^T + qv v^T: where engines have those qv is one of them.

    qv has q's shape but head_dim_v columns. Elsewhere its columns join q's and v's those of k. The scale is by default
    that of all columns, as FlashAttention-3's. Without qv nothing changes.
    """
    if qv is None:
        return q, k, options
    checks.check_as("q", q, qv=qv)
    if qv.shape != (*q.shape[:-1], v.shape[-1]):
        raise ValueError(f"qv is {tuple(qv.shape)}, but q {tuple(q.shape)} and v {tuple(v.shape)}: it has v's head_dim")
    if q.device.type == "cpu" or _gpus_take_query_values(q, k, v, qv):
        return q, k, options | {"qv": rows(qv)}
    if k.dtype.itemsize == 1:
        raise NotImplementedError(f"qv is given with k of {k.dtype}: on a GPU it is supported with 16 bits or more")
    head_dim = q.shape[-1] + qv.shape[-1]
    if head_dim > MOST_HEAD_DIM:
        raise NotImplementedError(
            f"qv is given, and its head_dim and q's are {head_dim} together: on a GPU they are at most {MOST_HEAD_DIM}"
        )
    return *joined_columns(q, k, v, qv), {"scale": head_dim**-0.5} | options


def _gpus_take_query_values(q: Tensor, k: Tensor, v: Tensor, qv: Tensor) -> bool:
    """Calls without gradients, which no compiler sees."""
    needs_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, qv))
    return gpus_take_query_values(q, k, v) and not needs_gradients and not is_traced(q, k, v, qv)


def float8_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    descales: tuple[Tensor | None, Tensor | None, Tensor | None],
    **options: Any,
) -> Any:
    """FlashAttention-3's call of float8_e4m3fn tensors: scales of a sequence and key head, output in bfloat16.

    With cu_seqlens_q or cu_seqlens_k among the options that side is packed. V is copied: the tensor cores need it
    transposed. Without gradients, as FlashAttention-3's: out is detached.
    """
    q, k, v = q.detach(), k.detach(), v.detach()
    cu_seqlens_q, cu_seqlens_k = options.get("cu_seqlens_q"), options.get("cu_seqlens_k")
    batch = q.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    heads_kv = k.shape[-2]
    checks.check_as("q", q, k=k, v=v)
    checks.check_scales(batch, heads_kv, **dict(zip(("q_descale", "k_descale", "v_descale"), descales, strict=True)))
    scales = {
        f"{name}_descale": _by_head(descale, q, heads, heads_kv)
        for name, descale, heads in zip("qkv", descales, (q.shape[-2], heads_kv, heads_kv), strict=True)
    }
    options |= scales | {"out_dtype": torch.bfloat16}
    values = _transposed_values(v) if cu_seqlens_k is None else _packed_values(v, cu_seqlens_k)
    return attention(rows(q), rows(k), values, **options)


def float8_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    descales: tuple[Tensor | None, Tensor | None, Tensor | None],
    qv: Tensor | None,
    **options: Any,
) -> Any:
    """float8_attention where q is float8_e4m3fn; None for other calls, which ValueError says where they have scales."""
    if q.dtype == torch.float8_e4m3fn:
        if qv is not None:
            raise NotImplementedError("qv is given with float8_e4m3fn q: it is supported with 16 bits or more")
        return float8_attention(q, k, v, descales, **options)
    for name, descale in zip("qkv", descales, strict=True):
        if descale is not None:
            raise ValueError(f"{name}_descale is given, but q is {q.dtype}: it belongs to float8_e4m3fn inputs")
    return None


def padded_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    """strobe.torch.attention, but of any head_dim on a GPU, as FlashAttention has it: zeros add nothing to a score."""
    head_dim, head_dim_v = q.shape[-1], v.shape[-1]
    if not q.is_cuda or (head_dim % HEAD_DIM_MULTIPLE == 0 and head_dim_v % HEAD_DIM_MULTIPLE == 0):
        return attention(q, k, v, **options)
    options.setdefault("scale", head_dim**-0.5)
    padded = (torch.nn.functional.pad(x, (0, -x.shape[-1] % HEAD_DIM_MULTIPLE)) for x in (q, k, v))
    result = attention(*padded, **options)
    if isinstance(result, tuple):
        return (result[0][..., :head_dim_v], *result[1:])
    return result[..., :head_dim_v]


def forward_pass(q: Tensor, k: Tensor, v: Tensor, *, out: Tensor | None = None, **options: Any) -> Any:
    """(out, lse) of a call that no tape sees."""
    with torch.no_grad():
        return strobe.attention(*(rows(x) for x in (q, k, v)), out=out, return_lse=True, **options)


def backward_pass(tensors: tuple[Tensor, ...], gradients: tuple[Tensor | None, ...], **options: Any) -> None:
    """Writes dq, dk and dv where they are given, from dout, q, k, v, out and lse."""
    d_o, q, k, v, o, lse = (rows(x) for x in tensors)
    dq, dk, dv = gradients
    with torch.no_grad():
        strobe.attention_backward(d_o, q, k, v, o, lse, dq=dq, dk=dk, dv=dv, **options)


def given_lengths(
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
) -> dict[str, Any]:
    """Those that are given, each packed side with the length of its longest sequence."""
    lengths = {
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": checks.max_seqlen("q", cu_seqlens_q, max_seqlen_q),
        "max_seqlen_k": checks.max_seqlen("k", cu_seqlens_k, max_seqlen_k),
        "seqused_q": seqused_q,
        "seqused_k": seqused_k,
    }
    return {name: value for name, value in lengths.items() if value is not None}


def rotate(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool) -> Tensor:
    """Rotary embedding of x [batch, seqlen, heads, head_dim] at `positions` [batch, seqlen], or both without a batch.

    cos and sin are [positions, rotary_dim / 2]; pairs are neighbours (interleaved) or lie half of rotary_dim apart; the
    rest of the head stays. Source: Su et al., "RoFormer" (2021), section 3.4.
    """
    half = cos.shape[-1]
    rotated, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    c, s = (table[positions].unsqueeze(-2).float() for table in (cos, sin))
    a, b = (rotated[..., 0::2], rotated[..., 1::2]) if interleaved else (rotated[..., :half], rotated[..., half:])
    pair = (a * c - b * s, a * s + b * c)
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([turned.to(x.dtype), rest], dim=-1)
