# SPDX-License-Identifier: Apache-2.0
"""vmap of the operators: its axis joins the batch, so that all samples are one call.

Samples that cannot be rows of one batch are computed one after the other: packed sequences, sinks that differ between
samples, and what depends on a row's place in the batch: dropout's mask, and texts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from strobe.torch.jvp import TANGENT_NAMES
from strobe.torch.ops import LIBRARY, TENSOR_NAMES, VALUE_NAMES

_QKV = ("q", "k", "v")
_FORWARD = (*_QKV, *TENSOR_NAMES, *VALUE_NAMES, "return_max_logits")
_BACKWARD = (
    "d_o",
    "d_lse",
    *_QKV,
    "o",
    "lse",
    *TENSOR_NAMES,
    *VALUE_NAMES,
    "needs_d_bias",
    "needs_d_sink",
    "needs_d_captures",
)
_JVP = (*_QKV, *TENSOR_NAMES, *VALUE_NAMES, *TANGENT_NAMES)
_SHARED = ("bias", "block_mask")  # [batch or 1, ..]


def _is_one_call(given: dict[str, Any], dims: dict[str, int | None]) -> bool:
    packed = given["cu_seqlens_q"] is not None or given["cu_seqlens_k"] is not None
    own_sink = dims["sink"] is not None or given.get("needs_d_sink", False)
    of_texts = given["score"] is not None or given["mask_text"] is not None  # which may read the sample's own batch
    return not (packed or own_sink or of_texts) and given["random"] is None


def _joined(name: str, x: Tensor, dim: int | None, samples: int, batch: int, *, apart: bool) -> Tensor:
    """The tensor of all samples with vmap's axis in its batch axis; ``apart`` if none may be shared by samples."""
    if dim is None and not apart:
        if name in _SHARED and x.shape[0] == 1:
            return x
        if name in ("alibi_slopes", "sink") and x.dim() == 1:
            return x
    x = x.expand(samples, *x.shape) if dim is None else x.movedim(dim, 0)
    if name == "alibi_slopes" and x.dim() == 2:
        x = x.unsqueeze(1)
    return x.expand(samples, batch, *x.shape[2:]).reshape(-1, *x.shape[2:])


def _joined_arguments(given: dict[str, Any], dims: dict[str, int | None], samples: int, batch: int) -> tuple[Any, ...]:
    return tuple(
        _joined(name, x, dims[name], samples, batch, apart=name == "bias" and given.get("needs_d_bias", False))
        if isinstance(x, Tensor)
        else x
        for name, x in given.items()
    )


def _one_by_one(operator: Callable[..., Any], samples: int, in_dims: Sequence[int | None], arguments: Any) -> Any:
    results = [
        operator(*(x if dim is None else x.select(dim, sample) for x, dim in zip(arguments, in_dims, strict=True)))
        for sample in range(samples)
    ]
    outputs = tuple(torch.stack(output) for output in zip(*results, strict=True))
    return outputs, (0,) * len(outputs)


def _batch_of(given: dict[str, Any], dims: dict[str, int | None]) -> int:
    shape = list(given["q"].shape)
    if dims["q"] is not None:
        del shape[dims["q"]]
    return shape[0]


def _forward(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
    given, dims = (dict(zip(_FORWARD, values, strict=True)) for values in (arguments, in_dims))
    operator = torch.ops.strobe.attention
    if not _is_one_call(given, dims):
        return _one_by_one(operator, info.batch_size, in_dims, arguments)
    batch = _batch_of(given, dims)
    outputs = operator(*_joined_arguments(given, dims, info.batch_size, batch))
    o, lse, max_logits = outputs
    if not given["return_max_logits"]:
        return (_split(o, info.batch_size), _split(lse, info.batch_size), max_logits), (0, 0, None)
    return tuple(_split(x, info.batch_size) for x in outputs), (0, 0, 0)


def _backward(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
    given, dims = (dict(zip(_BACKWARD, values, strict=True)) for values in (arguments, in_dims))
    operator = torch.ops.strobe.attention_backward
    if not _is_one_call(given, dims):
        return _one_by_one(operator, info.batch_size, in_dims, arguments)
    batch = _batch_of(given, dims)
    *gradients, d_bias, d_sink, d_captures = operator(*_joined_arguments(given, dims, info.batch_size, batch))
    gradients = [_split(x, info.batch_size) for x in gradients]
    if not given["needs_d_bias"]:
        return (*gradients, d_bias, d_sink, d_captures), (0, 0, 0, None, None, None)
    d_bias = _split(d_bias, info.batch_size)
    bias, dim = given["bias"], dims["bias"]
    rows = bias.shape[0] if dim is None else bias.movedim(dim, 0).shape[1]
    if rows != batch:  # one for the sample's whole batch
        d_bias = d_bias.sum(1, keepdim=True)
    return (*gradients, d_bias, d_sink, d_captures), (0, 0, 0, 0, None, None)


def _jvp(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> Any:
    given, dims = (dict(zip(_JVP, values, strict=True)) for values in (arguments, in_dims))
    operator = torch.ops.strobe.attention_jvp
    if not _is_one_call(given, dims):
        return _one_by_one(operator, info.batch_size, in_dims, arguments)
    outputs = operator(*_joined_arguments(given, dims, info.batch_size, _batch_of(given, dims)))
    return tuple(_split(x, info.batch_size) for x in outputs), (0,) * len(outputs)


def _split(x: Tensor, samples: int) -> Tensor:
    return x.unflatten(0, (samples, x.shape[0] // samples))


torch.library.register_vmap("strobe::attention", _forward, lib=LIBRARY)
torch.library.register_vmap("strobe::attention_backward", _backward, lib=LIBRARY)
torch.library.register_vmap("strobe::attention_jvp", _jvp, lib=LIBRARY)
