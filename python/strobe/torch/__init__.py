# SPDX-License-Identifier: Apache-2.0
"""Attention with gradients for PyTorch: custom operators for autograd, torch.compile and torch.export."""

from torch import distributed

from strobe.torch import autograd, batching, flops  # noqa: F401 (what they register is registered when they are imported)
from strobe.torch.functional import attention
from strobe.torch.sdpa import sdpa

if distributed.is_available():
    from strobe.torch import sharding  # noqa: F401

__all__ = ["attention", "sdpa"]
