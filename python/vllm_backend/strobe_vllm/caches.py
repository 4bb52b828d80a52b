# SPDX-License-Identifier: Apache-2.0
"""vLLM's cache of a layer as Strobe's calls take it, and the write of new keys and values."""

from typing import Any

import strobe
import torch
from strobe.torch.ops import rows
from torch import Tensor


def keys_and_values(kv_cache: Tensor, head_size: int, *, is_float8: bool) -> tuple[Tensor, Tensor]:
    """Views [num_blocks, block_size, heads_kv, head_dim] of a layer's cache, whatever its layout.

    vLLM's view of each layout is [num_blocks, heads_kv, block_size, 2 * head_dim], with K and V side by side.
    """
    k, v = stored(kv_cache, is_float8=is_float8).transpose(1, 2).split(head_size, dim=-1)
    return k, v


def stored(kv_cache: Tensor, *, is_float8: bool) -> Tensor:
    """A layer's cache in the dtype of its elements: those of 8 bits are bytes to vLLM."""
    return kv_cache.view(torch.float8_e4m3fn) if is_float8 and kv_cache.dtype == torch.uint8 else kv_cache


def scale_of(scale: Tensor) -> Tensor:
    """[1, heads_kv or 1, 1] of a layer's scale, which is of the tensor or of each head."""
    return scale.view(1, -1, 1)


def write(
    cache: tuple[Tensor, Tensor], key: Tensor, value: Tensor, slots: Tensor, scales: dict[str, Tensor] | None = None
) -> None:
    """Writes row i of key and value [tokens, heads_kv, ..] to slot i: row slot % block_size of block slot //
    block_size. Rows of a negative slot are not written, nor are rows behind the last slot.
    """
    key, value = key[: slots.shape[0]], value[: slots.shape[0]]
    if not slots.is_cuda and bool((slots < 0).any()):  # a GPU's append leaves out pages that do not exist
        key, value, slots = (x[slots >= 0] for x in (key, value, slots))
    tokens = slots.shape[0]
    if tokens == 0:
        return
    pages, table, lengths = _places(cache, slots)
    strobe.append(*pages, rows(key).unsqueeze(1), rows(value).unsqueeze(1), lengths, page_table=table, **(scales or {}))


def _places(cache: tuple[Tensor, Tensor], slots: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """The cache in pages, and each token as a sequence of its own: its pages and its row among theirs, int32.

    Divisions of slots would be launches of their own in each layer. Where blocks follow one another without a gap, as
    in layouts with heads inside rows, a page is one row, and its number the low word of the slot. Else a token has all
    blocks in their order, among whose rows the slot counts.
    """
    k, v = cache
    tokens = len(slots)
    if all(x.stride(0) == x.shape[1] * x.stride(1) for x in cache):
        pages = slots.view(torch.int32)[::2] if slots.dtype == torch.int64 else slots
        return (_by_row(k), _by_row(v)), pages.unsqueeze(1), _kept(torch.zeros, tokens, slots.device)
    return cache, _kept(torch.arange, len(k), slots.device).expand(tokens, -1), slots.int()


_KEPT: dict[tuple[Any, torch.device, int], Tensor] = {}


def _kept(make: Any, count: int, device: torch.device) -> Tensor:
    """make(count) in int32, of tensors that captured graphs may go on reading. Those made during a capture are the
    graph's."""
    size = 1 << (count - 1).bit_length()
    kept = _KEPT.get((make, device, size))
    if kept is None:
        kept = make(size, dtype=torch.int32, device=device)
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _KEPT[make, device, size] = kept
    return kept[:count]


def _by_row(x: Tensor) -> Tensor:
    """A view of blocks of rows as blocks of one row."""
    return x.view(-1, 1, *x.shape[2:])
