# SPDX-License-Identifier: Apache-2.0
"""Attention over several sets of keys, merged, and the gradient of that."""

from collections.abc import Sequence
from typing import Any

from strobe import _core
from strobe._frameworks import check_outputs, framework_of, mark_written
from strobe._options import Tensor
from strobe._shapes import dtype_name, shape_of


def merge(
    parts: Sequence[tuple[Tensor, Tensor]],
    *,
    out: Tensor | None = None,
    out_dtype: Any = None,
    threads: int = 0,
    engine: str = "automatic",
    stream: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(o, lse) over all keys from (o, lse) over some: LSE = log(sum exp(LSE_i)), O = sum exp(LSE_i - LSE) O_i.

    Each part is what ``attention`` with ``return_lse=True`` gave for its keys: o [batch, seqlen_q, heads_q, head_dim_v]
    with lse [batch, heads_q, seqlen_q], or packed o [total_q, heads_q, head_dim_v] with lse [heads_q, total_q]; from 1
    to 256 parts of one shape, dtype and device. o is float32, float16 or bfloat16, lse float32. The result has the
    parts' dtype or ``out_dtype``, and is written to ``out`` if that is given. Each key, and a sink, must belong to one
    part alone.

    A part whose LSE is -inf saw no key and does not count, whatever its o holds; where all are such, o is 0 and LSE
    -inf. An LSE that is NaN or +inf makes its row NaN. Sums are float32 and always taken in the same order.

    There are no gradients. Raises ValueError for tensors that are recorded on PyTorch's tape or contradict this
    description, TypeError for what are no tensors, NotImplementedError for devices whose engines have no merge. On a
    GPU the call returns when its launch is queued.

    Source: Dao, "FlashAttention-2" (2023), section 2.3.1.
    """
    outputs, logarithms = _outputs_and_logarithms(parts)
    first = outputs[0]
    framework = framework_of(first)
    if framework.name == "jax":
        raise NotImplementedError("merge does not take arrays of JAX: jnp.logaddexp and a weighted sum do as much")
    for part in (*outputs, *logarithms):
        framework.reject_gradients("a merge does not have: detach it", **{"a part": part})
    check_outputs(out=out)
    dtype = None if out_dtype is None else dtype_name(out_dtype, "out_dtype")
    if out is None:
        out = framework.empty(shape_of(first), first, dtype)
    elif dtype is not None and hasattr(out, "dtype") and dtype != dtype_name(out.dtype):
        raise ValueError(f"out_dtype is {dtype}, but out is {dtype_name(out.dtype)}")
    lse = framework_of(logarithms[0]).empty(shape_of(logarithms[0]), logarithms[0], "float32")
    _core.merge(outputs, logarithms, out, lse, threads=threads, engine=engine, stream=framework.stream(stream))
    mark_written(out)
    return out, lse


def merge_backward(
    parts: Sequence[tuple[Tensor, Tensor]],
    d_out: Tensor,
    d_lse: Tensor | None = None,
    *,
    threads: int = 0,
    engine: str = "automatic",
) -> list[tuple[Tensor, Tensor]]:
    """The gradient of ``merge``: (d_o, d_lse) of each part, from those of what was merged.

    ``parts`` are those that were merged, ``d_out`` has o's shape and any of its dtypes, ``d_lse`` lse's shape. With
    w_i = exp(LSE_i - LSE) and D_i the product of the rows of d_out and O_i, dO_i = w_i d_out, of d_out's dtype, and
    dLSE_i = w_i (D_i - sum w_j D_j + d_lse). ``strobe.torch`` 's attention with return_lse=True takes both. Parts that
    saw no key have 0.

    On the CPU alone: NotImplementedError on GPUs. ValueError and TypeError as merge raises them.
    """
    outputs, logarithms = _outputs_and_logarithms(parts)
    framework = framework_of(outputs[0])
    if framework.name == "jax":
        raise NotImplementedError("merge_backward does not take arrays of JAX: jax.vjp of a weighted sum does as much")
    framework.reject_gradients("this gradient does not have: detach it", d_out=d_out)
    gradients = [framework_of(d_out).empty(shape_of(o), d_out) for o in outputs]
    of_lse = [framework_of(x).empty(shape_of(x), x, "float32") for x in logarithms]
    execution: dict[str, Any] = {"threads": threads, "engine": engine, "stream": framework.stream(None)}
    _core.merge_backward(outputs, logarithms, d_out, d_lse, gradients, of_lse, **execution)
    return list(zip(gradients, of_lse, strict=True))


def _outputs_and_logarithms(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    if not isinstance(parts, Sequence):
        raise TypeError(f"parts is of type {type(parts).__name__}: it must be a list of pairs (o, lse)")
    if not parts:
        raise ValueError("parts is empty: a merge takes from 1 to 256 parts")
    for index, part in enumerate(parts):
        if not isinstance(part, (tuple, list)) or len(part) != 2:
            given = (
                f"has {len(part)} values" if isinstance(part, (tuple, list)) else f"is of type {type(part).__name__}"
            )
            raise TypeError(f"parts[{index}] {given}: it must be a pair (o, lse)")
    return [o for o, _ in parts], [lse for _, lse in parts]
