# SPDX-License-Identifier: Apache-2.0
"""strobe.quantize on JAX's arrays."""

from typing import Any

import jax
import numpy as np
from jax import Array

from strobe import _core
from strobe._quantized import Plan, Quantized
from strobe._shapes import numpy_dtype, tensor_shape
from strobe.jax import batching, derivatives  # noqa: F401 (their rules are registered when they are imported)
from strobe.jax.arguments import check_array, signed
from strobe.jax.primitive import bind

jax.tree_util.register_dataclass(
    Quantized,
    data_fields=["q", "k", "v", "q_descale", "k_descale", "v_descale", "q_shift", "cu_seqlens_q", "cu_seqlens_k"],
    meta_fields=["v_rotation", "out_dtype", "max_seqlen_q", "max_seqlen_k"],
)

_PACKED = ("cu_seqlens_q", "cu_seqlens_k")


def run_quantize(plan: Plan, q: Array, k: Array, v: Array, threads: int) -> Quantized:
    """strobe.quantize on JAX's arrays, under jit and vmap, too."""
    given = plan.sequences.given()
    tensors = {"q": q, "k": k, "v": v} | {name: given.pop(name) for name in _PACKED if name in given}
    for name, tensor in tensors.items():
        check_array(name, tensor)
    types = tuple((name, (tuple(shape), numpy_dtype(plan.dtypes[name]))) for name, shape in plan.shapes.items())
    numbers = plan.quantization.settings() | given | {"threads": _core.integer("threads", threads)}
    attributes = {name: np.int64(number) for name, number in numbers.items() if name != "seed"}
    attributes["seed"] = signed(numbers["seed"])
    constants = {"attributes": tuple(sorted(attributes.items())), "quantized": types}
    return plan.result(bind("quantize", tensors, [name for name, _ in types], **constants))


def values_or_shapes(*tensors: Array) -> tuple[Any, ...]:
    """NumPy's view of arrays in host memory; shapes where there are no values, or they are on another device."""
    if all(not isinstance(x, jax.core.Tracer) and x.devices() <= set(jax.devices("cpu")) for x in tensors):
        return tuple(np.asarray(x) for x in tensors)
    return tuple(tensor_shape(x.shape, str(x.dtype), "cpu") for x in tensors)
