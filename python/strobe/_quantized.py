# SPDX-License-Identifier: Apache-2.0
"""Tensors in 8 bits: their layout, and what a quantisation writes."""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast, get_args

from strobe import _core
from strobe._option_list import options_of
from strobe._options import QuantizeOptions, Tensor, TensorOptions, Unit
from strobe._shapes import check_tensors, dtype_name, shape_of, wrong_type

_ROWS = {"tensor": 0, "head": 0, "block": 128, "group": 32, "row": 1}  # that share a scale; 0: all of a head
UNITS = get_args(Unit)  # in the order of strobe::ScaleUnit
_ELEMENTS = ("int8", "float8_e4m3fn")
_VALUE_KEYS = 32  # to a multiple of which V's keys are padded
_OPTIONS = (
    *("q_descale", "k_descale", "v_descale", "q_shift", "v_rotation", "out_dtype"),
    *("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
)


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
        options = {name: getattr(self, name) for name in _OPTIONS}
        return cast(TensorOptions, {name: value for name, value in options.items() if value is not None})


_DEFAULTS = {name: option.default for name, option in options_of(QuantizeOptions).items()}


class Sequences(NamedTuple):
    """Packed sequences, on either side, and bounds on the longest."""

    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None

    @staticmethod
    def of(options: QuantizeOptions) -> "Sequences":
        given: dict[str, Any] = _DEFAULTS | options
        return Sequences(*(given[name] for name in Sequences._fields))

    def checked(self) -> "Sequences":
        """The same with bounds that are integers."""
        bounds = {name: getattr(self, name) for name in ("max_seqlen_q", "max_seqlen_k")}
        return self._replace(
            **{name: _core.integer(name, bound) for name, bound in bounds.items() if bound is not None}
        )

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value is not None}


class Quantization(NamedTuple):
    """How to quantise: the arguments of ``strobe.quantize``."""

    element: Any
    q_scales: Unit
    k_scales: Unit
    v_scales: Unit
    rotate_qk: bool
    rotate_v: bool
    center_k: bool
    seed: int

    @staticmethod
    def of(options: QuantizeOptions) -> "Quantization":
        given: dict[str, Any] = _DEFAULTS | options
        return Quantization(*(given[name] for name in Quantization._fields))

    def checked(self) -> "Quantization":
        """The same with values of their types; ValueError for names that there are not."""
        element = dtype_name(self.element, "element")
        if element not in _ELEMENTS:
            raise ValueError(f'element is "{element}": it must be "int8" or "float8_e4m3fn"')
        for name in ("q_scales", "k_scales", "v_scales"):
            unit = getattr(self, name)
            if not isinstance(unit, str):
                raise wrong_type(name, unit, f"one of {', '.join(UNITS)}")
            if unit not in UNITS:
                raise ValueError(f'{name} is "{unit}": it must be one of {", ".join(UNITS)}')
        flags: dict[str, Any] = {
            name: _core.boolean(name, getattr(self, name)) for name in ("rotate_qk", "rotate_v", "center_k")
        }
        return self._replace(element=element, seed=_core.unsigned_integer("seed", self.seed), **flags)

    def settings(self) -> dict[str, int]:
        """What _core.quantize takes beside tensors: the element and whether keys are centred follow from those."""
        settings = {name: UNITS.index(getattr(self, name)) for name in ("q_scales", "k_scales", "v_scales")}
        return settings | {"rotate_qk": self.rotate_qk, "rotate_v": self.rotate_v, "seed": self.seed}


class Plan(NamedTuple):
    """What a quantisation writes, and how."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    quantization: Quantization
    out_dtype: str
    sequences: Sequences

    def result(self, outputs: dict[str, Any]) -> Quantized:
        names = ("q_descale", "k_descale", "v_descale")
        return Quantized(
            **{name: outputs[f"{name}8"] for name in ("q", "k", "v")},
            **{name: outputs[name] for name in names},
            q_shift=outputs.get("q_shift"),
            v_rotation=self.quantization.seed if self.quantization.rotate_v else None,
            out_dtype=self.out_dtype,
            **self.sequences._asdict(),
        )


def plan_of(q: Tensor, k: Tensor, v: Tensor, options: QuantizeOptions) -> Plan:
    """ValueError for what would leave the outputs without a shape; the rest is for the call to see."""
    how, sequences = Quantization.of(options).checked(), Sequences.of(options).checked()
    check_tensors(q=q, k=k, v=v)
    queries = _Side.of("q", q, sequences.cu_seqlens_q, sequences.max_seqlen_q)
    keys = _Side.of("k", k, sequences.cu_seqlens_k, sequences.max_seqlen_k)
    values = _Side.of("v", v, sequences.cu_seqlens_k, sequences.max_seqlen_k)
    elements = {"q8": tuple(q.shape), "k8": tuple(k.shape), "v8": values.values_shape(v.shape[-1])}
    scales = {
        "q_descale": queries.scales_shape(how.q_scales),
        "k_descale": keys.scales_shape(how.k_scales),
        "v_descale": values.scales_shape(how.v_scales),
    }
    if how.center_k:
        scales["q_shift"] = (queries.batch, queries.heads, queries.seqlen)
    dtypes = dict.fromkeys(elements, how.element) | dict.fromkeys(scales, "float32")
    return Plan(elements | scales, dtypes, how, dtype_name(q.dtype), sequences)


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
        lengths = shape_of(cu_seqlens)
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
