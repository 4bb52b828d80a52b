# SPDX-License-Identifier: Apache-2.0
"""Decode context parallelism among gloo processes, which test_shards.py starts: each compares its heads with one
process that has all keys."""

import datetime
import multiprocessing
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

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

SIZE, BLOCK, MOST_REQUESTS = 32, 4, 12
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


def builder_of(interleave, model=None):
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.NONE),
        scheduler_config=SimpleNamespace(max_num_seqs=MOST_REQUESTS),
        parallel_config=SimpleNamespace(cp_kv_cache_interleave_size=interleave),
        model_config=model,
    )
    spec = SimpleNamespace(block_size=BLOCK, dcp_sharded=True)
    return StrobeMetadataBuilder(spec, ["layer"], config, torch.device("cpu"))


class Rank:
    """A layer of one rank: some heads of the queries, its shard of the keys in pages."""

    def __init__(self, rank, world, interleave, heads, heads_kv, layer):
        self.rank, self.world, self.interleave, self.heads_kv = rank, world, interleave, heads_kv
        self.own = [h for kv in range(heads_kv) for h in range(heads) if self.is_own(h, kv, heads)]
        options = dict(layer)
        if "sinks" in options:
            options["sinks"] = torch.tensor(options["sinks"])[self.own]
        self.impl = StrobeAttentionImpl(len(self.own), SIZE, SIZE**-0.5, heads_kv, **options)
        self.impl.process_weights_after_loading(torch.float32)
        self.builder = builder_of(interleave)
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
        return torch.where(is_own, places + request * 64 * BLOCK, -1)

    def attend(self, batch, q, keys, values):
        """The step's attention of this rank's heads."""
        cache = torch.full((MOST_REQUESTS * 64, self.heads_kv, BLOCK, 2 * SIZE), torch.nan)
        new, slots, start, starts = [], [], 0, [0]
        for request, (context, queries) in enumerate(batch):
            k, v = keys[request], values[request]
            places = self.slots(request, torch.arange(context + queries))
            self.impl.do_kv_cache_update(self.layer, k[:context], v[:context], cache, places[:context])
            new.append((k[context:], v[context:]))
            slots.append(places[context:])
            start += queries
            starts.append(start)
        k, v = (torch.cat(x) for x in zip(*new, strict=True))
        self.impl.do_kv_cache_update(self.layer, k, v, cache, torch.cat(slots))
        lengths = torch.tensor([sum(x) for x in batch], dtype=torch.int32)
        starts = torch.tensor(starts, dtype=torch.int32)
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=lengths,
            seq_lens_cpu_upper_bound=lengths,
            num_reqs=len(batch),
            num_actual_tokens=start,
            max_query_len=max(queries for _, queries in batch),
            max_seq_len=int(lengths.max()),
            block_table_tensor=torch.arange(len(batch) * 64, dtype=torch.int32).view(len(batch), 64),
            slot_mapping=torch.cat(slots),
        )
        metadata = self.builder.build(0, common)
        out = torch.full((start, len(self.own), SIZE), torch.nan)
        self.impl.forward(self.layer, q[:, self.own], k, v, cache, metadata, out)
        return out, metadata


def check(rank, world):
    for heads_kv in (1, 2):
        heads = 2 * world * heads_kv
        for interleave in (1, 3):
            for layer in LAYERS.values():
                sinks = {"sinks": layer["sinks"][:heads]} if layer else {}
                mine = Rank(rank, world, interleave, heads, heads_kv, layer | sinks)
                for batch in BATCHES.values():
                    compare(mine, batch, heads, layer | sinks)
    check_refusals()


def compare(mine, batch, heads, layer):
    torch.manual_seed(1)
    keys, values = ([torch.randn(sum(x), mine.heads_kv, SIZE) for x in batch] for _ in "kv")
    q = torch.randn(sum(queries for _, queries in batch), heads, SIZE)
    out, metadata = mine.attend(batch, q, keys, values)
    assert (metadata.context_lens is None) == (not any(context for context, _ in batch))
    sink = torch.tensor(layer["sinks"]) if "sinks" in layer else None
    start = 0
    for (_, queries), k, v in zip(batch, keys, values, strict=True):
        rows = slice(start, start + queries)
        options = {"causal": True, "sink": sink, "softcap": layer.get("logits_soft_cap", 0.0)}
        wanted = strobe.attention(q[rows].unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), **options)[0]
        torch.testing.assert_close(out[rows], wanted[:, mine.own], rtol=1e-5, atol=1e-5)
        start += queries


def check_refusals():
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
        builder_of(1, SimpleNamespace(is_mm_prefix_lm=True))


def process(rank, world, folder):
    torch.set_num_threads(1)
    store = distributed.FileStore(str(Path(folder) / "store"), world)
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=120)
    )
    parallel_state._DCP = Group()
    check(rank, world)
    distributed.destroy_process_group()


def main():
    for world in map(int, sys.argv[1:] or (2, 3)):
        with tempfile.TemporaryDirectory() as folder:
            ranks = [multiprocessing.Process(target=process, args=(rank, world, folder)) for rank in range(world)]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join()
            assert not any(rank.exitcode for rank in ranks), [rank.exitcode for rank in ranks]
    sys.stdout.write("as one process\n")


if __name__ == "__main__":
    main()
