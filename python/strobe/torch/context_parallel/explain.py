# SPDX-License-Identifier: Apache-2.0
"""What a call moves and how the work is shared, as text."""

from strobe.torch.context_parallel.layout import imbalance
from strobe.torch.context_parallel.model import CallSize, link_of, times, traffic, work_imbalance
from strobe.torch.context_parallel.sequences import Sequences

_MOVED = {
    "gather": "keys and values that a rank's queries see; their gradients in the backward",
    "all_to_all": "all rows of a share of the heads",
    "ring": "keys and values of one rank after the other, and sums of their gradients in the backward",
}


def explain(sequences: Sequences, last: tuple[str, CallSize] | None) -> str:
    """Of the last call; without one of the layout alone."""
    layout, rank = sequences.layout, sequences.rank
    rows = [layout.rows(x) for x in range(layout.world)]
    lines = [
        f"layout {layout.kind}: {layout.total} rows of {len(layout.lengths)} sequences on {layout.world} ranks, "
        f"{min(rows)} to {max(rows)} each, imbalance {imbalance(rows):.1%}"
    ]
    if sequences.inner is not None:
        lines.append(
            f"heads on {sequences.inner_world} ranks of the inner group, all-to-all, nothing of it under kernels"
        )
    if last is None:
        return "\n".join(lines)
    scheme, size = last
    link = link_of(sequences.world)
    moved = traffic(scheme, layout, rank, size, link)
    estimates = ", ".join(f"{name} {seconds * 1e3:.2f} ms" for name, seconds in times(layout, size, link).items())
    lines += [
        f"scheme {scheme}: {_MOVED[scheme]}",
        f"forward: rank {rank} receives {_mib(moved.forward)}, {moved.hidden_forward:.0%} of it under kernels",
        f"backward: rank {rank} receives {_mib(moved.backward)}, {moved.hidden_backward:.0%} of it under kernels",
        f"work: the most of a rank is {work_imbalance(scheme, layout, size):.1%} above the mean",
        f"estimated on H100s with {link.name}, forward and backward: {estimates}",
    ]
    return "\n".join(lines)


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB"
