# SPDX-License-Identifier: Apache-2.0
"""Attention of sequences that the devices of a mesh share, inside jax.shard_map, by JAX's own collectives.

from strobe.jax import context_parallel

@jax.shard_map(mesh=mesh, in_specs=P(None, "context"), out_specs=P(None, "context"))
def attend(q, k, v):                                   # [batch, rows, heads, head_dim] of one device
    return context_parallel.attention(q, k, v, "context", causal=True)

q, k, v = (context_parallel.arrange(x, devices) for x in (q, k, v))
out = context_parallel.restore(attend(q, k, v), devices)
"""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Array

from strobe._option_list import is_normalized
from strobe.jax import functional

__all__ = ["arrange", "attention", "positions", "restore"]

Layout = Literal["zigzag", "contiguous"]
Scheme = Literal["gather", "ring"]

_REFUSED = (
    *("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "max_seqlen_q", "max_seqlen_k", "offset_q", "offset_k"),
    *("block_mask", "log_length", "mask", "q_segment_ids", "kv_segment_ids"),
    "score",
    "mask_text",
    "captures",
)


def arrange(x: Array, devices: int, axis: int = 1, *, layout: Layout = "zigzag") -> Array:
    """The array in the order in which equal shards along ``axis`` are what each device has.

    "zigzag": of 2 devices equal slices device r has those of number r and 2 devices - 1 - r, so that all have as much
    work under a causal mask. "contiguous": as it is. ValueError where the extent is no multiple of 2 devices.
    """
    order = _order(x.shape[axis], devices, layout)
    return _ordered(x, order, axis)


def restore(x: Array, devices: int, axis: int = 1, *, layout: Layout = "zigzag") -> Array:
    """The inverse."""
    order = _order(x.shape[axis], devices, layout)
    return _ordered(x, sorted(range(len(order)), key=order.__getitem__), axis)


def positions(axis_name: str, rows: int, *, layout: Layout = "zigzag") -> Array:
    """[rows] int32: the positions of this device's rows, for rotary embeddings. Inside jax.shard_map."""
    runs = _starts(jax.lax.axis_index(axis_name), jax.lax.axis_size(axis_name), rows, layout)
    length = rows // len(runs)
    return jnp.concatenate([start + jnp.arange(length, dtype=jnp.int32) for start in runs])


def attention(
    q: Array,
    k: Array,
    v: Array,
    axis_name: str,
    *,
    scheme: Scheme = "gather",
    layout: Layout = "zigzag",
    return_lse: bool = False,
    **options: Any,
) -> Any:
    """``strobe.jax.attention`` of whole sequences, of which q, k and v have this device's rows; it returns those.

    Called inside jax.shard_map, along whose axis ``axis_name`` the sequences are shared as ``arrange`` says. "gather"
    fetches the keys and values of all devices; "ring" takes those of one device after the other and merges the results
    in float32, in less memory. JAX differentiates both. Options are those of the whole call, with the same dropout
    seed on every device; a bias has this device's rows and all keys, in their own order, and a sink is whole. Parts are
    placed by offset_q and offset_k.

    ValueError for another scheme or layout; NotImplementedError for packed sequences, used lengths, masks, texts,
    block_mask and log_length, and with "ring" for row_invariant.
    """
    if scheme not in ("gather", "ring"):
        raise ValueError(f"scheme is {scheme!r}: it must be gather or ring")
    given = {name: value for name, value in options.items() if value is not None}
    if not is_normalized(given):
        raise NotImplementedError('normalize is "none": parts are merged by their lse; give whole sequences')
    for name in _REFUSED:
        if name in given:
            raise NotImplementedError(f"{name} is given: give it to strobe.jax.attention, with whole sequences")
    if scheme == "ring" and given.get("row_invariant"):
        raise NotImplementedError('row_invariant is given with scheme="ring", which merges: give scheme="gather"')
    parts = _gathered if scheme == "gather" else _ring
    runs = len(_starts(0, 1, q.shape[1], layout))
    results = parts(jnp.split(q, runs, axis=1), k, v, axis_name, layout, given)
    out = jnp.concatenate([o for o, _ in results], axis=1)
    return (out, jnp.concatenate([lse for _, lse in results], axis=2)) if return_lse else out


Results = list[tuple[Array, Array]]


def _gathered(
    q: Sequence[Array], k: Array, v: Array, axis_name: str, layout: Layout, options: dict[str, Any]
) -> Results:
    """Each run of rows over all keys."""
    devices, rows = jax.lax.axis_size(axis_name), k.shape[1]
    starts = _starts(jax.lax.axis_index(axis_name), devices, rows, layout)
    order = _order(devices * rows, devices, layout)
    back = sorted(range(len(order)), key=order.__getitem__)
    keys, values = (_ordered(jax.lax.all_gather(x, axis_name, axis=1, tiled=True), back, 1) for x in (k, v))
    return [
        _part(x, keys, values, start, 0, _of_rows(options, i, x.shape[1]))
        for i, (x, start) in enumerate(zip(q, starts, strict=True))
    ]


def _ring(q: Sequence[Array], k: Array, v: Array, axis_name: str, layout: Layout, options: dict[str, Any]) -> Results:
    """Each run of rows with each run of keys, those of this device first."""
    devices, rank, rows = jax.lax.axis_size(axis_name), jax.lax.axis_index(axis_name), k.shape[1]
    starts = _starts(rank, devices, rows, layout)
    onward = [(device, (device + 1) % devices) for device in range(devices)]
    results: Results = []
    for step in range(devices):
        there = _starts((rank - step) % devices, devices, rows, layout)
        runs = zip(there, jnp.split(k, len(q), axis=1), jnp.split(v, len(q), axis=1), strict=True)
        for j, (begin, keys, values) in enumerate(runs):
            for i, (x, start) in enumerate(zip(q, starts, strict=True)):
                given = _of_rows(options, i, x.shape[1])
                if "bias" in given:
                    given["bias"] = jax.lax.dynamic_slice_in_dim(given["bias"], begin, keys.shape[1], axis=3)
                if step > 0 or j > 0:
                    given.pop("sink", None)
                part = _part(x, keys, values, start, begin, given)
                if step == 0 and j == 0:
                    results.append((part[0].astype(jnp.float32), part[1]))
                else:
                    results[i] = _merged(results[i], part)
        if step + 1 < devices:
            k, v = (jax.lax.ppermute(x, axis_name, onward) for x in (k, v))
    return [(o.astype(v.dtype), lse) for o, lse in results]


def _of_rows(options: dict[str, Any], run: int, rows: int) -> dict[str, Any]:
    """The options of one run of rows."""
    if "bias" not in options:
        return dict(options)
    return options | {"bias": jax.lax.slice_in_dim(options["bias"], run * rows, (run + 1) * rows, axis=2)}


def _part(q: Array, k: Array, v: Array, start: Any, begin: Any, options: dict[str, Any]) -> tuple[Array, Array]:
    """(out, lse) of queries from position ``start`` on over keys from ``begin`` on."""
    places = {name: jnp.full(q.shape[:1], x, jnp.int32) for name, x in (("offset_q", start), ("offset_k", begin))}
    return functional.attention(q, k, v, return_lse=True, **places, **options)


def _merged(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    """Of parts of the keys, the first of them in float32. Where neither saw a key, o is 0 and lse -inf."""
    largest = jax.lax.stop_gradient(jnp.maximum(a[1], b[1]))
    largest = jnp.where(jnp.isfinite(largest), largest, 0)
    weights = [jnp.exp(lse - largest) for _, lse in (a, b)]
    total = weights[0] + weights[1]
    safe = jnp.where(total > 0, total, 1)
    shares = [jnp.swapaxes(weight / safe, 1, 2)[..., None] for weight in weights]
    o = a[0] * shares[0] + b[0].astype(jnp.float32) * shares[1]
    return o, jnp.where(total > 0, jnp.log(safe) + largest, -jnp.inf)


def _starts(rank: Any, devices: int, rows: int, layout: Layout) -> list[Any]:
    """The positions at which the runs of a device's rows begin."""
    if layout == "contiguous":
        return [rank * rows]
    if layout != "zigzag":
        raise ValueError(f"layout is {layout!r}: it must be zigzag or contiguous")
    if rows % 2:
        raise ValueError(f"a device has {rows} rows: of a zigzag they must be even")
    return [rank * (rows // 2), (2 * devices - 1 - rank) * (rows // 2)]


def _order(extent: int, devices: int, layout: Layout) -> list[int]:
    """Which slice of the whole each slice of the arranged array is."""
    slices = devices if layout == "contiguous" else 2 * devices
    if extent % slices:
        raise ValueError(f"there are {extent} rows: their number must be a multiple of {slices}")
    if layout == "contiguous":
        return list(range(devices))
    _starts(0, devices, extent // devices, layout)
    return [slice_ for rank in range(devices) for slice_ in (rank, 2 * devices - 1 - rank)]


def _ordered(x: Array, order: Sequence[int], axis: int) -> Array:
    """Equal slices along an axis in another order."""
    if list(order) == list(range(len(order))):
        return x
    axis %= x.ndim
    slices = x.reshape(*x.shape[:axis], len(order), -1, *x.shape[axis + 1 :])
    return jnp.take(slices, jnp.asarray(order), axis=axis).reshape(x.shape)
