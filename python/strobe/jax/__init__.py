# SPDX-License-Identifier: Apache-2.0
"""Attention with gradients for JAX: a custom call of XLA's, under jit, grad, vmap and on any device Strobe has."""

from strobe.jax.functional import attention
from strobe.jax.quantize import run_quantize, values_or_shapes  # noqa: F401 (of strobe.quantize)

__all__ = ["attention"]
