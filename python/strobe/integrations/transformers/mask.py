# SPDX-License-Identifier: Apache-2.0
"""The mask that a model hands to its layers: to the model a tensor to add to scores, to Strobe options of attention."""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from enum import Enum
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils import _pytree as pytree

from strobe.integrations.transformers.mask_functions import NO_RULE, Rule
from strobe.torch.ops import is_traced

T = TypeVar("T")


class Kind(Enum):
    """How Strobe computes a mask."""

    RULE = "the rule alone"
    USED = "the rule on the first keys and the first queries of each sequence"
    RUN = "the rule on neighbouring keys of each sequence"
    HOLES = "the rule and a bias that hides keys"
    DOCUMENTS = "the rule within documents that lie one after another"
    EXACT = "a bias for each query and key"


@dataclass(frozen=True)
class Plan:
    """What a mask says besides its tensors."""

    kind: Kind
    rule: Rule = NO_RULE
    unused: int = 0
    """So many of the last keys no query sees. Where the rule has a diagonal, the last query is at the last key before
    them."""


TENSORS = ("anchor", "first", "end", "used_q", "tokens", "documents", "cu_seqlens", "exact")


class Mask(Tensor):
    """What "eager" adds to scores, [batch, 1, seqlen_q, seqlen_k], made only where another than Strobe reads it.

    It is 0 where a query sees a key and the least number of its dtype elsewhere, as every model expects it. Every
    operation but detach() sees that tensor, which is kept. Once a model could write to it, it alone counts.

    anchor: an empty tensor of the mask's device and dtype. first, end [batch] int32: the keys of a sequence. used_q
    [batch] int32: how many queries of a sequence there are. tokens [batch, keys] bool: false where a key is hidden.
    documents [batch, keys]: queries see keys with the same number; cu_seqlens int32: where they begin, counted through
    the batch. exact: the mask itself, bool, or the tensor that the model can write to.
    """

    plan: Plan
    anchor: Tensor
    first: Tensor | None
    end: Tensor | None
    used_q: Tensor | None
    tokens: Tensor | None
    documents: Tensor | None
    cu_seqlens: Tensor | None
    exact: Tensor | None
    _dense: Tensor | None
    _derived: dict[Any, Any]

    @staticmethod
    def __new__(cls, plan: Plan, shape: Any, **tensors: Tensor | None) -> "Mask":
        anchor = tensors["anchor"]
        assert anchor is not None
        mask = Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=anchor.dtype, device=anchor.device)
        mask.plan = plan
        for name in TENSORS:
            setattr(mask, name, tensors.get(name))
        mask._dense = None
        mask._derived = {}
        return mask

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __repr__(self, **_: Any) -> str:
        return f"Mask({tuple(self.shape)}, {self.plan})"

    def dense(self) -> Tensor:
        """The tensor to add to scores."""
        if self._dense is None:
            visible = self.visible()
            if visible.dtype == torch.bool:
                zero = torch.zeros((), dtype=self.dtype, device=self.device)
                visible = torch.where(visible, zero, torch.finfo(self.dtype).min)
            self._dense = visible
        return self._dense

    def _hand_out(self) -> None:
        """Its tensor alone counts from now on, since the caller may write to it; not while a compiler traces it."""
        if is_traced(self.anchor):
            return
        self.exact, self.plan = self.dense(), Plan(Kind.EXACT)
        self._derived = {}

    def derived(self, key: Any, make: Callable[[], T]) -> T:
        """What every layer needs of it, made once."""
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]

    def visible(self) -> Tensor:
        """True where a query sees a key, or the tensor that the model can write to."""
        if self.exact is not None:
            return self.exact
        batch, _, seqlen_q, seqlen_k = self.shape
        keys = seqlen_k - self.plan.unused
        k = torch.arange(keys, device=self.device)[None, None, None, :]
        q = torch.arange(seqlen_q, device=self.device)[None, None, :, None] + (keys - seqlen_q)
        first = self.first[:, None, None, None] if self.first is not None else 0
        visible = self.plan.rule.shows(q - first, k - first)
        if self.end is not None:
            visible = visible & (k >= first) & (k < self.end[:, None, None, None])
        if self.tokens is not None:
            visible = visible & self.tokens[:, None, None, :]
        if self.documents is not None:
            visible = visible & (self.documents[:, None, :, None] == self.documents[:, None, None, :])
        return pad(visible, (0, self.plan.unused)).expand(batch, 1, seqlen_q, seqlen_k)

    def __tensor_flatten__(self) -> tuple[list[str], tuple[Any, ...]]:
        """The plan as plain values, which compilers know."""
        plan = (self.plan.kind.name, astuple(self.plan.rule), self.plan.unused)
        return [name for name in TENSORS if getattr(self, name) is not None], plan

    @staticmethod
    def __tensor_unflatten__(tensors: dict[str, Tensor], plan: tuple[Any, ...], size: Any, stride: Any) -> "Mask":
        kind, rule, unused = plan
        return Mask(Plan(Kind[kind], Rule(*rule), unused), size, **tensors)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0]._copy()
        plain_args, plain_kwargs = pytree.tree_map_only(Mask, Mask.dense, (args, kwargs or {}))
        if func._schema.is_mutable or any(output.alias_info is not None for output in func._schema.returns):
            pytree.tree_map_only(Mask, Mask._hand_out, (args, kwargs))
        return func(*plain_args, **plain_kwargs)

    def _copy(self) -> "Mask":
        copy = Mask(self.plan, self.shape, **{name: getattr(self, name) for name in TENSORS})
        copy._dense, copy._derived = self._dense, self._derived
        return copy
