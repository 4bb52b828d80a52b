# SPDX-License-Identifier: Apache-2.0
"""The list of _options.py as values: names, kinds, defaults and texts."""

import ast
import inspect
import sys
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from strobe import _options
from strobe._options import EightBitOptions, Options, ScoreOptions, Tensor

Kind = Literal["tensor", "number", "integer", "word", "flag", "other"]

_KINDS: dict[Any, Kind] = {float: "number", float | Tensor | None: "number", int: "integer", bool: "flag"}


class Option(NamedTuple):
    """One option of a call."""

    name: str
    kind: Kind
    type_name: str
    default: Any
    text: str
    """Its meaning, as one paragraph."""


def _option(name: str, annotation: Any, text: str) -> Option:
    """From a field's annotation; Annotated[Annotated[..], ..] has come as one list of metadata."""
    kinds: list[Kind] = []
    default = None
    if get_origin(annotation) is Annotated:
        annotation, *metadata = get_args(annotation)
        kinds = [x for x in metadata if x in ("tensor", "word")]
        default = next((x for x in metadata if x not in kinds), None)
    kind = kinds[0] if kinds else _KINDS.get(annotation, "other")
    return Option(name, kind, "Tensor" if kind == "tensor" else type_name(annotation), default, " ".join(text.split()))


def type_name(annotation: Any) -> str:
    """As a reader writes it: "Tensor | None"."""
    if get_origin(annotation) is Annotated:
        return "Tensor" if "tensor" in get_args(annotation) else type_name(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join("None" if x is type(None) else type_name(x) for x in get_args(annotation))
    if get_origin(annotation) is dict:
        return f"dict[{', '.join(map(type_name, get_args(annotation)))}]"
    if get_origin(annotation) is tuple:
        return f"tuple[{', '.join('...' if x is Ellipsis else type_name(x) for x in get_args(annotation))}]"
    return inspect.formatannotation(annotation).removeprefix("typing.").replace("'", '"')


def _texts() -> dict[str, dict[str, str]]:
    """The docstrings below each type's fields, which Python does not keep; none where the source is not installed."""
    try:
        tree = ast.parse(inspect.getsource(_options))
    except OSError:
        return {}
    texts: dict[str, dict[str, str]] = {}
    for node in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        texts[node.name] = {}
        for base in (base.id for base in node.bases if isinstance(base, ast.Name)):
            texts[node.name] |= texts.get(base, {})
        for field, text in pairwise(node.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(value))):
                    texts[node.name][name] = value
    return texts


_TEXTS = _texts()


def options_of(kind: Any) -> dict[str, Option]:
    """The fields of a TypedDict of _options.py, by name."""
    texts = _TEXTS.get(kind.__name__, {})
    return {name: _option(name, annotation, texts.get(name, "")) for name, annotation in kind.__annotations__.items()}


OPTIONS = options_of(Options)
"""Every option of a call, by name."""
SCORE_NAMES = tuple(ScoreOptions.__annotations__)
EIGHT_BIT_NAMES = tuple(EightBitOptions.__annotations__)
MOST_CAPTURES = 8
CAPTURE_NAMES = tuple(f"capture_{i}" for i in range(MOST_CAPTURES))
"""What operators call the captures of a call, in the order of their names."""


def names_of(kind: Kind, names: Collection[str] = OPTIONS.keys()) -> tuple[str, ...]:
    """Those of the names whose option is of this kind, in the order of the list."""
    return tuple(name for name, option in OPTIONS.items() if option.kind == kind and name in names)


def is_seeded(options: Mapping[str, Any]) -> bool:
    """Whether the options say which random numbers dropout takes."""
    return any(options.get(name) is not None for name in ("seed", "offset", "random_state"))


def reject_texts(function: str, options: Mapping[str, Any]) -> None:
    """NotImplementedError for texts, and what has no lse, in a call whose queries and keys lie on several devices."""
    if not is_normalized(options):
        raise NotImplementedError(f'normalize is "none": {function} merges parts by their lse')
    for name in ("score", "mask_text", "captures"):
        if options.get(name) is not None:
            raise NotImplementedError(f"{name} is given: {function} has no texts; give bias, mask, causal or window")


def is_normalized(options: Mapping[str, Any]) -> bool:
    """Whether rows of probabilities are divided by their sums, which lse is the logarithm of."""
    return options.get("normalize") != "none"


def check_outputs_of_softmax(options: Mapping[str, Any], return_lse: bool, return_max_logits: bool) -> None:
    """ValueError for a result that a call without a softmax does not have."""
    if is_normalized(options) or not (return_lse or return_max_logits):
        return
    name = "return_lse" if return_lse else "return_max_logits"
    raise ValueError(f'{name} is given with normalize="none": it belongs to the softmax')


def captures_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The captures of a call, by name; TypeError for what is no dict."""
    captures = options.get("captures")
    if captures is None:
        return {}
    if not isinstance(captures, dict):
        raise TypeError(f"captures is of type {type(captures).__name__}: it must be a dict of names and tensors")
    return captures


# What is given here for what other libraries call by another name.
_NAMES_ELSEWHERE = {
    "attn_mask": "mask, whose rank 2 is [batch, seqlen_k], or call PyTorch's function in strobe.torch.sdpa()",
    "attention_mask": "mask",
    "key_padding_mask": "mask, the other way around: True where a key is visible",
    "attn_bias": "bias",
    "is_causal": 'causal: "top_left" is what is_causal means, True aligns to the last key',
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "dropout_p": "dropout",
    "window_size": "window",
    "attention_chunk": "chunk",
    "logits_soft_cap": "softcap",
    "s_aux": "sink",
    "block_table": "page_table",
    "cache_seqlens": "seqused_k",
    "cache_leftpad": "leftpad_k",
    "return_attn_probs": "return_lse",
    "return_softmax_lse": "return_lse",
    "enable_gqa": "k and v with fewer heads than q, which needs no flag",
}


def check_options(function: str, options: Mapping[str, Any], accepted: Collection[str] = OPTIONS.keys()) -> None:
    """TypeError for an option that the function, a public one, does not accept."""
    unknown = options.keys() - accepted
    if not unknown:
        return
    name = min(unknown)
    wrong = f"{name} is no option of {function}"
    known = [*accepted, *_parameters(function)]
    instead = _NAMES_ELSEWHERE.get(name, "")
    if instead.partition(" ")[0].strip(",:") in known:
        raise TypeError(f"{wrong}: give {instead}")
    if name in OPTIONS and function == "strobe.torch.attention":
        raise TypeError(f"{wrong}: call strobe.attention, which has it, without gradients")
    near = get_close_matches(name, known, n=1)
    if near:
        raise TypeError(f"{wrong}: did you mean {near[0]}?")
    raise TypeError(f"{wrong}: the options are {', '.join(accepted)}")


def _parameters(function: str) -> list[str]:
    module, _, name = function.rpartition(".")
    return list(inspect.signature(getattr(sys.modules[module], name)).parameters)
