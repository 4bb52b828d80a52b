# SPDX-License-Identifier: Apache-2.0
"""Attention with gradients for PyTorch: custom operators for autograd, torch.compile and torch.export."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import distributed

from strobe.torch import autograd, batching, flops, graphs  # noqa: F401 (they register what they hold)
from strobe.torch.dtensor import register_when_loaded
from strobe.torch.flex import create_block_mask, flex_attention
from strobe.torch.functional import attention
from strobe.torch.sdpa import sdpa
from strobe.torch.sparse import sparse_attention

if TYPE_CHECKING:
    from strobe.torch.context_parallel import ContextParallel, Shard, shard_attention

if distributed.is_available():
    register_when_loaded()

__all__ = [
    "ContextParallel",
    "Shard",
    "attention",
    "create_block_mask",
    "flex_attention",
    "sdpa",
    "shard_attention",
    "sparse_attention",
]


def __getattr__(name: str) -> Any:
    """What is for many devices is imported when it is first used, since it loads PyTorch's compiler."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("strobe.torch.context_parallel"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
