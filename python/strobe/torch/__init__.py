# SPDX-License-Identifier: Apache-2.0
"""Attention with gradients for PyTorch: custom operators for autograd, torch.compile and torch.export."""

from strobe.torch import batching  # noqa: F401 (its rules are registered when it is imported)
from strobe.torch.functional import attention
from strobe.torch.sdpa import sdpa

__all__ = ["attention", "sdpa"]
