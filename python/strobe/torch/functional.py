# SPDX-License-Identifier: Apache-2.0
"""Attention of PyTorch's tensors: past the dispatcher where nothing records the call, else as an operator."""

from collections.abc import Mapping
from typing import Any, Literal, Unpack, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from strobe import _few_queries
from strobe._documented import with_options
from strobe._expressions import unpack
from strobe._forward import forward, results
from strobe._frameworks import framework_of
from strobe._frameworks.torch import draw_random, without_negative_bit
from strobe._mask_argument import apply_mask
from strobe._option_list import OPTIONS, captures_of, check_options, check_outputs_of_softmax, is_seeded
from strobe._options import ScoreOptions
from strobe.torch import nested, ops, query_values
from strobe.torch.autograd import has_tangents
from strobe.torch.checks import check_layouts, check_meta, check_types
from strobe.torch.scales import scaled
from strobe.torch.tape import Call, StrobeAttention


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | str | None = ...,
    qv: Tensor | None = ...,
    return_lse: Literal[False] = ...,
    return_max_logits: Literal[False] = ...,
    **options: Unpack[ScoreOptions],
) -> Tensor: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | str | None = ...,
    qv: Tensor | None = ...,
    return_lse: Literal[True],
    return_max_logits: Literal[False] = ...,
    **options: Unpack[ScoreOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | str | None = ...,
    qv: Tensor | None = ...,
    return_lse: Literal[False] = ...,
    return_max_logits: Literal[True],
    **options: Unpack[ScoreOptions],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | str | None = ...,
    qv: Tensor | None = ...,
    return_lse: Literal[True],
    return_max_logits: Literal[True],
    **options: Unpack[ScoreOptions],
) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | str | None = ...,
    qv: Tensor | None = ...,
    return_lse: bool = ...,
    return_max_logits: bool = ...,
    **options: Unpack[ScoreOptions],
) -> Any: ...
@with_options(ScoreOptions)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Any = None,
    qv: Tensor | None = None,
    return_lse: bool = False,
    return_max_logits: bool = False,
    **options: Unpack[ScoreOptions],
) -> Any:
    """``strobe.attention`` with gradients: for q, k, v, mask, bias, sink, scale and captures, through out and lse.

    Shapes, dtypes, mask, options and errors are those of strobe.attention; where the last axis is not dense the tensor
    is copied. ``scale`` may also be a tensor, of one element or [heads_q]: it is multiplied into q, which 16 bits round
    once more. Nested tensors of the jagged layout, [batch, jagged, heads, head_dim], are packed sequences. Under
    autocast q, k and v are cast to its dtype. With dropout and no ``seed`` the call draws one from PyTorch's generator
    of q's device. Runs on the current stream. grad, vjp, jvp, jacrev, jacfwd and vmap of torch.func take the
    call; vmap's axis joins the batch. Forward-mode derivatives, by torch.func or dual numbers, are those of q, k and v
    in one pass, on the CPU engine alone. The output that comes with a tangent has gradients, the tangent has none: it
    must be detached. Second derivatives raise NotImplementedError; so does the backward of a call that the engine has
    in the forward alone.

    ``qv``, [batch, seqlen_q, heads_q, head_dim_v] or packed, has a gradient, too: scores are scale * (q k^T + qv v^T).
    Such calls are eager ones of plain tensors on the CPU, without max_logits, captures or gradients of bias, sink and
    scale: NotImplementedError otherwise.
    """
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        check_types(q=q, k=k, v=v)
    mask = unpack(mask, options)
    check_outputs_of_softmax(options, return_lse, return_max_logits)
    if qv is not None:
        _check_query_values(q, qv, options)
    if type(q) is not Tensor and q.is_nested:
        given = options if mask is None else options | {"mask": mask}
        return nested.attend(attention, q, k, v, given, return_lse=return_lse, return_max_logits=return_max_logits)
    bias, sink = options.get("bias"), options.get("sink")
    if bias is not None:
        check_types(bias=bias)
    if sink is not None:
        check_types(sink=sink)
    captures = _captures_of(options) if options.get("captures") is not None else {}
    q, k, v = cast(q, k, v)
    if mask is not None:
        check_types(mask=mask)
        if mask.is_cuda and q.dim() == k.dim() == v.dim() == 4 and is_eager_inference(q, k, v, mask, sink):
            plain = without_negative_bit(ops.rows(q), ops.rows(k), ops.rows(v))
            result = _few_queries.attend(_TORCH, mask, plain, options, return_lse, return_max_logits)
            if result is not None:
                return result
        k, v = _with_mask(mask, q, k, v, options)
        bias = options.get("bias")
    _check_derivatives(q, k, v, options)
    try:
        q, k, v = ops.rows(q), ops.rows(k), ops.rows(v)
    except (IndexError, RuntimeError):
        check_layouts(q=q, k=k, v=v)
        raise
    if isinstance(options.get("scale"), Tensor):
        q, options["scale"] = scaled(q, options["scale"])
    seen = (q, k, v, *options.values(), *captures.values())
    if qv is not None:
        return _with_query_values(q, k, v, cast(qv)[0], options, seen, return_lse, return_max_logits)
    if q.is_meta:
        check_meta(k=k, v=v)
    if q.is_meta or ops.is_traced(*seen) or has_tangents(*seen):
        arguments = ops.operator_arguments(q, k, v, options, return_max_logits)
        o, lse, max_logits = torch.ops.strobe.attention(*arguments)
        return results(o, lse if return_lse else None, max_logits if return_max_logits else None)
    q, k, v = without_negative_bit(q, k, v)
    if options.get("dropout") and not is_seeded(options):
        options["random_state"] = draw_random(q).view(torch.int32)
    if bias is not None and bias.is_neg():
        options["bias"] = bias = bias.resolve_neg()
    if captures:
        captures = dict(zip(captures, without_negative_bit(*captures.values()), strict=True))
        options["captures"] = captures
    if _is_recorded(q, k, v, bias, sink, *captures.values()):
        ops.check_names(options)
        others: dict[str, Any] = {name: x for name, x in options.items() if name != "captures"}
        call = Call(others, tuple(captures), return_lse, return_max_logits)
        if bias is None and sink is None and not captures:
            return StrobeAttention.apply(call, q, k, v)
        return StrobeAttention.apply(call, q, k, v, bias, sink, *captures.values())
    if not options.keys() <= OPTIONS.keys():
        check_options("strobe.torch.attention", options)
    return forward(q, k, v, None, return_lse, return_max_logits, options)


def _check_query_values(q: Tensor, qv: Tensor, options: Any) -> None:
    """What stands before the call's own checks."""
    check_types(qv=qv)
    if type(q) is not Tensor and q.is_nested:
        raise NotImplementedError(
            "qv is given with nested tensors: give packed ones, with cu_seqlens_q and cu_seqlens_k"
        )
    if isinstance(options.get("scale"), Tensor):
        raise NotImplementedError("qv is given with a tensor as scale: give a number")


def _with_query_values(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor,
    options: Any,
    seen: tuple[Any, ...],
    return_lse: bool,
    return_max_logits: bool,
) -> Any:
    if ops.is_traced(*seen, qv) or has_tangents(*seen, qv):
        raise NotImplementedError(
            "qv is given: such calls are eager, no compiler, transform or mode of PyTorch takes them"
        )
    if return_max_logits or options.get("captures"):
        raise NotImplementedError(
            "qv is given with return_max_logits or captures: call strobe.attention without gradients"
        )
    for name in ("bias", "sink"):
        value = options.get(name)
        if torch.is_grad_enabled() and isinstance(value, Tensor) and value.requires_grad:
            raise NotImplementedError(f"qv is given and {name} requires a gradient: detach it")
    q, k, v, qv = without_negative_bit(q, k, v, qv)
    if options.get("dropout") and not is_seeded(options):
        options["random_state"] = draw_random(q).view(torch.int32)
    if not options.keys() <= OPTIONS.keys():
        check_options("strobe.torch.attention", options)
    return query_values.attend(q, k, v, qv, dict(options), return_lse=return_lse)


def _captures_of(options: Any) -> dict[str, Tensor]:
    """By name, in the order of names, which is that of the operators."""
    captures = captures_of(options)
    check_types(**{f"capture `{name}`": x for name, x in captures.items()})
    return {name: captures[name] for name in sorted(captures)}


def _check_derivatives(q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any]) -> None:
    """NotImplementedError where a derivative that attention does not have would be lost without a word."""
    if torch.is_grad_enabled():
        for name in ("alibi_slopes", "softcap"):
            value = options.get(name)
            if isinstance(value, Tensor) and value.requires_grad:
                raise NotImplementedError(f"{name} requires a gradient, which attention does not have: detach it")


# Both types are looked up here, so that no compiler meets one for the first time.
_TORCH, _ = (framework_of(x) for x in (torch.empty(0), torch.nn.Parameter(torch.empty(0))))


def _with_mask(mask: Tensor, q: Tensor, k: Tensor, v: Tensor, options: Any) -> tuple[Tensor, Tensor]:
    """k and v of a call whose ``options`` say what the mask hides."""
    traced = ops.is_traced(q, k, v, mask, *options.values())
    read = not traced and _TORCH.can_read(mask)
    has_backward = traced or _is_recorded(q, k, v, mask, options.get("bias"), options.get("sink"))
    return apply_mask(_TORCH, mask, (q, k, v), options, read=read, has_backward=has_backward)


def cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in autocast's dtype, where it is on."""
    device = "cuda" if tensors[0].is_cuda else "cpu"
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x.to(dtype) if x.dtype.is_floating_point and x.dtype.itemsize > 1 else x for x in tensors)


def is_eager_inference(*tensors: Tensor | None) -> bool:
    """Nothing records the call, neither the dispatcher nor a gradient's tape."""
    return forward_ad._current_level < 0 and not ops.is_traced(*tensors) and not _is_recorded(*tensors)


def _is_recorded(*tensors: Tensor | None) -> bool:
    if not torch.is_grad_enabled():
        return False
    for tensor in tensors:  # noqa: SIM110 (any() takes twice as long)
        if tensor is not None and tensor.requires_grad:
            return True
    return False
