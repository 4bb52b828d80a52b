# SPDX-License-Identifier: Apache-2.0
"""Attention with gradients for PyTorch: custom operators for autograd, torch.compile and torch.export."""

from torch import distributed

from strobe.torch import autograd, batching, flops, graphs  # noqa: F401 (they register what they hold)
from strobe.torch.context_parallel import ContextParallel, Shard, shard_attention
from strobe.torch.dtensor import register_when_loaded
from strobe.torch.functional import attention
from strobe.torch.sdpa import sdpa

if distributed.is_available():
    register_when_loaded()

__all__ = ["ContextParallel", "Shard", "attention", "sdpa", "shard_attention"]
