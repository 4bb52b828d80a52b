# SPDX-License-Identifier: Apache-2.0
"""Q, K and V in 8 bits."""

import sys
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from strobe import _arrays, _core
from strobe._options import Tensor, TensorOptions

Unit = Literal["tensor", "head", "block", "group", "row"]

_ROWS = {"tensor": 0, "head": 0, "block": 128, "group": 32, "row": 1}  # that share a scale; 0: all of a head
_UNITS = tuple(_ROWS)  # in the order of strobe::ScaleUnit
_ELEMENTS = ("int8", "float8_e4m3fn")
_VALUE_KEYS = 32  # to a multiple of which V's keys are padded


@dataclass(frozen=True)
class Quantized:
    """8-bit tensors and what else ``strobe.attention`` needs: attention(x.q, x.k, x.v, **x.options)."""

    q: Tensor
    """[batch, seqlen_q, heads_q, head_dim], or packed [total_q, heads_q, head_dim]; int8 or float8_e4m3fn."""
    k: Tensor
    """[batch, seqlen_k, heads_kv, head_dim], or [total_k, heads_kv, head_dim]."""
    v: Tensor
    """[batch, heads_kv, head_dim_v, seqlen_k rounded up to 32]: transposed, keys in the order of strobe/quantize.h.
    Packed [heads_kv, head_dim_v, 32 * (total_k // 32 + batch)], sequence b from 32 * (cu_seqlens_k[b] // 32 + b) on."""
    q_descale: Tensor
    """[batch, heads_q, units of the queries] float32; [1, 1, 1] for one scale per tensor. No rows are one unit. Of
    packed sequences the units of the longest, counted from the start of each."""
    k_descale: Tensor
    v_descale: Tensor
    q_shift: Tensor | None
    """[batch, heads_q, seqlen_q] float32: products of the queries and the keys' mean; None without center_k. Packed:
    max_seqlen_q positions."""
    v_rotation: int | None
    """The seed of the rotation of V's rows; None if they are not rotated."""
    out_dtype: str
    """The dtype of the tensors that these were: "float32", "float16" or "bfloat16"."""
    cu_seqlens_q: Tensor | None = None
    """As they were given, with the bounds."""
    cu_seqlens_k: Tensor | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None

    @property
    def options(self) -> TensorOptions:
        """The options of the call."""
        options = TensorOptions(
            q_descale=self.q_descale, k_descale=self.k_descale, v_descale=self.v_descale, out_dtype=self.out_dtype
        )
        if self.q_shift is not None:
            options["q_shift"] = self.q_shift
        if self.v_rotation is not None:
            options["v_rotation"] = self.v_rotation
        if self.cu_seqlens_q is not None:
            options["cu_seqlens_q"] = self.cu_seqlens_q
        if self.cu_seqlens_k is not None:
            options["cu_seqlens_k"] = self.cu_seqlens_k
        if self.max_seqlen_q is not None:
            options["max_seqlen_q"] = self.max_seqlen_q
        if self.max_seqlen_k is not None:
            options["max_seqlen_k"] = self.max_seqlen_k
        return options


class Plan(NamedTuple):
    """What a quantisation writes, and how."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    settings: dict[str, int]
    out_dtype: str
    cu_seqlens: dict[str, Any]  # those that are given
    max_seqlens: dict[str, int]

    def result(self, outputs: dict[str, Any]) -> Quantized:
        seed = self.settings["seed"]
        return Quantized(
            q=outputs["q8"],
            k=outputs["k8"],
            v=outputs["v8"],
            q_descale=outputs["q_descale"],
            k_descale=outputs["k_descale"],
            v_descale=outputs["v_descale"],
            q_shift=outputs.get("q_shift"),
            v_rotation=seed if self.settings["rotate_v"] else None,
            out_dtype=self.out_dtype,
            **self.cu_seqlens,
            **self.max_seqlens,
        )


def quantize(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    element: Any = "int8",
    q_scales: Unit = "row",
    k_scales: Unit = "group",
    v_scales: Unit = "row",
    rotate_qk: bool = True,
    rotate_v: bool = True,
    center_k: bool = True,
    seed: int = 0,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    threads: int = 0,
    engine: str = "automatic",
    stream: int | None = None,
) -> Quantized:
    """q, k and v as 8-bit tensors with scales, for ``strobe.attention``.

    q [batch, seqlen_q, heads_q, head_dim], k [batch, seqlen_k, heads_kv, head_dim] and v [batch, seqlen_k, heads_kv,
    head_dim_v] are float32, float16 or bfloat16, of one framework and on one device, with any strides as long as the
    last is 1. ``element`` is "int8" or "float8_e4m3fn", or the framework's dtype of that name; NumPy holds the latter
    by ml_dtypes.

    Rows share a scale with all rows of the "tensor" or of their batch entry and "head", with 127 neighbours ("block"),
    with 31 ("group") or with none ("row"). ``rotate_qk`` and ``rotate_v`` multiply the columns by random signs, which
    ``seed`` draws, and a Hadamard matrix: scores stay, attention rotates its output back. ``center_k`` takes the keys'
    mean from them, which the softmax does not notice. What each does to the error: docs/eight-bit.md. Results do not
    depend on threads.

    With ``cu_seqlens_q`` or ``cu_seqlens_k`` that side is packed, as of ``strobe.attention``: q [total_q, heads_q,
    head_dim], k [total_k, heads_kv, head_dim] and v [total_k, heads_kv, head_dim_v]. Each sequence has the elements and
    scales that it has alone, but for scales of the "tensor". Scales take memory for the longest sequence in place of
    each: give ``max_seqlen_q`` and ``max_seqlen_k``. The options of the result have all four.

    There are no gradients. Raises ValueError for tensors that are recorded on PyTorch's tape and for arguments that
    contradict this description, TypeError for what are no tensors, NotImplementedError for what no engine of this build
    supports. On a GPU the call returns when its launches are queued.

    Source: Shah et al., "FlashAttention-3" (2024), section 3.3; Zhang et al., "SageAttention" (2024), section 4.2.
    """
    plan = _plan(
        *(q, k, v, _arrays.dtype_name(element)),
        units={"q_scales": q_scales, "k_scales": k_scales, "v_scales": v_scales},
        flags={"rotate_qk": rotate_qk, "rotate_v": rotate_v, "center_k": center_k},
        seed=seed,
        cu_seqlens={"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k},
        max_seqlens={"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k},
    )
    framework = _arrays.framework_of(q)
    if framework == "jax":
        from strobe import jax

        return jax.run_quantize(plan, q, k, v, threads)
    if framework == "torch":
        _check_no_gradients(q, k, v)
    elif framework == "cupy" and stream is None:
        stream = _arrays.cupy_stream()
    outputs = {name: _arrays.empty(shape, q, plan.dtypes[name]) for name, shape in plan.shapes.items()}
    _core.quantize(
        *(q, k, v),
        **({"q_shift": None} | outputs | plan.settings | plan.cu_seqlens | plan.max_seqlens),
        allocate_workspace=_arrays.workspace_allocator(q, stream),
        threads=threads,
        engine=engine,
        stream=stream,
    )
    return plan.result(outputs)


@dataclass(frozen=True)
class QuantizationPlan:
    """How to quantise, and what it costs: quantize(q, k, v, **plan.settings)."""

    settings: dict[str, Any]
    """The keyword arguments of ``strobe.quantize``."""
    rmse: float
    """The root mean square error of attention's output, estimated, with a margin."""
    error_bound: float
    """Of any element of the output; infinite where the tensors were not read."""
    measured: bool
    """Whether the tensors were read; otherwise they were taken to be normal."""
    keys_per_sum: int
    """Keys whose products are summed as the hardware does, before they join a float32 sum."""
    explanation: str
    """A few lines for a reader."""


_MODES = ("automatic", "fast", "accurate")  # in the order of strobe::QuantizationMode


def plan_quantization(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    max_rmse: float = 0.0,
    max_error: float = 0.0,
    mode: Literal["automatic", "fast", "accurate"] = "automatic",
    seed: int = 0,
    **options: Any,
) -> QuantizationPlan:
    """The cheapest quantisation of q, k and v whose error keeps to a budget; 0: no bound.

    q, k and v are as for ``quantize``, and ``options`` those of the attention that follows. ``max_rmse`` bounds the
    root mean square error of its output, by an estimate; ``max_error`` that of any element, guaranteed and so far above
    what is seen. Tensors in host memory are read, with the exact probabilities of up to 256 queries; tensors on a GPU,
    and under JAX's transformations, are not: all elements are then taken to be independent and N(0, 1). "fast" is
    float8_e4m3fn with scales by blocks, "accurate" int8 with a scale for each row of v.

    Raises NotImplementedError where nothing keeps to the budget, and otherwise as ``quantize`` does. The model and what
    it assumes: docs/eight-bit.md.
    """
    if mode not in _MODES:
        raise ValueError(f'mode is "{mode}": it must be one of {", ".join(_MODES)}')
    if _arrays.framework_of(q) == "jax":
        from strobe import jax

        q, k, v = jax.values_or_shapes(q, k, v)
    plan = _core.plan_quantization(q, k, v, _MODES.index(mode), max_rmse, max_error, seed, **options)
    settings = {name: plan[name] for name in ("element", "rotate_qk", "rotate_v", "center_k", "seed")}
    settings |= {name: _UNITS[plan[name]] for name in ("q_scales", "k_scales", "v_scales")}
    results = ("rmse", "error_bound", "measured", "keys_per_sum", "explanation")
    return QuantizationPlan(settings, *(plan[name] for name in results))


class _Side(NamedTuple):
    """Queries or keys: batched [batch, seqlen, heads, columns], or packed [total, heads, columns]."""

    packed: bool
    batch: int
    seqlen: int  # packed: of the longest sequence
    total: int
    heads: int

    @staticmethod
    def of(name: str, tensor: Tensor, cu_seqlens: Tensor | None, max_seqlen: int | None) -> "_Side":
        shape = tensor.shape
        if cu_seqlens is None:
            if len(shape) != 4:
                raise ValueError(f"{name} has rank {len(shape)}: it must be [batch, seqlen, heads, head_dim]")
            return _Side(False, shape[0], shape[1], shape[0] * shape[1], shape[2])
        if len(shape) != 3:
            raise ValueError(f"{name} has rank {len(shape)}: it must be [total, heads, head_dim] with cu_seqlens")
        lengths = _arrays.shape_of(cu_seqlens)
        if len(lengths) != 1 or lengths[0] < 1:
            raise ValueError(f"cu_seqlens has shape {list(lengths)}: it must be [batch + 1]")
        bound = shape[0] if max_seqlen is None or max_seqlen < 0 else min(max_seqlen, shape[0])
        return _Side(True, lengths[0] - 1, bound, *shape[:2])

    def scales_shape(self, unit: Unit) -> tuple[int, ...]:
        if unit == "tensor":
            return (1, 1, 1)
        rows = _ROWS[unit] or max(self.seqlen, 1)
        return (self.batch, self.heads, max(-(-self.seqlen // rows), 1))

    def values_shape(self, columns: int) -> tuple[int, ...]:
        """Of 8-bit values of these keys."""
        if self.packed:
            return (self.heads, columns, _VALUE_KEYS * (self.total // _VALUE_KEYS + self.batch))
        return (self.batch, self.heads, columns, -(-self.seqlen // _VALUE_KEYS) * _VALUE_KEYS)


def _plan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    element: str,
    *,
    units: dict[str, Unit],
    flags: dict[str, bool],
    seed: int,
    cu_seqlens: dict[str, Tensor | None],
    max_seqlens: dict[str, int | None],
) -> Plan:
    """ValueError for what would leave the outputs without a shape; the rest is for the call to see."""
    if element not in _ELEMENTS:
        raise ValueError(f'element is "{element}": it must be "int8" or "float8_e4m3fn"')
    for name, unit in units.items():
        if unit not in _ROWS:
            raise ValueError(f'{name} is "{unit}": it must be one of {", ".join(_UNITS)}')
    flags = {name: _core.boolean(name, flag) for name, flag in flags.items()}
    seed = _core.unsigned_integer("seed", seed)
    bounds = {name: _core.integer(name, bound) for name, bound in max_seqlens.items() if bound is not None}
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not hasattr(tensor, "shape") or not hasattr(tensor, "dtype"):
            raise TypeError(f"{name} is of type {type(tensor).__name__}: it must be a tensor")
    sides = {
        name: _Side.of(name, tensor, cu_seqlens[f"cu_seqlens_{side}"], bounds.get(f"max_seqlen_{side}"))
        for name, tensor, side in (("q", q, "q"), ("k", k, "k"), ("v", v, "k"))
    }
    shapes = {"q8": tuple(q.shape), "k8": tuple(k.shape), "v8": sides["v"].values_shape(v.shape[-1])}
    for name, side in sides.items():
        shapes[f"{name}_descale"] = side.scales_shape(units[f"{name}_scales"])
    if flags["center_k"]:
        shapes["q_shift"] = (sides["q"].batch, sides["q"].heads, sides["q"].seqlen)
    dtypes = {name: element if name in ("q8", "k8", "v8") else "float32" for name in shapes}
    settings = {name: _UNITS.index(unit) for name, unit in units.items()}
    settings |= {"rotate_qk": flags["rotate_qk"], "rotate_v": flags["rotate_v"], "seed": seed}
    given = {name: lengths for name, lengths in cu_seqlens.items() if lengths is not None}
    return Plan(shapes, dtypes, settings, _arrays.dtype_name(q.dtype), given, bounds)


def _check_no_gradients(*tensors: Tensor) -> None:
    if not sys.modules["torch"].is_grad_enabled():
        return
    for name, tensor in zip("qkv", tensors, strict=True):
        if getattr(tensor, "requires_grad", False):
            raise ValueError(f"{name} requires a gradient, which 8-bit tensors do not have: detach it")
