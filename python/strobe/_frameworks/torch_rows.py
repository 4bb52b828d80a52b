# SPDX-License-Identifier: Apache-2.0
"""Few queries and a bool mask: the keys that they see as pages of one row, so that no other key is read."""

import math

import torch
from torch import Tensor


def visible_rows(mask: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]] | None:
    """K, V and options of strobe.attention for keys that `mask` [batch or 1, 1, 1, seqlen_k or 1] shows.

    k and v are [batch, seqlen_k, heads_kv, ..]. Nobody waits for a GPU: it counts the keys and numbers their rows
    itself, in few bytes beside those of K and V. None where rows of K and V are not at like places of their memory.
    """
    batch, keys = k.shape[:2]
    of_k, of_v = _pages(k), _pages(v)
    if 0 in (batch, keys) or of_k is None or of_v is None or of_k[1] != of_v[1]:
        return None
    (k, (per_batch, per_key)), (v, _) = of_k, of_v
    if k.shape[0] > torch.iinfo(torch.int32).max:
        return None
    # A decoding step's time is that of launches: six kernels, whose only large one numbers all rows of K's memory.
    shown = mask if mask.shape == (batch, 1, 1, keys) else mask.expand(batch, 1, 1, keys)
    place = shown.cumsum(-1)
    of_memory = torch.arange(k.shape[0], dtype=torch.int32, device=k.device)
    rows = of_memory.as_strided((batch, 1, 1, keys), (per_batch, 0, 0, per_key))
    # Keys that are hidden share the first place, which is none of the table's; what lies behind the used is not read.
    table = of_memory.new_empty((batch, 1, 1, keys + 1)).scatter_(-1, place * shown, rows)
    used = place.select(-1, -1).int()
    return k, v, {"page_table": table.as_strided((batch, keys), (keys + 1, 1), 1), "seqused_k": used.view(batch)}


def _pages(x: Tensor) -> tuple[Tensor, tuple[int, int]] | None:
    """[pages, 1, heads, head_dim] in x's memory, and how many pages apart batches and keys are."""
    batch, keys, heads, columns = x.shape
    to_batch, to_key, to_head, to_column = x.stride()
    step = to_key if batch == 1 else math.gcd(to_batch, to_key)
    if step <= 0 or to_column != 1:
        return None
    per_batch, per_key = (0 if batch == 1 else to_batch // step), to_key // step
    count = (batch - 1) * per_batch + (keys - 1) * per_key + 1
    return x.as_strided((count, 1, heads, columns), (step, step, to_head, 1)), (per_batch, per_key)
