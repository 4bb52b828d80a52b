# SPDX-License-Identifier: Apache-2.0
"""Activation checkpointing under ``sdpa()``: what is computed again in the backward runs on Strobe, too.

PyTorch runs the recomputation outside of every mode: in the backward's thread, or inside of Tensor.backward, whose body
runs with the modes off. So the function that is checkpointed carries the mode with it.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch.utils.checkpoint as torch_checkpoint

# What torch.utils.checkpoint.checkpoint calls by these names, whoever has kept a reference to checkpoint itself.
_REENTRANT = "CheckpointFunction"
_NON_REENTRANT = "_checkpoint_without_reentrant_generator"

_lock = threading.Lock()
_entered = 0
_originals: dict[str, Any] = {}


def enter(carried: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """From here to leave() checkpoints run ``carried(function)`` in the place of their function."""
    global _entered
    with _lock:
        _entered += 1
        if _entered > 1:
            return
        for name in (_REENTRANT, _NON_REENTRANT):
            _originals[name] = getattr(torch_checkpoint, name)
        for name, function in _carrying(carried, _originals[_REENTRANT], _originals[_NON_REENTRANT]).items():
            setattr(torch_checkpoint, name, function)


@functools.lru_cache(maxsize=1)  # a class takes longer to make than a short call to attention
def _carrying(carried: Callable[..., Any], reentrant: Any, non_reentrant: Any) -> dict[str, Any]:
    """What checkpoint calls, by its names, in the place of these two of PyTorch's."""

    class Carrying(reentrant):
        @staticmethod
        def apply(function: Callable[..., Any], *args: Any) -> Any:
            return reentrant.apply(carried(function), *args)

    @functools.wraps(non_reentrant)
    def carrying(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return non_reentrant(carried(function), *args, **kwargs)

    return {_REENTRANT: Carrying, _NON_REENTRANT: carrying}


def leave() -> None:
    """Ends what enter() began; the last one that leaves puts PyTorch's own back."""
    global _entered
    with _lock:
        _entered -= 1
        if _entered == 0:
            for name, original in _originals.items():
                setattr(torch_checkpoint, name, original)
            _originals.clear()
