# SPDX-License-Identifier: Apache-2.0
"""strobe.jax.attention."""

from typing import Any, Unpack

import jax.numpy as jnp
from jax import Array

from strobe._documented import with_options
from strobe._forward import results
from strobe._option_list import check_outputs_of_softmax
from strobe._options import JaxOptions
from strobe.jax import batching, derivatives  # noqa: F401 (their rules are registered when they are imported)
from strobe.jax.arguments import TENSORS, attributes_of, captures_as_operands, check_call, is_learnt, scaled
from strobe.jax.dropout import random_state
from strobe.jax.masks import masked
from strobe.jax.primitive import bind


@with_options(JaxOptions)
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: bool = False,
    return_max_logits: bool = False,
    **options: Unpack[JaxOptions],
) -> Any:
    """``strobe.attention`` with gradients: for q, k, v, bias, sink, mask, scale and captures, through out and lse.

    Shapes, dtypes, options (strobe.ScoreOptions and strobe.EightBitOptions) and errors are those of strobe.attention.
    Options that are no arrays are constants of the compiled program, but seed and offset may be traced integers, 0 or
    more, and scale a traced number or an array [heads_q], which is multiplied into q: 16-bit q is rounded once more.
    With dropout, key, seed, offset or random_state must be given: JAX has no generator to draw from. Arrays that are
    not row-major are copied, by XLA. 8-bit inputs have no gradients: NotImplementedError.

    Under jax.jit each device of a mesh computes its sequences and heads where arrays are sharded along these, of keys
    and queries alike; arrays that are sharded along other axes are gathered, and all arrays of calls with dropout.
    Policies of jax.checkpoint may save "strobe_out" and "strobe_lse", with which the backward repeats no forward.
    """
    given = check_call(q, k, v, dict(options))
    check_outputs_of_softmax(given, return_lse, return_max_logits)
    tensors = {"q": q, "k": k, "v": v} | {name: jnp.asarray(given[name]) for name in TENSORS if name in given}
    if is_learnt(given.get("scale")):
        tensors["q"] = scaled(q, given["scale"])
        given["scale"] = 1.0
    tensors = masked(tensors, given) | captures_as_operands(given)
    if given.get("dropout"):
        tensors["random"] = random_state(given)
    names = ["o", "lse", *(["max_logits"] if return_max_logits else [])]
    constants = {"attributes": attributes_of(given), "out_dtype": given.get("out_dtype")}
    outputs = bind("forward", tensors, names, **constants)
    return results(outputs["o"], outputs["lse"] if return_lse else None, outputs.get("max_logits"))
