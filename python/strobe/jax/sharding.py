# SPDX-License-Identifier: Apache-2.0
"""Calls of arrays that lie on several devices: each device computes its sequences and heads, without communication.

Where the compiler places arrays (mesh axes of type Auto), a rule of Shardy's tells it what a call allows. Where arrays
have their place in their type (Explicit), the call is a jax.shard_map.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
from jax import Array
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from strobe.jax.axes import CallAxes
from strobe.jax.call import Call, axes_of, compute, has_texts, result_types

Names = tuple[str, ...]
"""Axes of a mesh."""
Run = Callable[..., Sequence[Array]]
"""From operands to results."""


class Split(NamedTuple):
    """The axes of a mesh that split each axis of a call."""

    batch: Names = ()
    heads_kv: Names = ()
    group: Names = ()
    """They split the query heads of one head of keys."""

    def spec(self, letters: str) -> PartitionSpec:
        """Where a tensor with these axes (axes.py) lies."""
        names = {"b": self.batch, "h": self.heads_kv + self.group, "k": self.heads_kv}
        return PartitionSpec(*(names.get(letter) or None for letter in letters))

    def absent(self, letters: str) -> Names:
        """What splits the call and not a tensor with these axes, of which each device has a part of the sum."""
        present = {name for entry in self.spec(letters) if entry is not None for name in entry}
        return tuple(name for names in self for name in names if name not in present)


def split_of(axes: CallAxes, mesh: Any, letters: Mapping[str, str], specs: Mapping[str, Any]) -> Split:
    """How a call is split whose q, k and v lie in ``mesh`` as ``specs`` say. What it does not keep is gathered.

    A head of keys is on one device with all queries that read it, but where it is the only one.
    """
    places: dict[str, list[Names]] = {"b": [], "h": [], "k": []}
    for name in ("q", "k", "v"):
        for letter, entry in zip(letters[name], specs[name], strict=False):
            names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
            if letter in places and names:
                places[letter].append(names)
    batch = next(iter(places["b"]), ())
    heads = tuple(name for name in next(iter(places["h"] + places["k"]), ()) if name not in batch)

    def divides(names: Names, extent: int | None) -> bool:
        return extent is not None and extent % prod(mesh.shape[name] for name in names) == 0

    batch = batch if divides(batch, axes.batch) else ()
    if divides(heads, axes.heads_kv):
        return Split(batch, heads)
    if axes.heads_kv == 1 and divides(heads, axes.heads_q):
        return Split(batch, (), heads)
    return Split(batch)


def _on_shard(call: Call, split: Split, whole: Mapping[str, Any], run: Run) -> Run:
    """What one device computes of a call whose whole operands have these types, where ``run`` is the call."""
    axes = axes_of(call, whole)
    absent = [split.absent(axes.of(name, shape)) for name, (shape, _) in result_types(call, whole).items()]

    def total(part: Array, names: Names) -> Array:
        return jax.lax.psum(part.astype("float32"), names).astype(part.dtype) if names else part

    return lambda *operands: list(map(total, run(*operands), absent))


def _partition(call: Call, mesh: Any, operands: Sequence[Any], results: Sequence[Any]) -> Any:
    whole = dict(zip(call.operands, operands, strict=True))
    axes = axes_of(call, whole)
    letters = {name: axes.of(name, x.shape) for name, x in (*whole.items(), *zip(call.results, results, strict=True))}
    split = split_of(axes, mesh, letters, {name: x.sharding.spec for name, x in whole.items()})

    def places(names: Names) -> tuple[NamedSharding, ...]:
        return tuple(NamedSharding(mesh, split.spec(letters[name])) for name in names)

    return mesh, _on_shard(call, split, whole, partial(compute, call)), places(call.results), places(call.operands)


def _rule(call: Call, mesh: Any, operands: Sequence[Any], results: Sequence[Any]) -> Any:
    """In Shardy's notation: sequences and heads may be split in all tensors that have them, no other axis may."""
    named = dict(zip(call.operands, operands, strict=True))
    axes = axes_of(call, named)
    group = axes.heads_q // axes.heads_kv
    whole: list[str] = []
    heads = "g" if axes.heads_kv == 1 else "k" if group == 1 else "(k g)"
    if any(axes.heads_kv % size != 0 for size in mesh.shape.values()) and heads == "(k g)":
        heads = "h"  # an axis of the mesh would be divided among k and g, which no PartitionSpec says

    def factors(name: str, shape: Sequence[int]) -> str:
        text = []
        for letter in axes.of(name, tuple(shape)):
            if letter == "." or (letter == "k" and axes.heads_kv == 1):
                whole.append(f"w{len(whole)}")
                text.append(whole[-1])
            else:
                text.append(heads if letter == "h" else letter)
        return " ".join(text)

    sides = (
        ", ".join(factors(name, x.shape) for name, x in zip(names, types, strict=True))
        for names, types in ((call.operands, operands), (call.results, results))
    )
    sizes = {"g": group} if heads == "(k g)" else {}
    return " -> ".join(sides), {"need_replication_factors": tuple(whole), **sizes}


_partitioned = custom_partitioning(compute, static_argnums=(0,))
_partitioned.def_partition(_partition, sharding_rule=_rule)


def is_whole(call: Call) -> bool:
    """Whether one device must compute all: a mask of dropout depends on the numbers of sequences and heads in it, and
    texts may read these numbers."""
    return call.target == "quantize" or "random" in call.operands or has_texts(call)


def lowered(call: Call, module: Any) -> Run:
    """What the call becomes in a program; ``module`` is the context in which JAX lowers it.

    NotImplementedError where jax.export is about to write a program whose arrays the compiler would place.
    """
    context = module.axis_context
    devices = getattr(context, "num_devices", 1)  # of none where the program says what each device computes
    if module.lowering_parameters.for_export and devices > 1:
        raise NotImplementedError(
            f"jax.export of attention on {devices} devices, on which the compiler would place it: call it in "
            "jax.shard_map, or on arrays of a mesh with axes of type Explicit"
        )
    # In a shard_map of some axes of a mesh, custom_partitioning knows no places: arrays are gathered along the others.
    manual = bool(getattr(context, "manual_axes", None))
    return partial(compute if is_whole(call) or manual else _partitioned, call)


def run_by_type(call: Call, run: Run, *operands: Array) -> Sequence[Array]:
    """The call, which ``run`` is, of operands whose types may say on which devices they lie (axes of type Explicit)."""
    mesh = next((mesh for x in operands if not (mesh := jax.typeof(x).sharding.mesh).empty), None)
    kinds = {} if mesh is None else dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    explicit = {name for name, kind in kinds.items() if kind is AxisType.Explicit}
    if not explicit or call.target == "quantize":
        return run(*operands)
    whole = dict(zip(call.operands, operands, strict=True))
    axes = axes_of(call, whole)
    letters = {name: axes.of(name, x.shape) for name, x in whole.items()}
    specs = {name: jax.typeof(x).sharding.spec for name, x in whole.items()}
    split = Split() if is_whole(call) else split_of(axes, mesh, letters, specs)
    places = tuple(split.spec(letters[name]) for name in whole)
    placed = [
        x if tuple(spec) == tuple(place) else jax.sharding.reshard(x, NamedSharding(mesh, place))
        for x, spec, place in zip(operands, specs.values(), places, strict=True)
    ]
    if split == Split():
        return run(*placed)
    results = [split.spec(axes.of(name, shape)) for name, (shape, _) in result_types(call, whole).items()]
    shard = _on_shard(call, split, whole, run)
    return jax.shard_map(shard, mesh=mesh, in_specs=places, out_specs=results, axis_names=explicit)(*placed)
