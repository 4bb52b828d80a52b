# SPDX-License-Identifier: Apache-2.0
"""The argument ``mask`` of attention: as used lengths where it hides padding alone and can be read, else as a bias."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from strobe._expressions import keep_hidden
from strobe._frameworks import Framework, framework_of
from strobe._option_list import OPTIONS
from strobe._options import Tensor
from strobe._shapes import EIGHT_BIT, Shape, dtype_name, shape_of, tensor_shape, wrong_type

MASK_AXES = {2: (0, 3), 3: (0, 2, 3), 4: (0, 1, 2, 3)}  # of [batch, heads_q, seqlen_q, seqlen_k], by a mask's rank
_ACCEPTED = "[batch, seqlen_k], [batch, seqlen_q, seqlen_k] or [batch, heads_q, seqlen_q, seqlen_k]"
_INSTEAD = {
    "cu_seqlens_q": "give q, k and v with a batch axis, or pack the visible tokens alone",
    "cu_seqlens_k": "give q, k and v with a batch axis, or pack the visible tokens alone",
    "page_table": "give seqused_k and leftpad_k for the keys of a cache, tree_mask for draft tokens",
    "leftpad_k": "give seqused_k for where the keys end, tree_mask for draft tokens",
    "cache_batch_idx": "give seqused_k and leftpad_k for the keys of a cache, tree_mask for draft tokens",
}
_BY_DIAGONAL = ("causal", "window", "chunk", "alibi_slopes")  # options that look at where queries and keys lie
_BY_LENGTH = ("log_length", "score", "mask_text")  # that count or number hidden keys as well
_OFFSETS = ("offset_q", "offset_k")  # which place them, whatever the lengths are
_BY_KEY = ("chunk", "dropout", "bias", "block_mask", "tree_mask", "seqused_k")  # that count keys from the first one


def apply_mask(
    framework: Framework,
    mask: Tensor,
    qkv: tuple[Tensor, Tensor, Tensor],
    options: Any,
    *,
    read: bool,
    has_backward: bool,
) -> tuple[Tensor, Tensor]:
    """k and v of a call in which ``options``, to which this adds, say what the mask hides.

    ``read``: the mask's values may be looked at. ``has_backward``: the options are also those of a backward.
    """
    q, k, v = qkv
    check_types(framework, q, {"mask": mask, "k": k, "v": v, "bias": options.get("bias")})
    given = checked_mask(mask, shape_of(q), shape_of(k), options)
    if given is None:
        return k, v
    keep_hidden(options, look=not framework.is_compiling())
    is_bool = dtype_name(given.dtype) == "bool"
    if read and is_bool:
        lengths = used_lengths(np.asarray(given), shape_of(q), shape_of(k), options, has_backward)
        if lengths is not None:
            options |= {name: x if isinstance(x, str) else framework.lengths(x) for name, x in lengths.items()}
            return k, v
    if q.shape[0] == k.shape[0] and shape_of(k)[:3] == shape_of(v)[:3]:  # else the call rejects them
        k, v = without_hidden_keys(framework, given if is_bool else given != -np.inf, k, v, read)
    bias = _as_bias(framework, given, q, k, options.get("bias"))
    if bias is not None:
        options["bias"] = bias
    return k, v


def plan_mask(mask: Any, qk: tuple[Shape, Shape], device: str, options: dict[str, Any], *, has_backward: bool) -> None:
    """The same for a call that is only planned. The mask is a tensor, or a shape, of which nothing else is known."""
    if isinstance(mask, tuple):
        mask = np.broadcast_to(np.float32(0), mask)
    elif framework_of(mask).name == "jax":
        mask = np.asarray(mask)
    elif not framework_of(mask).has_arithmetic:
        raise wrong_type("mask", mask, "a tensor, or its shape")
    _check_dtype(mask)
    q, k = qk
    mask = checked_mask(mask, q, k, options)
    if mask is None:
        return
    keep_hidden(options)
    if device == "cpu" and framework_of(mask).can_read(mask) and dtype_name(mask.dtype) == "bool":
        lengths = used_lengths(np.asarray(mask), q, k, options, has_backward)
        if lengths is not None:
            options |= lengths
            return
    bias = options.get("bias")
    others = (1, 1) if bias is None else shape_of(bias)[:2]
    if len(others) == 2:  # the call rejects any other bias
        shared = (n if other == 1 else other for n, other in zip(mask.shape, others, strict=False))
        options["bias"] = tensor_shape((*shared, q[1], k[1]), "float32", device)


def summed_to(gradient: Any, shape: Shape) -> Any:
    """The gradient of a bias of this shape, which a mask that is not shared as it is has made larger."""
    for axis in (0, 1):
        if shape[axis] != gradient.shape[axis]:
            gradient = gradient.sum(axis, keepdims=True)
    return gradient


def check_types(framework: Framework, q: Any, others: dict[str, Any]) -> None:
    if not framework.has_arithmetic:
        raise TypeError(
            f"mask is given, but q is of type {type(q).__name__}: give bias, or tensors of NumPy or PyTorch"
        )
    for name, tensor in others.items():
        if name == "bias" and tensor is None:
            continue
        if framework_of(tensor).name != framework.name:
            raise wrong_type(name, tensor, "a tensor of q's framework, since mask is given")
        if isinstance(tensor, np.ma.MaskedArray):
            raise TypeError(f"{name} is a masked array, whose mask no call reads: give {name}.filled(...), or its data")
    _check_dtype(others["mask"])
    for name, tensor in (("q", q), ("k", others["k"])):
        dtype = str(tensor.dtype)
        if dtype in EIGHT_BIT:
            raise NotImplementedError(
                f"mask is given, but {name} is {dtype.removeprefix('torch.')}: give seqused_k, causal or window"
            )
    device = getattr(others["mask"], "device", None)
    if device != getattr(q, "device", None):
        raise ValueError(f"mask is on {device} and q on {q.device}: all tensors must be on one device")


def _check_dtype(mask: Any) -> None:
    dtype = dtype_name(mask.dtype)
    if dtype not in ("bool", "float32", "float16", "bfloat16", "float64"):
        raise TypeError(
            f"mask is {dtype}: it must be bool, True where a key is visible, or floating point, to be added"
        )


def checked_mask(mask: Any, q: Shape, k: Shape, options: Mapping[str, Any]) -> Any:
    """The mask as [batch, heads_q, seqlen_q, seqlen_k], each extent 1 or the call's; None where the call is wrong."""
    for name, instead in _INSTEAD.items():
        if options.get(name) is not None:
            raise ValueError(f"mask is given with {name}: {instead}")
    if len(q) != 4 or len(k) != 4:
        return None
    wanted = (q[0], q[2], q[1], k[1])
    axes = MASK_AXES.get(len(mask.shape), ())
    if not axes or any(n not in (1, wanted[axis]) for n, axis in zip(mask.shape, axes, strict=True)):
        hint = "; give mask[None] for one of [seqlen_q, seqlen_k]" if tuple(mask.shape) == wanted[2:] else ""
        raise ValueError(
            f"mask has shape {list(mask.shape)}: it must be {_ACCEPTED}, each extent 1 or that of {list(wanted)}{hint}"
        )
    whole = [1, 1, 1, 1]
    for n, axis in zip(mask.shape, axes, strict=True):
        whole[axis] = n
    return mask.reshape(whole)


def used_lengths(
    mask: np.ndarray, q: Shape, k: Shape, options: Mapping[str, Any], has_backward: bool
) -> dict[str, Any] | None:
    """Options that show the same keys as a bool mask, where it shows each sequence a run of keys; None where not.

    Used lengths move the diagonal of masks that are aligned to the last key, and left padding the first key, from which
    other options count.
    """
    if mask.all() or k[1] == 0:
        return {}
    if mask.shape[1:3] != (1, 1) or any(_is_given(name, options) for name in _BY_LENGTH):
        return None
    seen = np.broadcast_to(mask[:, 0, 0], (q[0], k[1]))
    counts = seen.sum(1)
    begin = np.where(counts > 0, seen.argmax(1), 0).astype(np.int32)
    end = np.where(counts > 0, k[1] - seen[:, ::-1].argmax(1), 0).astype(np.int32)
    if (end - begin != counts).any():
        return None
    given = {name for name in (*_BY_DIAGONAL, *_BY_KEY, *_OFFSETS, "seqused_q") if _is_given(name, options)}
    causal = options.get("causal")
    if not begin.any():
        if given & {"seqused_k", "tree_mask"}:
            return None
        if given & set(_OFFSETS) or not given & set(_BY_DIAGONAL) or _is_text(causal, "top_left"):
            return {"seqused_k": end}
        square = q[1] == k[1] and "seqused_q" not in given  # both alignments are the same diagonal
        aligned_right = (isinstance(causal, (bool, np.bool_)) and causal) or _is_text(causal, "bottom_right")
        return {"seqused_k": end, "causal": "top_left"} if square and aligned_right else None
    if has_backward or given & {*_BY_KEY, *_OFFSETS} or _is_text(causal, "top_left"):
        return None
    if ((end == k[1]) | (counts == 0)).all():
        return {"leftpad_k": np.where(counts > 0, begin, k[1]).astype(np.int32)}
    return None if given & set(_BY_DIAGONAL) else {"leftpad_k": begin, "seqused_k": end}


def _is_given(name: str, options: Mapping[str, Any]) -> bool:
    value, default = options.get(name), OPTIONS[name].default
    return value is not None and not (type(value) is type(default) and value == default)


def _is_text(value: Any, text: str) -> bool:
    return isinstance(value, str) and value == text


def without_hidden_keys(framework: Framework, visible: Any, k: Any, v: Any, read: bool) -> tuple[Any, Any]:
    """k and v with zeros, which get no gradient, in the place of keys that no query of their head sees.

    A bias takes their weight alone: 0 times NaN is NaN, and NaN minus infinity as well.
    """
    seen = visible.any(2)
    heads, heads_kv = seen.shape[1], k.shape[2]
    if heads not in (1, heads_kv):
        if heads_kv == 0 or heads % heads_kv != 0:
            return k, v  # which the call rejects
        seen = seen.reshape(seen.shape[0], heads_kv, heads // heads_kv, seen.shape[2]).any(2)
    if read and seen.all():
        return k, v
    seen = seen.swapaxes(1, 2)[..., None]
    return framework.select(seen, k, 0), framework.select(seen, v, 0)


def _as_bias(framework: Framework, mask: Any, q: Any, k: Any, bias: Any) -> Any:
    """The mask, and the bias that is given beside it, as one; None where that bias is wrong, as the call will say."""
    seqlens = (q.shape[1], k.shape[1])
    dtypes = ("float32", dtype_name(q.dtype))
    if bias is not None:
        shape = shape_of(bias)
        fits = len(shape) == 4 and shape[0] in (1, q.shape[0]) and shape[1] in (1, q.shape[2]) and shape[2:] == seqlens
        if not fits or dtype_name(bias.dtype) not in dtypes:
            return None
    if bias is not None:
        if dtype_name(mask.dtype) == "bool":
            mask = framework.select(mask, bias, -np.inf)
        else:
            mask = framework.cast(bias, "float32") + framework.cast(mask, "float32")
    return as_bias(framework, mask, seqlens, dtypes)


def as_bias(framework: Framework, mask: Any, seqlens: tuple[int, int], dtypes: tuple[str, ...]) -> Any:
    """A mask [.., seqlen_q or 1, seqlen_k or 1] as a bias [.., seqlen_q, seqlen_k] of one of the dtypes, or float32."""
    if dtype_name(mask.dtype) == "bool":
        visible = framework.empty(mask.shape, mask, "float32")
        visible[...] = 0
        mask = framework.select(mask, visible, -np.inf)
    elif dtype_name(mask.dtype) not in dtypes:
        mask = framework.cast(mask, "float32")
    mask = framework.dense(framework.expand(mask, (*mask.shape[:-1], seqlens[1])))
    return framework.expand(mask, (*mask.shape[:-2], *seqlens))
