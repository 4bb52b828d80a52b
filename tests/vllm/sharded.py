# SPDX-License-Identifier: Apache-2.0
"""Decode context parallelism among processes, which test_shards.py starts: sharded.py cpu|cuda WORLD...

Each process compares its heads with one call over all keys on the CPU. On the CPU processes send by gloo and compute in
float32; on GPUs they have one each, send by NCCL and compute in bfloat16.
"""

import datetime
import multiprocessing
import sys
import tempfile
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import conftest  # noqa: F401 - vLLM's contract where vLLM is missing
import pytest
import strobe
import torch
from strobe_vllm.implementation import StrobeAttentionImpl
from strobe_vllm.metadata import StrobeMetadataBuilder
from torch import distributed
from vllm.config import CUDAGraphMode
from vllm.distributed import parallel_state
from vllm.v1.attention.backend import AttentionType, CommonAttentionMetadata

SIZE, MOST_REQUESTS, MOST_BLOCKS = 32, 12, 64


class Place(NamedTuple):
    """Where processes compute, and how far results may be from exact ones, in multiples of the largest value."""

    device: str
    dtype: torch.dtype
    block_size: int
    messages: str
    tolerance: float


PLACES = {
    "cpu": Place("cpu", torch.float32, 4, "gloo", 1e-5),
    # Results over the old and the new keys are rounded, and what they are merged to.
    "cuda": Place("cuda", torch.bfloat16, 16, "nccl", 2 * torch.finfo(torch.bfloat16).eps),
}
BATCHES = {
    "mixed": [(0, 37), (120, 1), (1, 1), (64, 20), (0, 1), (15, 1), (16, 16), (2, 5)],
    "decode": [(7, 1), (1, 1), (100, 1)],
    "drafts": [(7, 4), (3, 4), (0, 4), (50, 4)],
    "prompts": [(0, 9), (0, 30)],
}
LAYERS = {
    "plain": {},
    "sinks, softcap": {
        "sinks": [0.5, -1.0, 2.0, 0.0, 1.0, 3.0, -0.5, 0.25, 0.0, 1.5, -2.0, 0.75],
        "logits_soft_cap": 5.0,
    },
}


class Group:
    """What the backend takes of vLLM's group of ranks."""

    def __init__(self):
        self.device_group = distributed.group.WORLD
        self.world_size, self.rank_in_group = distributed.get_world_size(), distributed.get_rank()

    def all_gather(self, x, dim):
        parts = [torch.empty_like(x) for _ in range(self.world_size)]
        distributed.all_gather(parts, x)
        return torch.cat(parts, dim)


def builder_of(place, interleave, model=None):
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.NONE),
        scheduler_config=SimpleNamespace(max_num_seqs=MOST_REQUESTS),
        parallel_config=SimpleNamespace(cp_kv_cache_interleave_size=interleave),
        model_config=model,
    )
    spec = SimpleNamespace(block_size=place.block_size, dcp_sharded=True)
    return StrobeMetadataBuilder(spec, ["layer"], config, torch.device(place.device))


class Rank:
    """A layer of one rank: some heads of the queries, its shard of the keys in pages."""

    def __init__(self, place, interleave, heads, heads_kv, layer):
        self.place, self.interleave, self.heads_kv = place, interleave, heads_kv
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        self.own = [h for kv in range(heads_kv) for h in range(heads) if self.is_own(h, kv, heads)]
        options = dict(layer)
        if "sinks" in options:
            options["sinks"] = torch.tensor(options["sinks"], device=place.device)[self.own]
        self.impl = StrobeAttentionImpl(len(self.own), SIZE, SIZE**-0.5, heads_kv, **options)
        self.impl.process_weights_after_loading(place.dtype)
        self.builder = builder_of(place, interleave)
        self.layer = SimpleNamespace(_k_scale=torch.tensor(1.0), _v_scale=torch.tensor(1.0))

    def is_own(self, head, kv, heads):
        """A rank has as many heads of each key head as the others."""
        group = heads // self.heads_kv
        share = group // self.world
        first = kv * group + self.rank * share
        return first <= head < first + share

    def slots(self, request, positions):
        """Where keys go: -1 those of other ranks. Pages of a request lie side by side."""
        turn = self.interleave * self.world
        places = positions // turn * self.interleave + positions % self.interleave
        is_own = positions // self.interleave % self.world == self.rank
        return torch.where(is_own, places + request * MOST_BLOCKS * self.place.block_size, -1)

    def attend(self, batch, q, keys, values):
        """The step's attention of this rank's heads, and its metadata."""
        with torch.device(self.place.device):
            shape = (MOST_REQUESTS * MOST_BLOCKS, self.heads_kv, self.place.block_size, 2 * SIZE)
            cache = torch.full(shape, torch.nan, dtype=self.place.dtype)
            new, slots = [], []
            for request, (context, queries) in enumerate(batch):
                k, v = keys[request], values[request]
                places = self.slots(request, torch.arange(context + queries))
                self.impl.do_kv_cache_update(self.layer, k[:context], v[:context], cache, places[:context])
                new.append((k[context:], v[context:]))
                slots.append(places[context:])
            k, v = (torch.cat(x) for x in zip(*new, strict=True))
            common = self.common(batch, torch.cat(slots))
            self.impl.do_kv_cache_update(self.layer, k, v, cache, common.slot_mapping)
            metadata = self.builder.build(0, common)
            out = torch.full((common.num_actual_tokens, len(self.own), SIZE), torch.nan, dtype=self.place.dtype)
            self.impl.forward(self.layer, q[:, self.own], k, v, cache, metadata, out)
        return out, metadata

    def common(self, batch, slots):
        """What vLLM hands to the builder."""
        starts = torch.tensor([0, *accumulate(queries for _, queries in batch)], dtype=torch.int32)
        lengths = torch.tensor([sum(x) for x in batch], dtype=torch.int32)
        return CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts.cpu(),
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=lengths.cpu(),
            num_reqs=len(batch),
            num_actual_tokens=len(slots),
            max_query_len=max(queries for _, queries in batch),
            max_seq_len=max(sum(x) for x in batch),
            block_table_tensor=torch.arange(len(batch) * MOST_BLOCKS, dtype=torch.int32).view(-1, MOST_BLOCKS),
            slot_mapping=slots,
        )


def check(place):
    world = distributed.get_world_size()
    for heads_kv in (1, 2):
        heads = 2 * world * heads_kv
        for interleave in (1, 3):
            for layer in LAYERS.values():
                layer = layer | ({"sinks": layer["sinks"][:heads]} if layer else {})
                mine = Rank(place, interleave, heads, heads_kv, layer)
                for batch in BATCHES.values():
                    compare(mine, batch, heads, layer)
    check_refusals(place)


def compare(mine, batch, heads, layer):
    place = mine.place
    torch.manual_seed(1)
    keys, values = ([torch.randn(sum(x), mine.heads_kv, SIZE).to(place.dtype) for x in batch] for _ in "kv")
    q = torch.randn(sum(queries for _, queries in batch), heads, SIZE).to(place.dtype)
    on_device = (x.to(place.device) for x in keys), (x.to(place.device) for x in values)
    out, metadata = mine.attend(batch, q.to(place.device), *map(list, on_device))
    assert (metadata.context_lens is None) == (not any(context for context, _ in batch))
    sink = torch.tensor(layer["sinks"]) if "sinks" in layer else None
    options = {"causal": True, "sink": sink, "softcap": layer.get("logits_soft_cap", 0.0)}
    start = 0
    for (_, queries), k, v in zip(batch, keys, values, strict=True):
        rows = slice(start, start + queries)
        wanted = strobe.attention(*(x.float().unsqueeze(0) for x in (q[rows], k, v)), **options)[0]
        error = float((out[rows].float().cpu() - wanted[:, mine.own]).abs().max())
        assert error <= place.tolerance * max(1.0, float(v.abs().max())), error
        start += queries


def check_refusals(place):
    for name, options in {
        "sliding_window": {"sliding_window": 8},
        "alibi_slopes": {"alibi_slopes": [0.5, 0.25]},
        "cross-attention": {"attn_type": AttentionType.ENCODER_DECODER},
        "kv_sharing_target_layer_name": {"kv_sharing_target_layer_name": "layer"},
    }.items():
        with pytest.raises(NotImplementedError, match=f"decode context parallelism is on with {name}, which needs"):
            StrobeAttentionImpl(2, SIZE, 1.0, 1, **options)
    StrobeAttentionImpl(2, SIZE, 1.0, 1, attn_type=AttentionType.ENCODER_ONLY, sliding_window=8)
    with pytest.raises(NotImplementedError, match="is on with spans of multimodal tokens, which needs all keys"):
        builder_of(place, 1, SimpleNamespace(is_mm_prefix_lm=True))


def process(device, rank, world, folder):
    torch.set_num_threads(1)
    place = PLACES[device]
    if device == "cuda":
        torch.cuda.set_device(rank)
    store = distributed.FileStore(str(Path(folder) / "store"), world)
    distributed.init_process_group(
        place.messages, store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=120)
    )
    parallel_state._DCP = Group()
    check(place)
    distributed.destroy_process_group()


def main(device, *worlds):
    processes = multiprocessing.get_context("spawn" if device == "cuda" else "fork")
    for world in map(int, worlds):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [processes.Process(target=process, args=(device, rank, world, folder)) for rank in range(world)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
            assert not any(rank.exitcode for rank in ranks), [rank.exitcode for rank in ranks]
    sys.stdout.write("as one process\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
