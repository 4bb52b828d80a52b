# SPDX-License-Identifier: Apache-2.0
"""JAX's arrays, which nothing writes to: strobe.jax makes calls of them a part of XLA's programs."""

from strobe._frameworks.base import Framework


class Jax(Framework):
    name = "jax"
