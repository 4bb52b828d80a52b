# SPDX-License-Identifier: Apache-2.0
"""The blocks of PyTorch's BlockMask. Its kernels compute listed blocks alone, and run mask_mod in those that are not
listed as full."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

Function = Callable[..., Any]

_PAIRS_AT_ONCE = 2**22
"""Pairs of a query and key that mask_mod is run on at a time: tens of megabytes."""

_FOUND = "_strobe_found"
"""Attribute of a BlockMask: what its lists and its function were when they were looked at, and what was found."""


def with_blocks(
    block_mask: Any, mask_mod: Function | None, seqlen_q: int, seqlen_k: int
) -> tuple[Function | None, dict[str, Any]]:
    """What a BlockMask of PyTorch says: a function, or None, and the option block_mask where that can say it.

    A pair is visible in a full block, and where mask_mod says so in another block that is listed. ``mask_mod`` is None
    where the BlockMask has none. Blocks that follow from it, as those of create_block_mask do, are left out. The call
    may have fewer queries and keys than the BlockMask.
    """
    if block_mask.full_kv_num_blocks is not None and _may_look(block_mask) and _follow(block_mask, mask_mod):
        return mask_mod, {}
    visible, full = _listed(block_mask)
    if mask_mod is None and full is not None:
        visible, full = visible | full, None
    if full is None and block_mask.BLOCK_SIZE in ((64, 64), (128, 128)):
        size = block_mask.BLOCK_SIZE[0]
        visible = visible[:, :, : -(-seqlen_q // size), : -(-seqlen_k // size)]
        return mask_mod, {"block_mask": visible.to(torch.uint8), "block_size": size}
    return _function(mask_mod, visible, full, block_mask.BLOCK_SIZE), {}


def _listed(block_mask: Any) -> tuple[Tensor, Tensor | None]:
    """The blocks that mask_mod is run in, and the full ones where there are lists of them."""
    visible = _dense(block_mask, block_mask.kv_num_blocks, block_mask.kv_indices)
    if block_mask.full_kv_num_blocks is None:
        return visible, None
    return visible, _dense(block_mask, block_mask.full_kv_num_blocks, block_mask.full_kv_indices)


def _dense(block_mask: Any, counts: Tensor, indices: Tensor) -> Tensor:
    """The blocks of a list as truths, [batch or 1, heads or 1, blocks of queries, blocks of keys]."""
    columns = -(-block_mask.seq_lengths[1] // block_mask.BLOCK_SIZE[1])
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts[..., None]
    inside = listed & (indices < columns)
    blocks = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=indices.device)
    return blocks.scatter(-1, indices.long().where(inside, columns), True)[..., :columns]


def _function(mask_mod: Function | None, visible: Tensor, full: Tensor | None, size: tuple[int, int]) -> Function:
    """Blocks and mask_mod as one function."""
    block_of_batch, block_of_head = (extent != 1 for extent in visible.shape[:2])

    def blocks(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        at = (b if block_of_batch else 0, h if block_of_head else 0, q_idx // size[0], kv_idx // size[1])
        seen = visible[at]
        if mask_mod is not None:
            seen = seen & mask_mod(b, h, q_idx, kv_idx)
        return seen if full is None else full[at] | seen

    return blocks if mask_mod is None else wraps(mask_mod)(blocks)


def _may_look(block_mask: Any) -> bool:
    """Whether the contents of the blocks can be looked at here, and would be seen to change."""
    if torch.compiler.is_compiling() or (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()):
        return False
    return not any(x.is_inference() for x in _lists(block_mask))  # changes of these are not counted


def _lists(block_mask: Any) -> tuple[Tensor, ...]:
    names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    return tuple(getattr(block_mask, name) for name in names)


def _follow(block_mask: Any, mask_mod: Function | None) -> bool:
    """Whether mask_mod hides what no list has, and sees what is listed as full. Looked at once."""
    lists = _lists(block_mask)
    contents = mask_mod, block_mask.seq_lengths, block_mask.BLOCK_SIZE, [x._version for x in lists]
    found = getattr(block_mask, _FOUND, None)
    if found is None or found[0] != contents or any(x is not y for x, y in zip(found[1], lists, strict=True)):
        visible, full = _listed(block_mask)
        listed = visible | full
        verdict = bool(listed.all()) if mask_mod is None else _agree(block_mask, mask_mod, listed, full)
        found = contents, lists, verdict
        setattr(block_mask, _FOUND, found)
    return found[2]


@torch.no_grad()
def _agree(block_mask: Any, mask_mod: Function, listed: Tensor, full: Tensor) -> bool:
    """By running mask_mod on every pair, as create_block_mask does, some rows of blocks at a time."""
    from torch.nn.attention.flex_attention import create_mask

    (queries, keys), (rows, columns) = block_mask.seq_lengths, block_mask.BLOCK_SIZE
    batch, heads, rows_of_blocks, blocks = listed.shape
    if rows_of_blocks * rows < queries:
        return False
    step = rows * max(1, _PAIRS_AT_ONCE // max(1, batch * heads * rows * keys))
    for first in range(0, queries, step):
        count = min(step, queries - first)
        try:
            seen = create_mask(_of_rows(mask_mod, first), batch, heads, count, keys, listed.device).bool()
        except IndexError:  # a function that reads beyond a tensor where no block is listed
            return False
        padding = (0, -keys % columns, 0, -count % rows)
        some_seen, some_hidden = (
            pad(x, padding).unflatten(-1, (blocks, columns)).unflatten(-3, (-1, rows)).any(-1).any(-2)
            for x in (seen, ~seen)
        )
        at = slice(first // rows, first // rows + some_seen.shape[2])
        if bool(((some_seen & ~listed[:, :, at]) | (some_hidden & full[:, :, at])).any()):
            return False
    return True


def _of_rows(mask_mod: Function, first: int) -> Function:
    return lambda b, h, q_idx, kv_idx: mask_mod(b, h, q_idx + first, kv_idx)
