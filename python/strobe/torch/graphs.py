# SPDX-License-Identifier: Apache-2.0
"""strobe.attention and strobe.append in compiled graphs: operators that write to the tensors that they are given."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from strobe import _appended, _core
from strobe._frameworks import framework_of, mark_written
from strobe._frameworks.base import NOT_RECORDED
from strobe._option_list import OPTIONS, captures_of
from strobe.torch import checks, ops
from strobe.torch.ops import LIBRARY
from strobe.torch.scales import scaled

_ATTENTION = ops.schemas_of([name for name in OPTIONS if name not in ("stream", "out_dtype")])

LIBRARY.define(
    "attention_into(Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!)? lse, Tensor(c!)? max_logits, "
    f"{', '.join(f'{schema} {name}' for name, schema in _ATTENTION.items())}) -> ()",
    tags=torch.Tag.pt2_compliant_tag,
)


def _append_schema(name: str) -> str:
    """The type of an optional tensor: one that is written has a letter of its own."""
    if name not in _appended.WRITTEN_SCALES:
        return f"Tensor? {name}"
    return f"Tensor({'de'[_appended.WRITTEN_SCALES.index(name)]}!)? {name}"


LIBRARY.define(
    "append(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor k_new, Tensor v_new, Tensor cache_seqlens, "
    f"Tensor(c!)? q_out, {', '.join(map(_append_schema, _appended.TENSOR_NAMES))}, "
    "bool interleaved, bool q_in_order, SymInt threads, str engine) -> ()",
    tags=torch.Tag.pt2_compliant_tag,
)


def check_gradients(q: Tensor, k: Tensor, v: Tensor, options: Mapping[str, Any]) -> None:
    """ValueError for a tensor that requires a gradient, as eager calls have it."""
    tensors = {name: options.get(name) for name in ("bias", "sink", "scale", "qv")}
    tensors |= {f"capture `{name}`": x for name, x in captures_of(options).items()}
    framework_of(q).reject_gradients(NOT_RECORDED, q=q, k=k, v=v, **tensors)


def attention(q: Tensor, k: Tensor, v: Tensor, outputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Writes what strobe.attention computes to out, lse and max_logits, of which the last two may be None."""
    options = _without_stream(options)
    checks.check_types(q=q, k=k, v=v)
    checks.check_layouts(q=q, k=k, v=v)
    if isinstance(options.get("scale"), Tensor):
        if options.get("qv") is not None:
            raise NotImplementedError("qv is given with a tensor as scale: give a number")
        q, options["scale"] = scaled(q, options["scale"])
    if options.get("v_rotation") is not None:
        options["v_rotation"] = checks.word("v_rotation", options["v_rotation"])
    torch.ops.strobe.attention_into(q, k, v, *outputs, *ops.arguments_of(q, options, _ATTENTION))


def append(
    k_cache: Tensor,
    v_cache: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    cache_seqlens: Tensor,
    q_out: Tensor | None,
    options: Mapping[str, Any],
) -> None:
    """strobe.append, whose rotated q is written to q_out."""
    options = _without_stream(options)
    tensors = {"k_cache": k_cache, "v_cache": v_cache, "k_new": k_new, "v_new": v_new, "cache_seqlens": cache_seqlens}
    checks.check_types(**tensors)
    names = _appended.TENSOR_NAMES
    given = checks.tensors_of(options, tuple(name for name in names if options.get(name) is not None))
    values = _appended.values_of(options)
    flags = {name: bool(x) for name, x in values.items() if isinstance(_appended.VALUES[name], bool)}
    torch.ops.strobe.append(*tensors.values(), q_out, *(given.get(name) for name in names), *(values | flags).values())


def _without_stream(options: Mapping[str, Any]) -> dict[str, Any]:
    """A compiled graph runs on the stream that is current when it runs."""
    if options.get("stream") is not None:
        raise NotImplementedError("stream is given in a compiled graph, which runs on the current stream: leave it out")
    return {name: value for name, value in options.items() if name != "stream"}


def _attention(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, max_logits: Tensor | None, *arguments: Any
) -> None:
    options = ops.keywords(arguments, _ATTENTION)
    if options["v_rotation"] is not None:
        options["v_rotation"] %= 2**64
    _core.forward(q, k, v, out, lse, max_logits, **{name: x for name, x in options.items() if x is not None})
    mark_written(out, lse, max_logits)


def _append(
    k_cache: Tensor, v_cache: Tensor, k_new: Tensor, v_new: Tensor, cache_seqlens: Tensor, q_out: Tensor | None,
    *arguments: Any,
) -> None:  # fmt: skip
    options = dict(zip((*_appended.TENSOR_NAMES, *_appended.VALUES), arguments, strict=True))
    _appended.append(k_cache, v_cache, k_new, v_new, cache_seqlens, q_out, options, None)


def _fake(*arguments: Any) -> None:
    """Nothing is returned."""


for _name, _compute in (("attention_into", _attention), ("append", _append)):
    for _device in ("CPU", "CUDA"):
        LIBRARY.impl(_name, _compute, _device)
    torch.library.register_fake(f"strobe::{_name}", _fake, lib=LIBRARY)
