# SPDX-License-Identifier: Apache-2.0
"""What a call moves, in bytes, and about how long it takes on GPUs: which scheme is the faster one."""

from dataclasses import dataclass

from strobe.torch.context_parallel.all_to_all import head_shares
from strobe.torch.context_parallel.groups import hidden_shares
from strobe.torch.context_parallel.keys import Sight, key_plan
from strobe.torch.context_parallel.layout import Layout, Rows, imbalance
from strobe.torch.context_parallel.ring import ring_steps

# Of an H100 in a host of two: bytes received in a second, and products of 16 bits in a second.
_BYTES = 245e9
_FLOPS = {"forward": 600e12, "backward": 500e12}
_LATENCY = 20e-6  # of an exchange


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


def gather_traffic(layout: Layout, rank: int, size: CallSize) -> Traffic:
    """Keys and values in both passes, and the gradients of the rank's own in the backward."""
    plan = key_plan(layout, rank, size.sight)
    others = [peer for peer in range(layout.world) if peer != rank]
    keys = sum(_count(plan.receives[peer]) for peer in others) * size.key_bytes
    gradients = sum(_count(runs) for peer in others for runs in plan.collects[peer]) * size.key_bytes
    hidden = hidden_shares(size.heads_kv, layout.total * size.key_bytes, keys, gradients)
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


def traffic(scheme: str, layout: Layout, rank: int, size: CallSize) -> Traffic:
    of_scheme = {"gather": gather_traffic, "all_to_all": all_to_all_traffic, "ring": ring_traffic}
    return of_scheme[scheme](layout, rank, size)


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


def times(layout: Layout, size: CallSize) -> dict[str, float]:
    """Seconds of a forward and a backward, by scheme."""
    of_ranks = work(layout, size)
    result = {}
    for scheme in ("gather", "all_to_all", "ring"):
        if scheme == "all_to_all" and size.heads_q < layout.world:
            continue
        keys = sum(of_ranks) / layout.world * (1 + work_imbalance(scheme, layout, size))
        flops = 2 * keys * size.heads_q * (size.head_dim + size.head_dim_v)
        compute = {"forward": flops / _FLOPS["forward"], "backward": 2.5 * flops / _FLOPS["backward"]}
        moved = [traffic(scheme, layout, rank, size) for rank in range(layout.world)]
        result[scheme] = sum(
            _pass_time(compute[name], max(getattr(x, name) for x in moved), getattr(moved[0], f"hidden_{name}"))
            for name in ("forward", "backward")
        )
    return result


def _pass_time(compute: float, received: int, hidden: float) -> float:
    """Kernels hide what travels under them, as far as they are long enough."""
    travel = received / _BYTES
    return _LATENCY + (1 - hidden) * travel + max(compute, hidden * travel)
