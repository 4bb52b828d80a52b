# SPDX-License-Identifier: Apache-2.0
"""Attention on any framework's tensors, without gradients."""

import os
import sys
from typing import Any, Unpack

from strobe import _arrays, _core
from strobe._options import Options, Tensor

Shape = tuple[int, ...]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
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

    Options: see ``strobe.Options``. On a GPU the call returns when the launch is queued. With dropout a seed must be
    given, but for tensors of PyTorch: for those the call draws one from PyTorch's generator.

    Raises ValueError for arguments that contradict each other or this description, TypeError for arguments that are not
    tensors or unknown options, NotImplementedError for calls that no engine of this build supports, MemoryError, and
    RuntimeError for errors of the driver. The outputs are then untouched.

    Source: Dao et al., "FlashAttention" (2022), algorithm 1; Dao, "FlashAttention-2" (2023), algorithm 1.
    """
    framework = _arrays.framework_of(q)
    if framework == "jax":
        return _jax_attention(q, k, v, out, return_lse, return_max_logits, options)
    if framework == "torch":
        _reject_gradients(q, k, v, options)
        q, k, v = _arrays.without_negative_bit(q, k, v)
        if options.get("dropout"):
            options = _with_random_state(q, options)
    elif framework == "cupy" and options.get("stream") is None:
        options["stream"] = _arrays.cupy_stream()
    if out is None:
        return run(q, k, v, None, return_lse, return_max_logits, options)
    _arrays.check_outputs(out=out)
    result = run(q, k, v, out, return_lse, return_max_logits, options)
    _arrays.mark_written(out)
    return result


def run(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, return_lse: bool, return_max_logits: bool, options: Any
) -> Any:
    """The call on tensors whose frameworks have nothing left to say."""
    if "q_descale" in options:
        out = _eight_bit_output(q, v, out, options)
    if out is None:
        out = _arrays.empty_output(q, v)
    lse = _arrays.empty(_arrays.lse_shape(q), q, "float32") if return_lse else None
    max_logits = None
    if return_max_logits:
        max_logits = _arrays.empty(_arrays.max_logits_shape(q, options.get("cu_seqlens_q")), q, "float32")
    _core.forward(q, k, v, out, lse, max_logits, **options)
    if max_logits is None:
        return out if lse is None else (out, lse)
    return tuple(result for result in (out, lse, max_logits) if result is not None)


def _eight_bit_output(q: Tensor, v: Tensor, out: Tensor | None, options: Any) -> Tensor:
    """``out``, or an array of options["out_dtype"], which is taken out of them; the call looks at out itself."""
    dtype = options.pop("out_dtype", None)
    if out is not None or str(getattr(q, "dtype", "")) not in _arrays.EIGHT_BIT:
        return out
    if dtype is None:
        raise ValueError(f"q is {_arrays.dtype_name(q.dtype)}: give out, or out_dtype")
    return _arrays.empty(_arrays.eight_bit_output_shape(q, v), q, _arrays.dtype_name(dtype))


def attention_backward(
    d_o: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    *,
    d_lse: Tensor | None = None,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    return_d_bias: bool = False,
    return_d_sink: bool = False,
    **options: Unpack[Options],
) -> tuple[Tensor, ...]:
    """(dq, dk, dv), the gradients of a loss whose gradient with respect to attention's output is ``d_o``.

    q, k, v, o, lse and the options, a seed of dropout among them, are the forward's; d_o has o's shape and dtype;
    ``d_lse``, in lse's shape, is the gradient that comes in through lse. The gradients have their tensor's shape and
    dtype, and are written to ``dq``, ``dk`` and ``dv`` where those are given. With ``return_d_bias`` and
    ``return_d_sink`` the tuple goes on with the gradients of bias and sink, in their shapes, float32. Raises as
    ``attention`` does.

    Source: Dao et al., "FlashAttention" (2022), algorithm 4; Dao, "FlashAttention-2" (2023), algorithm 2.
    """
    _arrays.check_outputs(dq=dq, dk=dk, dv=dv)
    dq, dk, dv = (
        _arrays.empty(_arrays.shape_of(like), like) if given is None else given
        for given, like in ((dq, q), (dk, k), (dv, v))
    )
    d_bias = _float32_like(options.get("bias"), "bias") if return_d_bias else None
    d_sink = _float32_like(options.get("sink"), "sink") if return_d_sink else None
    allocate = _arrays.workspace_allocator(q, options.get("stream"))
    if options.get("stream") is None and _arrays.framework_of(q) == "cupy":
        options["stream"] = _arrays.cupy_stream()
    _core.backward(d_o, q, k, v, o, lse, d_lse, dq, dk, dv, d_bias, d_sink, allocate, **options)
    _arrays.mark_written(dq, dk, dv)
    return tuple(gradient for gradient in (dq, dk, dv, d_bias, d_sink) if gradient is not None)


def explain(
    q: Tensor | Shape,
    k: Tensor | Shape,
    v: Tensor | Shape,
    *,
    backward: bool = False,
    dtype: str = "float32",
    device: str = "cpu",
    **options: Unpack[Options],
) -> str:
    """Which engine and tiles a call would run on and why, in a few lines of text.

    q, k and v are tensors, or their shapes as tuples; those are of ``dtype`` on ``device``, "cpu" or "cuda:0". Raises
    what the call would raise.
    """
    query, key, value = (tensor_shape(x, dtype, device) if isinstance(x, tuple) else x for x in (q, k, v))
    if options.get("out_dtype") is not None:
        options["out_dtype"] = _arrays.dtype_name(options["out_dtype"])
    return _core.explain(query, key, value, backward, **options)


def tensor_shape(shape: tuple[int, ...], dtype: str, device: str) -> _core.TensorShape:
    """What a plan needs of a tensor: ``dtype`` as "float16", ``device`` as "cpu", "cuda" or "cuda:1"."""
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise ValueError(f'device is "{device}": it must be cpu, cuda or cuda:INDEX')
    return _core.TensorShape(list(shape), dtype, kind == "cuda", int(index or 0))


def info() -> dict[str, Any]:
    """This build and this machine: {"version": .., "threads": .., "engines": {name: "available" or why not}}."""
    devices = {"cpu": "cpu", "gpu": "cuda"}
    engines = {name: _availability(name, device) for name, device in devices.items()}
    return {"version": _core.version, "threads": os.cpu_count(), "engines": engines}


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
    return _arrays.empty(_arrays.shape_of(tensor), tensor, "float32")


def _reject_gradients(q: Tensor, k: Tensor, v: Tensor, options: Any) -> None:
    """PyTorch's tape is strobe.torch's; a gradient that went missing here would be a wrong one."""
    if not sys.modules["torch"].is_grad_enabled():
        return
    for name, tensor in (("q", q), ("k", k), ("v", v), ("bias", options.get("bias")), ("sink", options.get("sink"))):
        if getattr(tensor, "requires_grad", False):
            raise ValueError(
                f"{name} requires a gradient, which strobe.attention does not record: call strobe.torch.attention"
            )


def _with_random_state(q: Tensor, options: Any) -> Any:
    """PyTorch's rule for dropout without a seed: the call draws one from the generator of q's device."""
    from strobe.torch import ops

    if ops.is_seeded(options):
        return options
    return options | {"random_state": ops.draw_random(q).view(sys.modules["torch"].int32)}


def _jax_attention(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor | None, return_lse: bool, return_max_logits: bool, options: Any
) -> Any:
    from strobe import jax

    if out is not None:
        raise ValueError("out is given, but JAX's arrays are never written to: take what the call returns")
    return jax.attention(q, k, v, return_lse=return_lse, return_max_logits=return_max_logits, **options)
