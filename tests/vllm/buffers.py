# SPDX-License-Identifier: Apache-2.0
"""The tensors of a step that vLLM keeps on the device, and what it hands to builders of them."""

import random
from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata


class Buffers:
    """To be inherited from by servers with a device, block_size, max_tokens, max_requests, max_blocks and a seed."""

    def make_buffers(self):
        torch.manual_seed(self.seed)
        self.random = random.Random(self.seed)
        self.num_blocks = self.max_requests * self.max_blocks
        with torch.device(self.device):
            self.query_start_loc = torch.zeros(self.max_requests + 1, dtype=torch.int32)
            self.seq_lens = torch.zeros(self.max_requests, dtype=torch.int32)
            self.block_table = torch.zeros(self.max_requests, self.max_blocks, dtype=torch.int32)
            self.slots = torch.full((self.max_tokens,), -1, dtype=torch.int64)
            self.causal = torch.ones(self.max_requests, dtype=torch.int32)

    def shuffled_blocks(self) -> list[int]:
        """All blocks, for a step whose requests have none yet."""
        self.block_table.fill_(-1 if self.device == "cpu" else 0)
        self.slots.fill_(-1)
        blocks = list(range(self.num_blocks))
        self.random.shuffle(blocks)
        return blocks

    def give_blocks(self, request: int, blocks: list[int]) -> torch.Tensor:
        """Slots of the request's tokens."""
        self.block_table[request, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
        slots = torch.tensor(blocks).repeat_interleave(self.block_size) * self.block_size
        return (slots + torch.arange(len(slots)) % self.block_size).to(self.device)

    def set_lengths(self, lengths: list[tuple[int, int]]):
        """Of requests with (context, queries)."""
        new = torch.tensor([0, *(queries for _, queries in lengths)], dtype=torch.int32)
        self.query_start_loc.fill_(new.sum())
        self.query_start_loc[: len(new)] = new.cumsum(0, dtype=torch.int32)
        self.seq_lens.fill_(0)
        self.seq_lens[: len(lengths)] = torch.tensor([sum(pair) for pair in lengths], dtype=torch.int32)

    def set_causal(self, flags: list[int]) -> torch.Tensor:
        """The flags of requests, in their buffer."""
        self.causal[: len(flags)] = torch.tensor(flags, dtype=torch.int32)
        return self.causal[: len(flags)]

    def common(self, step: Any, requests: int | None, longest: int | None, **others: Any) -> CommonAttentionMetadata:
        """Of a step with lengths, tokens and causal; of as many requests, and with that bound on their queries."""
        count = len(step.lengths) if requests is None else requests
        plain = {
            "query_start_loc": self.query_start_loc[: count + 1],
            "query_start_loc_cpu": self.query_start_loc[: count + 1].cpu(),
            "seq_lens": self.seq_lens[:count],
            "num_reqs": count,
            "num_actual_tokens": step.tokens,
            "max_query_len": max(new for _, new in step.lengths) if longest is None else longest,
            "max_seq_len": max(sum(pair) for pair in step.lengths),
            "block_table_tensor": self.block_table[:count],
            "slot_mapping": self.slots[: step.tokens],
            "causal": self.causal[:count] if isinstance(step.causal, torch.Tensor) else step.causal,
            "seq_lens_cpu_upper_bound": self.seq_lens[:count].cpu(),
        }
        return CommonAttentionMetadata(**plain | others)


def check_nothing_waits(server: Any, step: Any, common_prefix_len: int = 0):
    """On a GPU neither the builder nor a layer's step reads a number back."""
    common = step.common()
    step.forward(server.builder.build(common_prefix_len, common))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step.forward(server.builder.build(common_prefix_len, common))
    finally:
        torch.cuda.set_sync_debug_mode("default")
