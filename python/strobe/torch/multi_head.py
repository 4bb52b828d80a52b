# SPDX-License-Identifier: Apache-2.0
"""PyTorch's multi_head_attention_forward with another scaled_dot_product_attention in it.

Under a mode PyTorch hands the whole function over and runs its body with the mode off, so that the call in it is not
seen. The copy has the same code; what some of its names stand for is all that differs.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import Tensor
from torch.nn import functional


def with_attention(attention: Callable[..., Any]) -> Callable[..., Any]:
    """multi_head_attention_forward that calls `attention`; PyTorch's own where its code does not have the names."""
    original = functional.multi_head_attention_forward
    names = {
        "scaled_dot_product_attention": attention,
        "has_torch_function": _has_none,
        "_check_key_padding_mask": _check_key_padding_mask,
    }
    if not names.keys() <= set(original.__code__.co_names):
        return original
    names = vars(functional) | names
    del names["__name__"]  # by which torch.compile would look the others up in PyTorch's module
    copy = FunctionType(original.__code__, names, original.__name__, original.__defaults__)
    copy.__kwdefaults__ = original.__kwdefaults__
    return copy


def _has_none(tensors: Any) -> bool:
    """The mode that calls the copy has looked: other modes see what the body calls."""
    return False


def _check_key_padding_mask(mask: Tensor, seqlen_k: int, batch: int) -> None:
    """PyTorch's does not compile where it is inlined."""
    if mask.shape != (batch, seqlen_k):
        raise AssertionError(f"key_padding_mask has shape {list(mask.shape)}: it must be {[batch, seqlen_k]}")
