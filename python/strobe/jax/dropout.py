# SPDX-License-Identifier: Apache-2.0
"""The words of dropout's seed and offset: of numbers, of traced integers and of keys of jax.random."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from strobe import _core

SEEDS = ("seed", "offset")


def random_state(options: dict[str, Any]) -> Array:
    """[4] words, low ones first."""
    if "random_state" in options:
        return jnp.asarray(options["random_state"])
    if "key" in options:
        return jnp.concatenate([_bits(options["key"]), _words("offset", options.get("offset", 0))])
    if not options.keys() & set(SEEDS):
        raise ValueError("dropout is given without a seed: give seed or key, a new one in each call")
    return jnp.concatenate([_words(name, options.get(name, 0)) for name in SEEDS])


def check_key(options: dict[str, Any]) -> None:
    """Raises for what is no key, and for a key beside what it stands for."""
    if "key" not in options:
        return
    for name in ("seed", "random_state"):
        if name in options:
            raise ValueError(f"key and {name} are given: give one of them")
    key = options["key"]
    if not isinstance(key, Array):
        raise TypeError(f"key is of type {type(key).__name__}: it must be a key, as jax.random.key(0) gives it")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed and key.dtype != jnp.uint32:
        raise TypeError(f"key is {key.dtype}: it must be a key, as jax.random.key(0) gives it")
    if key.ndim != (0 if typed else 1):
        raise ValueError(f"key has shape {list(key.shape)}: it must be one key, as jax.random.key(0) gives it")


def _bits(key: Array) -> Array:
    return jax.random.bits(key, (2,), jnp.uint32)


def _words(name: str, number: Any) -> Array:
    """A number of up to 64 bits as two of 32, the low one first."""
    if not isinstance(number, jax.core.Tracer):
        number = _core.unsigned_integer(name, number)
        return jnp.asarray([number & 0xFFFFFFFF, number >> 32], jnp.uint32)
    low = number.astype(jnp.uint32)
    high = (number >> 32).astype(jnp.uint32) if number.dtype.itemsize == 8 else jnp.zeros_like(low)
    return jnp.stack([low, high])
