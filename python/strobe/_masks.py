# SPDX-License-Identifier: Apache-2.0
"""Dropout's mask, and the usual patterns of block_mask."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from strobe import _core
from strobe._shapes import wrong_type

Mask = Any
"""A NumPy array of uint8."""


def dropout_mask(shape: tuple[int, int, int, int], dropout: float, *, seed: int = 0, offset: int = 0) -> Mask:
    """1 where a call with this dropout, seed and offset keeps a probability, 0 where it takes it.

    ``shape`` is (batch, heads_q, seqlen_q, seqlen_k), and the array's, of uint8. dropout is rounded to a multiple of
    1/256, as ``strobe.Options`` says.

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), section 3.3.
    """
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        raise wrong_type("shape", shape, "four integers (batch, heads_q, seqlen_q, seqlen_k)")
    mask = np.empty([_size("shape", extent) for extent in shape], dtype=np.uint8)
    _core.dropout_mask(mask, dropout, seed, offset)
    return mask


def local_block_mask(seqlen_q: int, seqlen_k: int, *, left: int = -1, right: int = -1, block_size: int = 128) -> Mask:
    """Blocks of keys from ``left`` before to ``right`` after the query block's own; -1 leaves a side open.

    Every builder gives [1, 1, blocks of queries, blocks of keys] uint8; the last blocks are aligned with each other.
    """
    mask = _empty_mask(seqlen_q, seqlen_k, block_size)
    _core.local_block_mask(mask, left, right)
    return mask


def strided_block_mask(seqlen_q: int, seqlen_k: int, *, stride: int, block_size: int = 128) -> Mask:
    """The own block and every one whose distance from it is a multiple of ``stride``.

    Source: Child et al., "Generating long sequences with sparse transformers" (2019), section 4.3.
    """
    mask = _empty_mask(seqlen_q, seqlen_k, block_size)
    _core.strided_block_mask(mask, stride)
    return mask


def butterfly_block_mask(seqlen_q: int, seqlen_k: int, *, block_size: int = 128) -> Mask:
    """The own block and those whose index differs from its in one bit: log2(blocks) + 1 blocks a row.

    Source: Dao et al., "FlashAttention" (2022), section 3.3.
    """
    mask = _empty_mask(seqlen_q, seqlen_k, block_size)
    _core.butterfly_block_mask(mask)
    return mask


def _empty_mask(seqlen_q: int, seqlen_k: int, block_size: int) -> Mask:
    block_size = _core.integer("block_size", block_size)
    if block_size not in (64, 128):
        raise ValueError(f"block_size is {block_size}: it must be 64 or 128")
    rows, columns = (_blocks(*named, block_size) for named in (("seqlen_q", seqlen_q), ("seqlen_k", seqlen_k)))
    return np.empty((1, 1, rows, columns), dtype=np.uint8)


def _blocks(name: str, seqlen: int, block_size: int) -> int:
    return -(-_size(name, seqlen) // block_size)


def _size(name: str, size: int) -> int:
    size = _core.integer(name, size)
    if size < 0:
        raise ValueError(f"{name} is {size}: it must be 0 or more")
    return size
