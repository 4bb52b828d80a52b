# SPDX-License-Identifier: Apache-2.0
"""Attention with gradients for PyTorch: custom operators for autograd, torch.compile and torch.export."""

from torch import distributed

from strobe.torch import autograd, batching, flops, graphs  # noqa: F401 (they register what they hold)
from strobe.torch.functional import attention
from strobe.torch.sdpa import sdpa

if distributed.is_available():
    from strobe.torch import sharding  # noqa: F401

__all__ = ["attention", "sdpa"]
