# SPDX-License-Identifier: Apache-2.0
"""Sparse attention of PyTorch's tensors: an operator with gradients, which compilers see as one."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from strobe import _core
from strobe._frameworks import mark_written
from strobe._row_format import RowFormat, from_text, to_text
from strobe._shapes import lse_shape
from strobe._sparse_source import SparseSource, value_columns
from strobe.torch import checks, ops
from strobe.torch.ops import LIBRARY

_SOURCE_TENSORS = ("k", "v", "indices", "topk_length", "cu_seqlens_k", "page_table", "seqused_k")
_SOURCE_VALUES = {"block_size": "SymInt", "in_pool": "bool", "causal": "bool", "k_format": "str", "v_format": "str"}
_VALUES = {"head_dim_v": "SymInt", "scale": "float?", "softcap": "float", "threads": "SymInt", "engine": "str"}
_TENSORS = (*_SOURCE_TENSORS, *(f"extra_{name}" for name in _SOURCE_TENSORS), "sink", "cu_seqlens_q")
_COUNT = len(_TENSORS)
_SCHEMA = ", ".join(
    chain(
        (f"Tensor{'' if name in ('k', 'indices') else '?'} {name}" for name in _TENSORS),
        (f"{schema} {name}" for name, schema in _SOURCE_VALUES.items()),
        (f"{schema} extra_{name}" for name, schema in _SOURCE_VALUES.items()),
        (f"{schema} {name}" for name, schema in _VALUES.items()),
    )
)
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
LIBRARY.define(f"sparse_attention(Tensor q, {_SCHEMA}) -> (Tensor, Tensor)", tags=_TAGS)
LIBRARY.define(
    f"sparse_attention_backward(Tensor d_o, Tensor? d_lse, Tensor o, Tensor lse, Tensor q, {_SCHEMA}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=_TAGS,
)


def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    indices: Tensor,
    *,
    topk_length: Tensor | None = None,
    block_size: int = 1,
    k_format: RowFormat | None = None,
    v_format: RowFormat | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    page_table: Tensor | None = None,
    seqused_k: Tensor | None = None,
    in_pool: bool = False,
    causal: bool = False,
    extra: SparseSource | None = None,
    head_dim_v: int | None = None,
    sink: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
    threads: int = 0,
    engine: str = "automatic",
) -> Any:
    """``strobe.sparse_attention`` with gradients: for q, k, v, sink and those of ``extra``, through o and lse.

    Arguments, results and errors are those of strobe.sparse_attention; where the last axis of q, k or v is not dense
    the tensor is copied. Gradients are for bfloat16, float16 and, on the CPU, float32 k and v, batched or packed: with
    row formats, pages and pools the backward raises ValueError. The same call has the same gradients to the bit.
    torch.compile takes the call as one operator; there are no transforms of torch.func and no second derivatives.
    """
    source = SparseSource(
        k, v, indices, k_format, v_format, topk_length, block_size, cu_seqlens_k, page_table, seqused_k, in_pool, causal
    )
    sources = [source] if extra is None else [source, extra]
    o, lse = _call(q, sources, cu_seqlens_q, head_dim_v, sink, scale, softcap, threads, engine)
    return (o, lse) if return_lse else o


def into(out: Tensor | None, return_lse: bool, q: Tensor, sources: Sequence[SparseSource], **rest: Any) -> Any:
    """strobe.sparse_attention in a compiled graph."""
    o, lse = _call(q, sources, **rest)
    if out is not None:
        out.copy_(o)
        o = out
    return (o, lse) if return_lse else o


def _call(
    q: Tensor, sources: Sequence[SparseSource], cu_seqlens_q: Tensor | None, head_dim_v: int | None,
    sink: Tensor | None, scale: float | None, softcap: float, threads: int, engine: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    checks.check_types(q=q, k=sources[0].k, indices=sources[0].indices)
    checks.check_layouts(q=q, k=sources[0].k)
    tensors: list[Tensor | None] = []
    values: list[Any] = []
    for source in (*sources, SparseSource(None))[:2]:
        k, v = (None if x is None else ops.rows(x) for x in (source.k, source.v))
        tensors += [k, v, *(getattr(source, name) for name in _SOURCE_TENSORS[2:])]
        values += [source.block_size, source.in_pool, source.causal, to_text(source.k_format), to_text(source.v_format)]
    columns = value_columns(sources[0], head_dim_v)
    return torch.ops.strobe.sparse_attention(
        ops.rows(q), *tensors, sink, cu_seqlens_q, *values, columns, scale, softcap, threads, engine
    )


class _Arguments:
    """The operator's arguments behind q, by name."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self.tensors = dict(zip(_TENSORS, arguments, strict=False))
        rest = iter(arguments[_COUNT:])
        values = [self._source_values(rest) for _ in range(2)]
        names = (_SOURCE_TENSORS, tuple(f"extra_{name}" for name in _SOURCE_TENSORS))
        self.sources = [
            SparseSource(**dict(zip(_SOURCE_TENSORS, (self.tensors[name] for name in of), strict=True)), **own)
            for of, own in zip(names, values, strict=True)
            if self.tensors[of[0]] is not None
        ]
        self.head_dim_v, self.scale, self.softcap, self.threads, self.engine = rest

    @staticmethod
    def _source_values(rest: Iterator[Any]) -> dict[str, Any]:
        values = {name: next(rest) for name in _SOURCE_VALUES}
        return values | {name: from_text(values[name]) for name in ("k_format", "v_format")}

    @property
    def execution(self) -> dict[str, Any]:
        return {"threads": self.threads, "engine": self.engine}


def _empty_outputs(q: Tensor, arguments: Sequence[Any]) -> tuple[Tensor, Tensor]:
    head_dim_v = arguments[_COUNT + 2 * len(_SOURCE_VALUES)]
    return q.new_empty((*q.shape[:-1], head_dim_v)), q.new_empty(lse_shape(q), dtype=torch.float32)


def _forward(q: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    a = _Arguments(arguments)
    o, lse = _empty_outputs(q, arguments)
    sink, cu_seqlens_q = a.tensors["sink"], a.tensors["cu_seqlens_q"]
    _core.sparse_forward(q, a.sources, o, lse, sink, cu_seqlens_q, a.scale, a.softcap, **a.execution)
    mark_written(o, lse)
    return o, lse


def _forward_fake(q: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    return _empty_outputs(q, arguments)


def _empty_gradients(q: Tensor, arguments: Sequence[Any]) -> tuple[Tensor, ...]:
    """dq, dk, dv, those of the extra source, and d_sink; without elements where there is no such tensor."""
    tensors = dict(zip(_TENSORS, arguments, strict=False))
    given = (q, *(tensors[name] for name in ("k", "v", "extra_k", "extra_v", "sink")))
    return tuple(
        q.new_empty((0,)) if x is None else torch.empty_like(x, memory_format=torch.contiguous_format) for x in given
    )


def _backward(
    d_o: Tensor, d_lse: Tensor | None, o: Tensor, lse: Tensor, q: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    a = _Arguments(arguments)
    gradients = _empty_gradients(q, arguments)
    dq, dk, dv, extra_dk, extra_dv, d_sink = gradients
    pairs = [(dk, dv if a.tensors["v"] is not None else None)]
    if a.tensors["extra_k"] is not None:
        pairs.append((extra_dk, extra_dv if a.tensors["extra_v"] is not None else None))
    sink, cu_seqlens_q = a.tensors["sink"], a.tensors["cu_seqlens_q"]
    _core.sparse_backward(
        q, a.sources, o, lse, sink, cu_seqlens_q, a.scale, a.softcap, d_o, d_lse, dq, pairs,
        None if sink is None else d_sink, **a.execution,
    )  # fmt: skip
    return gradients


def _backward_fake(
    d_o: Tensor, d_lse: Tensor | None, o: Tensor, lse: Tensor, q: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    return _empty_gradients(q, arguments)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, *arguments = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, *output, *arguments[:_COUNT])
    ctx.values = arguments[_COUNT:]


def _differentiate(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, o, lse, *tensors = ctx.saved_tensors
    d_o = torch.zeros_like(o) if d_o is None else ops.rows(d_o)
    d_lse = None if d_lse is None else ops.rows(d_lse)
    dq, dk, dv, extra_dk, extra_dv, d_sink = torch.ops.strobe.sparse_attention_backward(
        d_o, d_lse, o, lse, q, *tensors, *ctx.values
    )
    of = {"k": dk, "v": dv, "extra_k": extra_dk, "extra_v": extra_dv, "sink": d_sink}
    given = dict(zip(_TENSORS, tensors, strict=True))
    gradients = (of[name] if name in of and given[name] is not None else None for name in _TENSORS)
    return (dq, *gradients, *(None for _ in ctx.values))


for _name, _compute, _fake in (
    ("sparse_attention", _forward, _forward_fake),
    ("sparse_attention_backward", _backward, _backward_fake),
):
    for _device in ("CPU", "CUDA"):
        LIBRARY.impl(_name, _compute, _device)
    torch.library.register_fake(f"strobe::{_name}", _fake, lib=LIBRARY)
torch.library.register_autograd("strobe::sparse_attention", _differentiate, setup_context=_save, lib=LIBRARY)
