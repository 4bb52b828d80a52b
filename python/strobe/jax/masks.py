# SPDX-License-Identifier: Apache-2.0
"""Masks and segment ids as a bias; keys that a mask hides from every query reach no result, whatever they hold."""

from functools import partial, reduce
from typing import Any

import jax.numpy as jnp
from jax import Array

from strobe._expressions import keep_hidden
from strobe._mask_argument import MASK_AXES
from strobe.jax.call import Tensors

_SEGMENTS = ("q_segment_ids", "kv_segment_ids")
MASKS = ("mask", *_SEGMENTS)
_MEANING = {
    2: "[batch, seqlen_k]",
    3: "[batch, seqlen_q, seqlen_k]",
    4: "[batch, heads_q, seqlen_q, seqlen_k]",
}


def check_masks(q: Array, k: Array, options: dict[str, Any]) -> None:
    """ValueError or TypeError for masks that are not of the call's shape; the values are not looked at."""
    given = [name for name in MASKS if name in options]
    if given and (q.ndim != 4 or k.ndim != 4):
        raise ValueError(
            f"{given[0]} is given with packed sequences: cu_seqlens hold what a sequence sees, or give batches"
        )
    if "mask" in options:
        _check_mask(options["mask"], (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))
    missing = [name for name in _SEGMENTS if name not in options]
    if len(missing) == 1:
        (other,) = set(_SEGMENTS) - set(missing)
        raise ValueError(f"{other} is given without {missing[0]}: give both")
    for name, x in zip(_SEGMENTS, (q, k), strict=True):
        if name in options:
            _check_segments(name, options[name], x.shape[:2])


def _check_mask(mask: Any, shape: tuple[Any, ...]) -> None:
    if not (mask.dtype == jnp.bool_ or jnp.issubdtype(mask.dtype, jnp.floating)):
        raise TypeError(f"mask is {mask.dtype}: it must be bool, True for a visible key, or floating point")
    wanted = tuple(shape[axis] for axis in MASK_AXES.get(mask.ndim, ()))
    if mask.ndim not in MASK_AXES or any(n not in (1, full) for n, full in zip(mask.shape, wanted, strict=True)):
        kinds = ", ".join(_MEANING[rank] for rank in MASK_AXES)
        raise ValueError(
            f"mask has shape {list(mask.shape)}: it must be {kinds} with axes of extent 1 or of the call, "
            f"[batch, heads_q, seqlen_q, seqlen_k] {list(shape)}"
        )


def _check_segments(name: str, segments: Any, shape: tuple[Any, ...]) -> None:
    if segments.dtype != jnp.int32:
        raise TypeError(f"{name} is {segments.dtype}: it must be int32")
    if segments.shape != shape:
        raise ValueError(f"{name} has shape {list(segments.shape)}: it must be [batch, seqlen], {list(shape)}")


def masked(tensors: Tensors, options: dict[str, Any]) -> Tensors:
    """The call's tensors with the masks as their bias, and zeros for keys that the masks hide from all queries.

    A bias takes away the weight of a key alone, and 0 times NaN is NaN. Keys that are zeros here get no gradient.
    """
    masks = _masks(options)
    if not masks:
        return tensors
    keep_hidden(options)
    q, k = tensors["q"], tensors["k"]
    bias: Any = reduce(partial(_with_mask, dtype=q.dtype), masks, tensors.get("bias"))
    bias = jnp.broadcast_to(bias, (*bias.shape[:3], k.shape[1]))
    seen = reduce(jnp.logical_and, map(_visible, masks)).any(2)
    if seen.shape[1] != 1:
        seen = seen.reshape(seen.shape[0], k.shape[2], -1, seen.shape[2]).any(2)
    seen = jnp.swapaxes(seen, 1, 2)[..., None]  # [batch, seqlen_k, heads_kv, 1]
    keys = {name: jnp.where(seen, tensors[name], jnp.zeros_like(tensors[name])) for name in ("k", "v")}
    return tensors | keys | {"bias": bias}


def _masks(options: dict[str, Any]) -> list[Array]:
    """Each with the four axes of a bias."""
    masks = []
    if "mask" in options:
        mask = jnp.asarray(options["mask"])
        masks.append(jnp.expand_dims(mask, tuple(set(range(4)) - set(MASK_AXES[mask.ndim]))))
    if "q_segment_ids" in options:
        rows, keys = (jnp.asarray(options[name]) for name in _SEGMENTS)
        masks.append((rows[:, :, None] == keys[:, None, :])[:, None])
    return masks


def _visible(mask: Array) -> Array:
    return mask if mask.dtype == jnp.bool_ else mask != -jnp.inf


def _with_mask(bias: Array | None, mask: Array, dtype: Any) -> Array:
    """The sum of both, of float32 or q's dtype; what a bool mask adds, 0 or -inf, any dtype has exactly."""
    if mask.dtype == jnp.bool_:
        visible = jnp.zeros((), dtype) if bias is None else bias
        return jnp.where(mask, visible, jnp.asarray(-jnp.inf, visible.dtype))
    if bias is None:
        return mask if mask.dtype == dtype else mask.astype(jnp.float32)
    mask, bias = mask.astype(jnp.float32), bias.astype(jnp.float32)
    return jnp.where(mask == -jnp.inf, mask, bias + mask)
