# SPDX-License-Identifier: Apache-2.0
"""Which options of attention a mask function of transformers stands for.

transformers composes the mask of a layer from a few functions of its own: causal, windows, chunks, packed sequences.
A function is recognised by its code, never by its name, and the code of a release counts only after its values on a
small grid have been compared with the rule below. Whatever is not recognised gives None: its mask is then computed
element by element.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

OPEN = -1
"""A side of a window without a bound, as in Strobe's option."""


@dataclass(frozen=True)
class Rule:
    """Which keys a query sees by their positions, as Strobe's options say it."""

    causal: bool = False
    left: int = OPEN
    right: int = OPEN
    chunk: int = 0

    @property
    def has_diagonal(self) -> bool:
        """Whether it depends on the position of the query."""
        return self.causal or self.chunk > 0 or (self.left, self.right) != (OPEN, OPEN)

    def within(self, keys: int) -> "Rule":
        """Without the bounds that no two positions among `keys` neighbouring ones can violate."""
        left = OPEN if self.left >= keys - 1 else self.left
        right = OPEN if self.causal or self.right >= keys - 1 else self.right
        return replace(self, left=left, right=right)

    def shows(self, q: Tensor, k: Tensor) -> Tensor:
        """Whether the query at position q sees the key at position k, by broadcasting."""
        visible = (q == q) & (k == k)
        if self.causal:
            visible = visible & (k <= q)
        if self.left != OPEN:
            visible = visible & (k >= q - self.left)
        if self.right != OPEN:
            visible = visible & (k <= q + self.right)
        if self.chunk:
            visible = visible & (k // self.chunk == q // self.chunk)
        return visible


NO_RULE = Rule()
"""Every query sees every key."""


@dataclass(frozen=True)
class Form:
    """A recognised mask function."""

    rule: Rule
    chunk_start: Tensor | None = None
    """[batch]: the position at which the first chunk of each sequence begins."""
    documents: Tensor | None = None
    """[batch, seqlen]: tokens see each other only where these are equal."""
    positions: Tensor | None = None
    """[batch, seqlen]: what the rule takes as positions, in place of the tokens' places in the batch."""


def recognise(function: Callable[..., Any]) -> Form | None:
    known = _known()
    if function is masking_utils.causal_mask_function:
        return Form(Rule(causal=True)) if "causal" in known else None
    if function is getattr(masking_utils, "bidirectional_mask_function", None):
        return Form(Rule()) if "all" in known else None
    part = _parts().get(getattr(function, "__code__", None))
    if part is None or part not in known:
        return None
    return _COMPOSE[part](_captured(function))


def _captured(function: Any) -> dict[str, Any]:
    """The variables that a function took from where it was made."""
    cells = function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells, strict=True)}


def _all_of(captured: dict[str, Any]) -> Form | None:
    form: Form | None = Form(Rule())
    for function in captured["mask_functions"]:
        part = recognise(function)
        form = None if form is None or part is None else _both(form, part)
    return form


def _both(a: Form, b: Form) -> Form | None:
    """The keys that both show, or None where one Form cannot say it."""
    once = ("chunk_start", "documents", "positions")
    if any(getattr(a, name) is not None and getattr(b, name) is not None for name in once):
        return None
    if a.rule.chunk and b.rule.chunk:
        return None
    if (a.positions is not None and b.rule.has_diagonal) or (b.positions is not None and a.rule.has_diagonal):
        return None
    rule = Rule(
        a.rule.causal or b.rule.causal,
        _narrower(a.rule.left, b.rule.left),
        _narrower(a.rule.right, b.rule.right),
        a.rule.chunk or b.rule.chunk,
    )
    return Form(rule, *(getattr(a, name) if getattr(a, name) is not None else getattr(b, name) for name in once))


def _narrower(a: int, b: int) -> int:
    return max(a, b) if OPEN in (a, b) else min(a, b)


def _window(captured: dict[str, Any]) -> Form | None:
    window = captured["sliding_window"]
    return Form(Rule(left=window - 1)) if isinstance(window, int) and window > 0 else None


def _window_on_both_sides(captured: dict[str, Any]) -> Form | None:
    window = captured["sliding_window"]
    return Form(Rule(left=window, right=window)) if isinstance(window, int) and window >= 0 else None


def _chunks(captured: dict[str, Any]) -> Form | None:
    chunk, start = captured["chunk_size"], captured["left_padding"]
    if not isinstance(chunk, int) or chunk <= 0 or not isinstance(start, Tensor) or start.dim() != 1:
        return None
    return Form(Rule(chunk=chunk), chunk_start=start)


def _documents(captured: dict[str, Any]) -> Form | None:
    return Form(Rule(), documents=captured["packed_sequence_mask"])


def _moved(captured: dict[str, Any]) -> Form | None:
    form = recognise(captured["mask_function"])
    if form is None or form.documents is not None or form.positions is not None:
        return None
    return replace(form, positions=captured["position_ids"])


_COMPOSE: dict[str, Callable[[dict[str, Any]], Form | None]] = {
    "and": _all_of,
    "window": _window,
    "window on both sides": _window_on_both_sides,
    "chunks": _chunks,
    "documents": _documents,
    "moved": _moved,
}


def _made(name: str, *arguments: Any) -> Any:
    """What the function called `name` of transformers makes of these, or None where this release has no such one."""
    factory = getattr(masking_utils, name, None)
    return None if factory is None else factory(*arguments)


_GRID = 7


def _examples() -> dict[str, tuple[Any, Callable[[Tensor, Tensor], Tensor]]]:
    """Of each part, a mask function with values chosen here, and what it must say of positions q and k."""
    start, ids = (torch.tensor(x, device="cpu") for x in ([2], [[0, 0, 1, 1, 1, 2, 2]]))
    moved, causal = torch.tensor([[3, 4, 0, 1, 2, 0, 1]], device="cpu"), masking_utils.causal_mask_function
    window = _made("sliding_window_overlay", 3)
    return {
        "causal": (causal, Rule(causal=True).shows),
        "all": (getattr(masking_utils, "bidirectional_mask_function", None), Rule().shows),
        "window": (window, Rule(left=2).shows),
        "and": (masking_utils.and_masks(window, causal) if window else None, Rule(causal=True, left=2).shows),
        "window on both sides": (
            _made("sliding_window_bidirectional_overlay", 2),
            Rule(left=2, right=2).shows,
        ),
        "chunks": (_made("chunked_overlay", 3, start), lambda q, k: Rule(chunk=3).shows(q - 2, k - 2)),
        "documents": (_made("packed_sequence_mask_function", ids), lambda q, k: ids[0, q] == ids[0, k]),
        "moved": (
            _made("remap_positions_for_packed_sequence", causal, moved),
            lambda q, k: moved[0, k] <= moved[0, q],
        ),
    }


@functools.cache
def _parts() -> dict[Any, str]:
    """The code of the functions that take variables from where they are made."""
    return {function.__code__: name for name, (function, _) in _examples().items() if name in _COMPOSE and function}


@functools.cache
def _known() -> frozenset[str]:
    """The parts that mean in this release what they mean here."""
    place = torch.arange(_GRID, device="cpu")
    q, k = place[None, None, :, None], place[None, None, None, :]
    batch = head = place[:1, None, None, None]

    def agrees(function: Any, expected: Callable[[Tensor, Tensor], Tensor]) -> bool:
        if function is None:
            return False
        shown = function(batch, head, q, k).expand(1, 1, _GRID, _GRID)
        return torch.equal(shown, expected(q, k).expand(1, 1, _GRID, _GRID))

    return frozenset(name for name, (function, expected) in _examples().items() if agrees(function, expected))
