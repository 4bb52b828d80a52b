# SPDX-License-Identifier: Apache-2.0
"""Decode context parallelism: ranks that share the keys of a cache, and the heads of the queries.

A rank has the queries of some heads, and of each sequence the keys that are its shard, with the key heads of all. So
queries go to all ranks, and each gives its results over its shard, with their LSE, to the rank whose heads they are of.
The keys of the step itself, which every rank has, are a part of their own.
"""

from typing import Any

import torch
from strobe.torch import Shard
from torch import Tensor, distributed
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_dcp_group
from vllm.v1.kv_cache_interface import AttentionSpec


def shard_of(kv_cache_spec: AttentionSpec, vllm_config: VllmConfig) -> Shard:
    """This rank's; of a world of 1 where the layers' caches are whole."""
    if not getattr(kv_cache_spec, "dcp_sharded", True):
        return Shard(0, 1)
    try:
        group = get_dcp_group()
    except AssertionError:  # vLLM's, where there is none
        return Shard(0, 1)
    if group.world_size == 1:
        return Shard(0, 1)
    interleave = vllm_config.parallel_config.cp_kv_cache_interleave_size
    return Shard(group.rank_in_group, group.world_size, interleave)


def of_all_heads(q: Tensor, heads_kv: int) -> Tensor:
    """Queries [tokens, heads, head_size] of all ranks, those of one key head together."""
    group = get_dcp_group()
    by_rank = group.all_gather(q.contiguous(), dim=1)
    if heads_kv == 1:
        return by_rank
    tokens, _, size = by_rank.shape
    return by_rank.view(tokens, group.world_size, heads_kv, -1, size).transpose(1, 2).reshape(tokens, -1, size)


def of_own_heads(out: Tensor, lse: Tensor, heads_kv: int) -> list[tuple[Tensor, Tensor]]:
    """Of each rank's shard (out, lse) of this rank's heads; out [tokens, heads, head_size], lse [heads, tokens]."""
    group = get_dcp_group()
    tokens, _, size = out.shape
    outs = out.view(tokens, heads_kv, group.world_size, -1, size).movedim(2, 0)
    lses = lse.view(heads_kv, group.world_size, -1, tokens).movedim(1, 0)
    outs, lses = (_exchanged(group, x) for x in (outs, lses))
    return list(
        zip(outs.view(group.world_size, tokens, -1, size), lses.view(group.world_size, -1, tokens), strict=True)
    )


def _exchanged(group: Any, x: Tensor) -> Tensor:
    """x[r] goes to rank r: what each rank had for this one."""
    sent = x.contiguous()
    received = torch.empty_like(sent)
    distributed.all_to_all_single(received, sent, group=group.device_group)
    return received
