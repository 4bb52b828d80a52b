# SPDX-License-Identifier: Apache-2.0
"""Score and mask texts of a call, whatever framework its tensors are of. docs/expressions.md has the language."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from strobe import _core
from strobe._option_list import captures_of
from strobe._options import Tensor
from strobe._shapes import check_tensors, dtype_name, tensor_shape, wrong_type


class ScoreFunction:
    """What becomes of a score and which keys a query sees, as texts say, with the tensors that they read.

    ``score`` is the new value of ``score``, ``mask`` says whether query ``q`` sees key ``k``; one of them must be
    given. ``captures`` are tensors of float32, float16, bfloat16, int32, int64, uint8 or bool, of rank 0 to 4, by the
    names that the texts have for them. The function is the option ``score`` of a call, whose own ``captures`` come
    before those of the same name here; nothing is copied. Calls with equal texts, names, dtypes and ranks share what
    was parsed.

    Raises ValueError for a text that is wrong, with the column, and for a capture that no text reads; TypeError for
    what is no text and no tensor.

    Example:

        slope = np.array([0.5, 0.25], np.float32)
        function = strobe.ScoreFunction("score + slope[head] * (k - q)", "k <= q", {"slope": slope})
        print(function.explain())
    """

    __slots__ = ("_function", "captures", "mask", "score")

    def __init__(
        self, score: str | None = None, mask: str | None = None, captures: Mapping[str, Tensor] | None = None
    ) -> None:
        _refuse_functions(score=score, mask=mask)
        for name, text in (("score", score), ("mask", mask)):
            if text is not None and not isinstance(text, str):
                raise wrong_type(name, text, "text")
        self.score, self.mask = score, mask
        self.captures = dict(captures or {})
        self._function = _function(score, mask, _types(self.captures))

    def explain(self) -> str:
        """The simplified texts, their derivatives by the score and by every capture, and how gradients are summed."""
        return self._function.explain()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are parsed anew, with copies of the captures."""
        return type(self), (self.score, self.mask, self.captures)

    def __repr__(self) -> str:
        texts = [f"{name}={text!r}" for name, text in (("score", self.score), ("mask", self.mask)) if text is not None]
        captures = [f"captures={sorted(self.captures)}"] if self.captures else []
        return f"ScoreFunction({', '.join(texts + captures)})"


def unpack(mask: Any, options: Any) -> Any:
    """The mask that is a tensor, or None: a mask that is text, and a ScoreFunction, become the options of texts."""
    _refuse_functions(mask=mask, score=options.get("score"), mask_text=options.get("mask_text"))
    if isinstance(mask, str):
        if options.get("mask_text") is not None:
            raise ValueError("mask is text, and mask_text is given, too: join the two by &&")
        options["mask_text"] = mask
        mask = None
    function = options.get("score")
    if isinstance(function, ScoreFunction):
        options["score"] = function.score
        if function.mask is not None:
            if options.get("mask_text") is not None:
                raise ValueError("score has a mask, and a text is given as one, too: join the two by &&")
            options["mask_text"] = function.mask
        captures = options.get("captures")
        options["captures"] = {**function.captures, **(captures or {})} or None
    return mask


def _refuse_functions(**given: Any) -> None:
    """TypeError for functions of Python in the place of texts, as FlexAttention takes them."""
    for name, value in given.items():
        if callable(value) and not isinstance(value, type):
            instead = "write it as text, or call strobe.torch.flex_attention, which takes functions"
            raise TypeError(f"{name} is a Python function: {instead}")


def differentiable(options: Mapping[str, Any]) -> frozenset[str]:
    """The names of the captures that the score of a call has a gradient for."""
    captures = captures_of(options)
    if not captures:
        return frozenset()
    return _differentiable(options.get("score"), options.get("mask_text"), _types(captures))


def check_texts(options: Mapping[str, Any]) -> None:
    """Raises what the call would say of its texts, from the dtypes and ranks of its captures alone."""
    texts = options.get("score"), options.get("mask_text")
    if texts != (None, None):
        _differentiable(*texts, _types(captures_of(options)))


def keep_hidden(options: Any, *, look: bool = True) -> None:
    """Lets a score's text leave -inf as it is, by which a mask that becomes a bias hides a key: tanh(-inf) is -1.

    A text that adds to a multiple of the score does so by itself, which a compiler cannot ``look`` for.
    """
    score = options.get("score")
    if not isinstance(score, str) or score == "":
        return
    if not look or not _function(score, options.get("mask_text"), _types(captures_of(options))).keeps_hidden:
        options["score"] = f"score == -inf ? -inf : ({score})"


Types = tuple[tuple[str, str, int], ...]
"""Name, dtype and rank of each capture."""


def _types(captures: Mapping[str, Any]) -> Types:
    check_tensors(**{f"capture `{name}`": x for name, x in captures.items()})
    return tuple((name, dtype_name(x.dtype), x.ndim) for name, x in captures.items())


def _function(score: str | None, mask: str | None, types: Types) -> _core.ScoreFunction:
    captures = {name: tensor_shape((1,) * rank, dtype, "cpu") for name, dtype, rank in types}
    return _core.ScoreFunction(score or "", mask or "", captures)


@lru_cache(maxsize=256)
def _differentiable(score: str | None, mask: str | None, types: Types) -> frozenset[str]:
    return frozenset(_function(score, mask, types).differentiable)
