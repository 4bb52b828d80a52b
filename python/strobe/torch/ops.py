# SPDX-License-Identifier: Apache-2.0
"""torch.ops.strobe.attention and its backward, as PyTorch's dispatcher, autograd and compilers know them.

Both are functions of tensors and plain values: what is optional is None, and a result that was not asked for is an
empty tensor, since an operator returns the same things in every call.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import NoneType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from strobe import _core
from strobe._expressions import check_texts, differentiable
from strobe._frameworks import framework_of
from strobe._frameworks.torch import draw_random
from strobe._option_list import (
    CAPTURE_NAMES,
    EIGHT_BIT_NAMES,
    MOST_CAPTURES,
    OPTIONS,
    SCORE_NAMES,
    captures_of,
    check_options,
    is_normalized,
    is_seeded,
    names_of,
)
from strobe._options import ScoreOptions
from strobe._shapes import lse_shape, max_logits_shape, output_shape
from strobe.torch import checks

_SCHEMAS = {"number": "float", "integer": "SymInt", "flag": "bool"}


def schemas_of(names: Collection[str]) -> dict[str, str]:
    """The operators' arguments for options with their types: tensors first, "other" options as operators take them."""
    tensors = [name for name in names_of("tensor", names) if name != "random_state"]
    if "captures" in names:
        tensors += CAPTURE_NAMES
    # In place of seed, offset and random_state the operators take their words, "random".
    schemas = dict.fromkeys([*tensors, "random"], "Tensor?")
    for name in names:
        option = OPTIONS[name]
        if name in ("causal", "normalize"):
            schemas[name] = "str"
        elif name == "window":
            schemas |= {"window_left": "SymInt", "window_right": "SymInt"}
        elif name in ("engine", "kernels", "score", "mask_text"):
            schemas[name] = "str?"
        elif name == "captures":
            schemas["capture_names"] = "str?"
        elif name == "v_rotation":
            schemas[name] = "SymInt?"
        elif option.kind in _SCHEMAS:
            schemas[name] = _SCHEMAS[option.kind] + ("?" if option.default is None else "")
    return schemas


_ARGUMENTS = schemas_of(SCORE_NAMES)
TENSOR_NAMES = tuple(name for name, schema in _ARGUMENTS.items() if schema == "Tensor?")
VALUE_NAMES = tuple(name for name in _ARGUMENTS if name not in TENSOR_NAMES)

_NAMES = frozenset(SCORE_NAMES)


SCHEMA = ", ".join(f"{schema} {name}" for name, schema in _ARGUMENTS.items())
LIBRARY = torch.library.Library("strobe", "DEF")
LIBRARY.define(
    f"attention(Tensor q, Tensor k, Tensor v, {SCHEMA}, bool return_max_logits) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)
LIBRARY.define(
    f"attention_backward(Tensor d_o, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, {SCHEMA}, "
    "bool needs_d_bias, bool needs_d_sink, int needs_d_captures) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


# What nothing but PyTorch itself looks at, of an option's values too.
_PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter, NoneType, bool, int, float, str, tuple})
_functorch_transform = torch._C._functorch.peek_interpreter_stack  # the one that vmap or grad runs now, or None


def is_traced(*values: Any) -> bool:
    """Something must see the operators: a compiler, a mode, a transform, or tensors of a type of their own.

    All other calls can do without the dispatcher, which costs several times the call itself.
    """
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode() or _functorch_transform() is not None:
        return True
    for value in values:  # noqa: SIM110 (any() takes twice as long)
        if type(value) not in _PLAIN_TYPES and isinstance(value, Tensor):
            return True
    return False


def check_names(options: Mapping[str, Any]) -> None:
    """TypeError for an option that there is not, NotImplementedError for one of calls that nothing may record."""
    if options.keys() <= _NAMES:
        return
    of_8_bits = next((name for name in EIGHT_BIT_NAMES if name in options), None)
    if of_8_bits is not None:
        raise NotImplementedError(
            f"{of_8_bits} is given: calls on 8 bits have neither gradients nor an operator that torch.compile and "
            "torch.export see; call strobe.attention on detached tensors, outside of what is compiled"
        )
    check_options("strobe.torch.attention", options, SCORE_NAMES)


def operator_arguments(
    q: Tensor, k: Tensor, v: Tensor, options: ScoreOptions, return_max_logits: bool = False
) -> tuple[Any, ...]:
    """What torch.ops.strobe.attention takes for such a call."""
    check_names(options)
    checks.check_layouts(q=q, k=k, v=v)
    checks.check_dtypes(q=q, k=k, v=v)
    return (q, k, v, *arguments_of(q, options, _ARGUMENTS), return_max_logits)


def arguments_of(q: Tensor, options: Mapping[str, Any], schemas: Mapping[str, str]) -> tuple[Any, ...]:
    """The options as schemas_of() names them."""
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    tensors = tuple(name for name, schema in schemas.items() if schema == "Tensor?")
    given |= checks.tensors_of(given, (*tensors, "random_state"))
    checks.check_values(given)
    checks.check_texts(given)
    checks.check_normalize(given)
    left, right = checks.window_of(given)
    causal = checks.causal_of(given)
    given |= {"causal": causal, "window_left": left, "window_right": right, "random": _random(q, given)}
    if "captures" in given:
        given |= _captures(given)
    return tuple(given[name] if name in given else _default(name) for name in schemas)


def _captures(options: Mapping[str, Any]) -> dict[str, Any]:
    """The captures of a call as the operators' arguments."""
    captures = captures_of(options)
    if len(captures) > MOST_CAPTURES:
        raise ValueError(f"captures: {len(captures)} are given, {MOST_CAPTURES} are the most")
    names = sorted(captures)
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"captures: `{name}` is not a name of at most 32 letters, digits and underscores")
    tensors = checks.tensors_of(captures, tuple(names))
    return {"capture_names": " ".join(names), **dict(zip(CAPTURE_NAMES, tensors.values(), strict=False))}


def _default(name: str) -> Any:
    return OPTIONS[name].default if name in OPTIONS else None


def _random(q: Tensor, options: dict[str, Any]) -> Tensor | None:
    """Seed and offset as a tensor, since compiled graphs take new ones as data and not as code."""
    pair = [checks.word(name, options.get(name, 0)) for name in ("seed", "offset")]
    if not options.get("dropout"):
        return None
    if hasattr(q, "device_mesh"):
        raise NotImplementedError("dropout of DTensors: their parts would drop by their own places, not by the whole's")
    if options.get("random_state") is not None:
        return options["random_state"].view(torch.int64)
    if not is_seeded(options):
        return draw_random(q)
    return torch.tensor(pair, dtype=torch.int64)


def keywords(options: tuple[Any, ...], schemas: Mapping[str, str] = _ARGUMENTS) -> dict[str, Any]:
    """The operators' options, in the order of their schemas, as strobe._core takes them."""
    named = dict(zip(schemas, options, strict=True))
    captures = [named.pop(name) for name in CAPTURE_NAMES]
    if (names := named.pop("capture_names")) is not None:
        named["captures"] = dict(zip(names.split(" "), captures, strict=False))
    random = named.pop("random")
    if random is not None and random.is_cuda:
        named["random_state"] = random.view(torch.int32)
    elif random is not None:
        named["seed"], named["offset"] = (number % 2**64 for number in random.tolist())
    named["window"] = (named.pop("window_left"), named.pop("window_right"))
    if named["causal"] == "none":
        del named["causal"]
    if named["normalize"] == "softmax":
        del named["normalize"]
    return named


def lse_of_softmax(lse: Tensor, options: Mapping[str, Any]) -> Tensor | None:
    """The lse that a forward writes: none where there is no softmax, and then all of it becomes -inf here."""
    if is_normalized(options):
        return lse
    lse.fill_(-torch.inf)
    return None


def empty_outputs(q: Tensor, v: Tensor, cu_seqlens_q: Tensor | None, max_logits: bool) -> tuple[Tensor, ...]:
    """o, lse and max_logits, the last without elements where it is not wanted."""
    shape = max_logits_shape(q, cu_seqlens_q) if max_logits else (0,)
    return (
        q.new_empty(output_shape(q, v)),
        q.new_empty(lse_shape(q), dtype=torch.float32),
        q.new_empty(shape, dtype=torch.float32),
    )


def forward(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *options, return_max_logits = arguments
    named = keywords(tuple(options))
    outputs = empty_outputs(q, v, named["cu_seqlens_q"], return_max_logits)
    o, lse, max_logits = outputs
    _core.forward(q, k, v, o, lse_of_softmax(lse, named), max_logits if return_max_logits else None, **named)
    return outputs


def forward_fake(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    check_texts(_texts(arguments))
    return empty_outputs(q, v, arguments[TENSOR_NAMES.index("cu_seqlens_q")], arguments[-1])


def _texts(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Of the operators' arguments, score, mask_text and captures as options."""
    named = dict(zip(_ARGUMENTS, arguments, strict=False))
    texts = {name: named[name] for name in ("score", "mask_text")}
    names = named["capture_names"]
    captures = (
        {} if names is None else {name: named[at] for name, at in zip(names.split(" "), CAPTURE_NAMES, strict=False)}
    )
    return texts | {"captures": captures}


def wanted_captures(arguments: tuple[Any, ...], needs: Collection[str]) -> int:
    """A bit for each capture among those arguments of the operators that ``needs`` names and the score depends on."""
    texts = _texts(arguments)
    names = differentiable(texts)
    pairs = enumerate(zip(texts["captures"], CAPTURE_NAMES, strict=False))
    return sum(1 << i for i, (name, argument) in pairs if argument in needs and name in names)


def split_captures(d_captures: Tensor, captures: Sequence[Tensor], wanted: int) -> list[Tensor | None]:
    """The gradients that lie one behind the other in ``d_captures``: of the captures that have a bit of ``wanted``."""
    gradients: list[Tensor | None] = []
    at = 0
    for i, capture in enumerate(captures):
        if wanted >> i & 1:
            gradients.append(d_captures.narrow(0, at, capture.numel()).view(capture.shape))
            at += capture.numel()
        else:
            gradients.append(None)
    return gradients


def _empty_gradients(q: Tensor, k: Tensor, v: Tensor, options: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """dq, dk and dv as dense rows, then d_bias, d_sink and d_captures, without elements where they are not wanted."""
    *_, needs_d_bias, needs_d_sink, needs_d_captures = options
    captures = [options[TENSOR_NAMES.index(name)] for name in CAPTURE_NAMES]
    size = sum(x.numel() for i, x in enumerate(captures) if needs_d_captures >> i & 1)
    bias, sink = (options[TENSOR_NAMES.index(name)] for name in ("bias", "sink"))
    return (
        *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v)),
        q.new_empty(bias.shape if needs_d_bias else (0,), dtype=torch.float32),
        q.new_empty(sink.shape if needs_d_sink else (0,), dtype=torch.float32),
        q.new_empty((size,), dtype=torch.float32),
    )


def backward(
    d_o: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    *options, needs_d_bias, needs_d_sink, needs_d_captures = arguments
    gradients = _empty_gradients(q, k, v, arguments)
    dq, dk, dv, d_bias, d_sink, d_captures = gradients
    named = keywords(tuple(options))
    captures = named.get("captures", {})
    of_captures = dict(zip(captures, split_captures(d_captures, [*captures.values()], needs_d_captures), strict=True))
    _core.backward(
        *(d_o, q, k, v, o, lse if is_normalized(named) else None, d_lse, dq, dk, dv),
        *(d_bias if needs_d_bias else None, d_sink if needs_d_sink else None),
        framework_of(q).workspace_allocator(q, None),
        {name: x for name, x in of_captures.items() if x is not None},
        **named,
    )
    return gradients


def backward_fake(
    d_o: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    return _empty_gradients(q, k, v, arguments)


def rows(tensor: Tensor) -> Tensor:
    """The tensor itself if its last axis is dense, as every engine needs it, else a copy."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()


def _register(name: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> None:
    for device in ("CPU", "CUDA"):
        LIBRARY.impl(name, compute, device)
    torch.library.register_fake(f"strobe::{name}", fake, lib=LIBRARY)


_register("attention", forward, forward_fake)
_register("attention_backward", backward, backward_fake)
