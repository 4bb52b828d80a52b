# SPDX-License-Identifier: Apache-2.0
"""What a call moves, in bytes, and about how long it takes on GPUs: which scheme is the faster one."""

import os
from dataclasses import dataclass
from typing import NamedTuple

from strobe.torch.context_parallel.all_to_all import head_shares
from strobe.torch.context_parallel.groups import hidden_shares
from strobe.torch.context_parallel.keys import Sight, key_plan
from strobe.torch.context_parallel.layout import Layout, Rows, imbalance, layout_of
from strobe.torch.context_parallel.ring import ring_steps

PASSES = ("forward", "backward")
_PRODUCTS = {"forward": 2, "backward": 5}  # of queries with keys, or of their gradients
# Of an H100: 16-bit floating-point operations in a second on long sequences (docs/log/context-parallel.json), and what
# short ones lose, as keys for each query, which fits causal calls of 512 to 16,384 tokens within 5%
# (docs/benchmarks/h200/with-flash-attention-3.json).
_FLOPS = {"forward": 771e12, "backward": 647e12}
_MORE_KEYS = {"forward": 305, "backward": 525}
_COPY = 2.4e12  # bytes read and written in a second by a kernel that copies: 72% of the memory's bandwidth, assumed
# Of an exchange beside its bytes: of messages with the host's part, of copies a barrier and what lies between kernels,
# as the host is ahead. Both fit two GPUs at 8,192 tokens.
_LATENCY, _COPIED_LATENCY = 120e-6, 30e-6


class Link(NamedTuple):
    """Between GPUs: what one receives in a second."""

    bytes: float
    """By messages."""
    copied_bytes: float
    """By copies from the memory of others; 0: ranks do not reach it."""
    name: str

    def _copies(self, scheme: str) -> bool:
        return scheme == "gather" and self.copied_bytes > 0

    def of(self, scheme: str) -> float:
        """What the scheme's transport receives in a second."""
        return self.copied_bytes if self._copies(scheme) else self.bytes

    def latency(self, scheme: str) -> float:
        """Seconds of one of its exchanges beside its bytes."""
        return _COPIED_LATENCY if self._copies(scheme) else _LATENCY


NVLINK = Link(245e9, 350e9, "NVLink")  # measured between two H100s
INFINIBAND = Link(45e9, 0.0, "InfiniBand")  # 90% of 400 Gbit/s for each GPU, assumed


def link_of(world: int) -> Link:
    """Between the ranks of a group: as torchrun says how many processes a host has."""
    return NVLINK if world <= int(os.environ.get("LOCAL_WORLD_SIZE", world)) else INFINIBAND


@dataclass(frozen=True)
class CallSize:
    """A call as numbers; those of a rank's tensors, but for its rows."""

    batch: int
    heads_q: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    element_bytes: int
    sight: Sight

    @property
    def key_bytes(self) -> int:
        """Of a key and its value, in all heads and sequences of the batch."""
        return self.batch * self.heads_kv * (self.head_dim + self.head_dim_v) * self.element_bytes

    @property
    def query_bytes(self) -> int:
        """Of a query and its row of out, likewise."""
        return self.batch * self.heads_q * (self.head_dim + self.head_dim_v) * self.element_bytes


@dataclass(frozen=True)
class Traffic:
    """Bytes that a rank receives."""

    forward: int
    backward: int
    hidden_forward: float
    """The share of them that travels under kernels."""
    hidden_backward: float


def _count(runs: tuple[Rows, ...]) -> int:
    return sum(stop - start for start, stop in runs)


def gather_traffic(layout: Layout, rank: int, size: CallSize, copied: bool) -> Traffic:
    """Keys and values in both passes, and the gradients of the rank's own in the backward."""
    plan = key_plan(layout, rank, size.sight)
    others = [peer for peer in range(layout.world) if peer != rank]
    keys = sum(_count(plan.receives[peer]) for peer in others) * size.key_bytes
    gradients = sum(_count(runs) for peer in others for runs in plan.collects[peer]) * size.key_bytes
    hidden = hidden_shares(size.heads_kv, layout.total * size.key_bytes, keys, gradients, copied)
    return Traffic(keys, keys + gradients, *hidden)


def all_to_all_traffic(layout: Layout, rank: int, size: CallSize) -> Traffic:
    """q, k, v and o of a share of the heads; in the backward the gradients of those."""
    shares = head_shares(size.heads_q, size.heads_kv, layout.world)
    own, others = layout.rows(rank), layout.total - layout.rows(rank)
    heads, copies = len(shares.of_queries[rank]), sum(map(len, shares.of_keys))
    queries = others * heads * size.query_bytes // size.heads_q
    keys = others * len(shares.of_keys[rank]) * size.key_bytes // size.heads_kv
    gradients = own * (copies - len(shares.of_keys[rank])) * size.key_bytes // size.heads_kv
    returned = own * (size.heads_q - heads) * size.query_bytes // size.heads_q
    forward = (queries + returned) // 2 + keys
    return Traffic(forward, (queries + returned) // 2 + gradients, 0.0, 0.0)


def ring_traffic(layout: Layout, rank: int, size: CallSize) -> Traffic:
    """Keys and values of the other ranks, and in the backward float32 sums of their gradients, the last for its own."""
    steps = len(ring_steps(layout, rank, size.sight))
    keys = sum(layout.rows((rank - step) % layout.world) for step in range(1, steps)) * size.key_bytes
    home = layout.rows(rank) * size.key_bytes if steps > 1 else 0
    sums = (keys + home) * 4 // size.element_bytes
    return Traffic(keys, keys + sums, 1.0, (keys + sums - home * 4 // size.element_bytes) / max(keys + sums, 1))


def traffic(scheme: str, layout: Layout, rank: int, size: CallSize, link: Link) -> Traffic:
    if scheme == "gather":
        return gather_traffic(layout, rank, size, link.copied_bytes > 0)
    return (all_to_all_traffic if scheme == "all_to_all" else ring_traffic)(layout, rank, size)


def work(layout: Layout, size: CallSize) -> list[int]:
    """Of each rank: keys that its queries see, all together, of one head."""
    return [
        size.batch * sum(size.sight.work(span, layout.lengths[span.sequence]) for span in layout.spans(rank))
        for rank in range(layout.world)
    ]


def work_imbalance(scheme: str, layout: Layout, size: CallSize) -> float:
    """How much longer than the mean rank the one with the most work computes."""
    if scheme == "all_to_all":
        return -(-size.heads_q // layout.world) * layout.world / size.heads_q - 1
    return imbalance(work(layout, size))


def times(layout: Layout, size: CallSize, link: Link = NVLINK) -> dict[str, float]:
    """Seconds of a forward and a backward, by scheme."""
    return {scheme: sum(of_passes.values()) for scheme, of_passes in pass_times(layout, size, link).items()}


def pass_times(layout: Layout, size: CallSize, link: Link = NVLINK) -> dict[str, dict[str, float]]:
    """Seconds of the slowest rank, by scheme and pass."""
    result: dict[str, dict[str, float]] = {}
    for scheme in ("gather", "all_to_all", "ring"):
        if scheme == "all_to_all" and size.heads_q < layout.world:
            continue
        moved = [traffic(scheme, layout, rank, size, link) for rank in range(layout.world)]
        result[scheme] = {}
        for name in PASSES:
            kernels = _kernels(scheme, layout, size, name)
            of_ranks = zip(moved, kernels if len(kernels) > 1 else kernels * layout.world, strict=True)
            result[scheme][name] = max(_rank_time(scheme, layout, size, name, link, *x) for x in of_ranks)
    return result


def _rank_time(
    scheme: str, layout: Layout, size: CallSize, name: str, link: Link, moved: Traffic, kernels: float
) -> float:
    """Kernels hide what travels under them, as far as they are long enough."""
    received, hidden = getattr(moved, name), getattr(moved, f"hidden_{name}")
    under, exchanges = (layout.world - 2, 1) if scheme == "ring" else (0, 2 if scheme == "all_to_all" else 1)
    computed = kernels + _copies(scheme, layout, size, name, received) / _COPY
    travel, latency = received / link.of(scheme), link.latency(scheme)
    return (1 - hidden) * travel + latency * exchanges + max(computed, hidden * travel + latency * under)


def one_device(size: CallSize, lengths: tuple[int, ...]) -> dict[str, float]:
    """Seconds of the whole call on one, by pass."""
    whole = layout_of("contiguous", 1, lengths)
    return {name: _kernels("gather", whole, size, name)[0] for name in PASSES}


def _kernels(scheme: str, layout: Layout, size: CallSize, name: str) -> list[float]:
    """Seconds of each rank's kernels. In a ring rows are begun again with the keys of each rank that they see."""
    keys: list[float] = [*work(layout, size)]
    rows: list[float] = [size.batch * layout.rows(rank) for rank in range(layout.world)]
    if scheme == "all_to_all":
        share = -(-size.heads_q // layout.world) / size.heads_q
        keys, rows = [sum(keys) * share], [sum(rows) * share]
    elif scheme == "ring":
        rows = [
            size.batch
            * sum(part.rows[1] - part.rows[0] for step in ring_steps(layout, rank, size.sight) for part in step)
            for rank in range(layout.world)
        ]
    flops = _PRODUCTS[name] * size.heads_q * (size.head_dim + size.head_dim_v) / _FLOPS[name]
    return [flops * (k + _MORE_KEYS[name] * n) for k, n in zip(keys, rows, strict=True)]


def _copies(scheme: str, layout: Layout, size: CallSize, name: str, received: int) -> float:
    """Bytes that a rank reads and writes beside its kernels."""
    rows = layout.total / layout.world
    own_keys, own_queries = rows * size.key_bytes, rows * size.query_bytes
    float32 = 4 / size.element_bytes
    if scheme == "all_to_all":  # rows first, to each rank, and back
        return 2 * (own_queries + own_keys) + 2 * received
    if scheme == "gather":  # keys beside values; sums of gradients
        return 2 * own_keys + (0 if name == "forward" else (3 * float32 + 4) * own_keys)
    steps = layout.world
    if name == "forward":  # a part's rows, those so far, and both merged
        return steps * own_queries / 2 * (2 * 2 * float32 + 2)
    return steps * (own_queries / 2 * (1 + 2 * float32) + own_keys * (1 + 4 * float32))
