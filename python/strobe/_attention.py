# SPDX-License-Identifier: Apache-2.0
"""Attention on any framework's tensors, without gradients."""

from typing import Any, Literal, TypeVar, Unpack, overload

from strobe import _core, _few_queries
from strobe._documented import with_options
from strobe._expressions import differentiable, unpack
from strobe._forward import forward, outputs_of, results
from strobe._frameworks import check_outputs, framework_of, mark_written
from strobe._frameworks.base import NOT_RECORDED
from strobe._mask_argument import apply_mask, plan_mask, summed_to
from strobe._option_list import OPTIONS, captures_of, check_options
from strobe._options import Options, Tensor
from strobe._shapes import Shape, dtype_name, shape_of, tensor_shape
from strobe._threads import get_threads

OfQ = TypeVar("OfQ")  # results are tensors of q's framework


@overload
def attention(
    q: OfQ,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | str | None = ...,
    out: Tensor | None = ...,
    return_lse: Literal[False] = ...,
    return_max_logits: Literal[False] = ...,
    **options: Unpack[Options],
) -> OfQ: ...
@overload
def attention(
    q: OfQ,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | str | None = ...,
    out: Tensor | None = ...,
    return_lse: Literal[True],
    return_max_logits: Literal[False] = ...,
    **options: Unpack[Options],
) -> tuple[OfQ, OfQ]: ...
@overload
def attention(
    q: OfQ,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | str | None = ...,
    out: Tensor | None = ...,
    return_lse: Literal[False] = ...,
    return_max_logits: Literal[True],
    **options: Unpack[Options],
) -> tuple[OfQ, OfQ]: ...
@overload
def attention(
    q: OfQ,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | str | None = ...,
    out: Tensor | None = ...,
    return_lse: Literal[True],
    return_max_logits: Literal[True],
    **options: Unpack[Options],
) -> tuple[OfQ, OfQ, OfQ]: ...
@overload
def attention(
    q: OfQ,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | str | None = ...,
    out: Tensor | None = ...,
    return_lse: bool = ...,
    return_max_logits: bool = ...,
    **options: Unpack[Options],
) -> Any: ...
@with_options(Options)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | str | None = None,
    out: Tensor | None = None,
    return_lse: bool = False,
    return_max_logits: bool = False,
    **options: Unpack[Options],
) -> Any:
    """softmax(scale * q k^T) v, exactly, in memory that grows with the sequence and not with its square.

    q [batch, seqlen_q, heads_q, head_dim], k [batch, seqlen_k, heads_kv, head_dim] and v [batch, seqlen_k, heads_kv,
    head_dim_v] are float32, float16 or bfloat16, of one framework and on one device, with any strides as long as the
    last is 1; heads_q is a multiple of heads_kv. With ``cu_seqlens_q`` or ``cu_seqlens_k`` that side is packed and has
    no batch axis. NumPy holds bfloat16 by ml_dtypes. Nothing is copied. Or they are int8 or float8_e4m3fn, with scales,
    as ``strobe.quantize`` gives them, or k and v alone are (``strobe.EightBitOptions``); there are no gradients of such
    calls.

    Returns out [batch, seqlen_q, heads_q, head_dim_v] of q's dtype (written to ``out`` where it is given); with
    ``return_lse`` also lse [batch, heads_q, seqlen_q] float32, the natural logarithm of each row's sum of
    exponentials; with ``return_max_logits`` also the largest visible score, [batch, heads_q] float32; as a tuple.

    ``mask`` is text, which is ``mask_text``, or a tensor: bool, True where a query sees a key, or floating point, added
    to the scores: [batch, seqlen_k], for
    padding, [batch, seqlen_q, seqlen_k] or [batch, heads_q, seqlen_q, seqlen_k], where an extent may be 1. It applies
    beside ``causal``, ``bias`` and all other options. A key that it hides from every query may hold anything, NaN
    included; a key that it shows to some must be finite. In host memory a bool mask of padding alone, on the right or
    the left, becomes ``seqused_k`` or ``leftpad_k``, and hidden keys take no time. On a GPU, up to 64 queries with a
    bool mask of keys and without options that look at positions read only the keys that it shows. Any other mask
    becomes a bias, and k and v are copied: in host memory if it hides keys from every query, on a GPU always, since
    nothing waits to look; ``seqused_k`` saves that. Not with packed sequences, caches or 8 bits.

    On a GPU the call returns when the launch is queued. With dropout a seed must be
    given, but for tensors of PyTorch: for those the call draws one from PyTorch's generator.

    Raises ValueError for arguments that contradict each other or this description, TypeError for arguments that are not
    tensors or unknown options, NotImplementedError for calls that no engine of this build supports, MemoryError, and
    RuntimeError for errors of the driver. The outputs are then untouched.

    Example: two heads of queries for each head of keys, a window of 64 keys along the diagonal.

        q = np.random.rand(2, 300, 8, 64).astype(np.float32)
        k, v = (np.random.rand(2, 300, 4, 64).astype(np.float32) for _ in range(2))
        out, lse = strobe.attention(q, k, v, causal=True, window=(63, 0), return_lse=True)

    The options are those of ``strobe.Options``.

    Source: Dao et al., "FlashAttention" (2022), algorithm 1; Dao, "FlashAttention-2" (2023), algorithm 1.
    """
    if not options.keys() <= OPTIONS.keys():
        check_options("strobe.attention", options)
    mask = unpack(mask, options)
    framework = framework_of(q)
    if framework.name == "jax":
        return _jax_attention(q, k, v, mask, out, return_lse, return_max_logits, options)
    if mask is not None:
        framework.reject_gradients(NOT_RECORDED, mask=mask)
        if out is None and not framework.is_compiling():
            plain = framework.without_tape(q, k, v, options)
            result = _few_queries.attend(framework, mask, plain, options, return_lse, return_max_logits)
            if result is not None:
                return result
        read = framework.can_read(mask)
        k, v = apply_mask(framework, mask, (q, k, v), options, read=read, has_backward=False)
    if framework.is_compiling():
        return _compiled_attention(q, k, v, out, return_lse, return_max_logits, options)
    q, k, v = framework.without_tape(q, k, v, options)
    if out is None:
        return forward(q, k, v, None, return_lse, return_max_logits, options)
    check_outputs(out=out)
    result = forward(q, k, v, out, return_lse, return_max_logits, options)
    mark_written(out)
    return result


@with_options(Options)
def attention_backward(
    d_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor | None,
    lse: Tensor | None,
    *,
    mask: Tensor | str | None = None,
    d_lse: Tensor | None = None,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    return_d_bias: bool = False,
    return_d_sink: bool = False,
    return_d_captures: bool = False,
    dqv: Tensor | None = None,
    **options: Unpack[Options],
) -> tuple[Tensor, ...]:
    """(dq, dk, dv), the gradients of a loss whose gradient with respect to attention's output is ``d_o``.

    q, k, v, o, lse, mask and the options, a seed of dropout among them, are the forward's; d_o has o's shape and dtype;
    ``d_lse``, in lse's shape, is the gradient that comes in through lse. The gradients have their tensor's shape and
    dtype, and are written to ``dq``, ``dk`` and ``dv`` where those are given. With ``return_d_bias`` and
    ``return_d_sink`` the tuple goes on with the gradients of bias and sink, in their shapes, float32, and with
    ``return_d_captures`` with a dict of those of the captures that the score reads as real numbers, likewise. With
    ``normalize="none"`` lse must be and o may be None. With the option ``qv`` its gradient, written to ``dqv`` where
    that is given, stands behind dv. Raises as ``attention`` does.

    Source: Dao et al., "FlashAttention" (2022), algorithm 4; Dao, "FlashAttention-2" (2023), algorithm 2.
    """
    check_options("strobe.attention_backward", options)
    mask = unpack(mask, options)
    qv = options.get("qv")
    check_outputs(dq=dq, dk=dk, dv=dv, dqv=dqv)
    framework = framework_of(q)
    dq, dk, dv = (
        framework_of(like).empty(shape_of(like), like) if given is None else given
        for given, like in ((dq, q), (dk, k), (dv, v))
    )
    if dqv is None and qv is not None:
        dqv = framework.empty(shape_of(qv), qv)
    bias = options.get("bias")
    if return_d_bias and bias is None:
        raise ValueError("return_d_bias is given without bias: give bias, too")
    if mask is not None:
        read = framework.can_read(mask)
        k, v = apply_mask(framework, mask, (q, k, v), options, read=read, has_backward=True)
    d_bias = _float32_like(options.get("bias"), "bias") if return_d_bias else None
    d_sink = _float32_like(options.get("sink"), "sink") if return_d_sink else None
    d_captures = _gradients_of_captures(options) if return_d_captures else None
    stream = options.get("stream")
    allocate = framework.workspace_allocator(q, stream)
    call: dict[str, Any] = {**options, "stream": framework.stream(stream)}
    _core.backward(d_o, q, k, v, o, lse, d_lse, dq, dk, dv, d_bias, d_sink, allocate, d_captures, dqv, **call)
    mark_written(dq, dk, dv, *([] if dqv is None else [dqv]))
    if d_bias is not None:
        d_bias = summed_to(d_bias, shape_of(bias))
    return tuple(gradient for gradient in (dq, dk, dv, dqv, d_bias, d_sink, d_captures) if gradient is not None)


@with_options(Options)
def explain(
    q: Tensor | Shape,
    k: Tensor | Shape,
    v: Tensor | Shape,
    *,
    mask: Tensor | Shape | str | None = None,
    backward: bool = False,
    dtype: str = "float32",
    device: str = "cpu",
    **options: Unpack[Options],
) -> str:
    """Which engine and tiles a call would run on and why, in a few lines of text.

    q, k, v, mask and the option ``qv`` are tensors, or their shapes as tuples (a mask may be text); those of q, k, v
    and qv are of ``dtype`` on ``device``, "cpu" or "cuda:0". Raises what the call would raise.
    """
    check_options("strobe.explain", options)
    mask = unpack(mask, options)
    call: dict[str, Any] = {**options}
    if mask is not None:
        where = device if isinstance(q, tuple) else framework_of(q).device_text(q)
        shapes = (q if isinstance(q, tuple) else shape_of(q), k if isinstance(k, tuple) else shape_of(k))
        plan_mask(mask, shapes, where, call, has_backward=backward)
    query, key, value, call["qv"] = (
        tensor_shape(x, dtype_name(dtype), device) if isinstance(x, tuple) else x for x in (q, k, v, call.get("qv"))
    )
    if call.get("out_dtype") is not None:
        call["out_dtype"] = dtype_name(call["out_dtype"], "out_dtype")
    return _core.explain(query, key, value, backward, **call)


def info() -> dict[str, Any]:
    """This build and this machine, as a dict.

    - version
    - threads: those that a call takes by default, as ``get_threads`` says
    - engines: of each "available", or why not
    - gpu: in words for people, the driver, devices, kernels that were compiled ahead or installed (the packs of
      ``strobe-kernels``), compiler, folder of compiled kernels and tuned choices
    """
    devices = {"cpu": "cpu", "gpu": "cuda"}
    engines = {name: _availability(name, device) for name, device in devices.items()}
    return {"version": _core.version, "threads": get_threads(), "engines": engines, "gpu": _core.gpu_report()}


def _availability(engine: Any, device: str) -> str:
    shape = (1, 128, 1, 64)
    try:
        explain(shape, shape, shape, dtype="float16", device=device, engine=engine)
    except (NotImplementedError, RuntimeError, ValueError) as error:
        return f"not available: {error}"
    return "available"


def _float32_like(tensor: Tensor | None, name: str) -> Tensor:
    if tensor is None:
        raise ValueError(f"return_d_{name} is given without {name}: give {name}, too")
    return framework_of(tensor).empty(shape_of(tensor), tensor, "float32")


def _gradients_of_captures(options: Options) -> dict[str, Tensor]:
    captures = captures_of(options)
    if not captures:
        raise ValueError("return_d_captures is given without captures: give captures, too")
    return {name: _float32_like(captures[name], "captures") for name in sorted(differentiable(options))}


def _jax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor | None,
    return_lse: bool,
    return_max_logits: bool,
    options: Any,
) -> Any:
    from strobe import jax

    if out is not None:
        raise ValueError("out is given, but JAX's arrays are never written to: take what the call returns")
    if mask is not None:
        options["mask"] = mask
    return jax.attention(q, k, v, return_lse=return_lse, return_max_logits=return_max_logits, **options)


def _compiled_attention(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, return_lse: bool, return_max_logits: bool, options: Any
) -> Any:
    from strobe.torch import graphs

    check_outputs(out=out)
    graphs.check_gradients(q, k, v, options)
    outputs = outputs_of(framework_of(q), q, v, out, return_lse, return_max_logits, options)
    graphs.attention(q, k, v, outputs, options)
    return results(*outputs)
