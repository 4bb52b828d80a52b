# SPDX-License-Identifier: Apache-2.0
"""Derivatives of a call: a forward's tangents are a call that is linear in those of its operands, and its transpose is
the backward."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from strobe._expressions import differentiable
from strobe._option_list import CAPTURE_NAMES
from strobe._shapes import EIGHT_BIT
from strobe.jax.axes import DIFFERENTIABLE, GRADIENTS, TANGENTS
from strobe.jax.call import Call, Tensors, has_texts
from strobe.jax.primitive import bind, call_p

RESIDUALS = {"o": "strobe_out", "lse": "strobe_lse"}
"""Results of the forward that the backward reads, by the name that policies of jax.checkpoint may save."""


_NO_SECOND = (
    "second derivatives of attention are not there: take jax.lax.stop_gradient of its gradients, and of its tangents "
    "before they are part of a loss"
)

second_p = Primitive("strobe_second_derivative")
"""The derivative of a tangent, an error where it is computed and not where it is merely asked for: a loss that takes
stop_gradient of the tangent is differentiated through the output beside it."""
second_p.multiple_results = True
second_p.def_abstract_eval(lambda *_, types: list(types))


def _no_second(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(_NO_SECOND)


def _transpose_second(cotangents: Any, *operands: Any, types: Any) -> list[Any]:
    if any(type(x) is not ad.Zero for x in cotangents):
        raise NotImplementedError(_NO_SECOND)
    return [None for _ in operands]


def _batch_second(operands: Any, dims: Any, *, types: Any) -> Any:
    size = next(x.shape[dim] for x, dim in zip(operands, dims, strict=True) if dim is not None)
    batched = tuple(x.update(shape=(size, *x.shape)) for x in types)
    return second_p.bind(*operands, types=batched), [0] * len(types)


second_p.def_impl(_no_second)
mlir.register_lowering(second_p, _no_second)
ad.primitive_jvps[second_p] = _no_second
ad.primitive_transposes[second_p] = _transpose_second
batching.primitive_batchers[second_p] = _batch_second


def _constants(call: Call) -> dict[str, Any]:
    return {"attributes": call.attributes, "out_dtype": call.out_dtype}


def _jvp(primals: Any, tangents: Any, *, call: Call) -> Any:
    tensors = dict(zip(call.operands, primals, strict=True))
    if call.target == "tangent":
        results = list(bind("tangent", tensors, call.results, **_constants(call)).values())
        nonzero = [x for x in tangents if type(x) is not ad.Zero]
        return results, second_p.bind(*nonzero, types=tuple(jax.typeof(x) for x in results))
    directions = {name: x for name, x in zip(call.operands, tangents, strict=True) if type(x) is not ad.Zero}
    _check(call, tensors, directions)
    outputs = bind("forward", tensors, call.results, **_constants(call))
    outputs |= {name: checkpoint_name(outputs[name], saved) for name, saved in RESIDUALS.items()}
    operands = tensors | {name: outputs[name] for name in RESIDUALS}
    operands |= {TANGENTS[name]: x for name, x in directions.items()}
    names = [TANGENTS[name] for name in call.results]
    derivatives = bind("tangent", operands, names, **_constants(call))
    return list(outputs.values()), list(derivatives.values())


def _check(call: Call, tensors: Tensors, directions: Tensors) -> None:
    if call.target == "quantize":
        raise NotImplementedError("8-bit tensors have no gradients: take stop_gradient of q, k and v before quantize")
    if call.target != "forward":
        raise NotImplementedError(_NO_SECOND)
    if str(tensors["k"].dtype) in EIGHT_BIT:
        name = "q" if call.out_dtype is not None else "k"
        raise NotImplementedError(f"{name} is {tensors[name].dtype}: calls of 8-bit tensors have no gradients")
    for name in directions:
        if name not in DIFFERENTIABLE:
            raise NotImplementedError(
                f"{name} requires a gradient, which attention does not have: take jax.lax.stop_gradient of it"
            )


def _transpose(cotangents: Any, *operands: Any, call: Call) -> list[Any]:
    given = dict(zip(call.operands, operands, strict=True))
    linear = {name: given.pop(TANGENTS[name]) for name in DIFFERENTIABLE if TANGENTS[name] in given}
    given = {name: x for name, x in given.items() if name not in TANGENTS.values()}
    cotangent = {name: x for name, x in zip(call.results, cotangents, strict=True) if type(x) is not ad.Zero}
    if TANGENTS["max_logits"] in cotangent:
        raise NotImplementedError("max_logits is part of the loss: it has no gradient, take stop_gradient of it")
    given["d_o"] = cotangent[TANGENTS["o"]] if TANGENTS["o"] in cotangent else jnp.zeros_like(given["o"])
    if TANGENTS["lse"] in cotangent:
        given["d_lse"] = cotangent[TANGENTS["lse"]]
    of_scores = _captures_of_scores(call, given) if has_texts(call) else frozenset()
    linear = {name: x for name, x in linear.items() if name not in CAPTURE_NAMES or name in of_scores}
    results = [name for tensor, name in GRADIENTS.items() if tensor in "qkv" or tensor in linear]
    gradients = bind("backward", given, results, **_constants(call))
    wanted = {
        TANGENTS[name]: _gradient(gradients[GRADIENTS[name]], x.aval)
        for name, x in linear.items()
        if ad.is_undefined_primal(x)
    }
    return [wanted.get(name) for name in call.operands]


def _captures_of_scores(call: Call, given: Tensors) -> frozenset[str]:
    """Those operands that the score depends on as real numbers: others have no gradient."""
    texts: dict[str, Any] = dict(call.attributes)
    names = [name.partition(":")[0] for name in texts.get("capture_names", "").split()]
    operands = dict(zip(names, CAPTURE_NAMES, strict=False))
    captures = {name: given[operand] for name, operand in operands.items()}
    texts["captures"] = captures
    return frozenset(operands[name] for name in differentiable(texts))


def _gradient(gradient: Any, aval: Any) -> Any:
    """Of the tensor's shape and dtype: that of a bias with one row for all queries is their sum."""
    if gradient.shape != aval.shape:
        gradient = gradient.sum(2, keepdims=True)
    return gradient.astype(aval.dtype)


ad.primitive_jvps[call_p] = _jvp
ad.primitive_transposes[call_p] = _transpose
