# SPDX-License-Identifier: Apache-2.0
"""Which key heads gather computes together: all, or groups, of which one travels under the kernels of another."""

HIDDEN_BYTES = {"forward": 128 << 20, "backward": 512 << 20}
"""Of the keys and values of all ranks, where messages move them. Fewer are one group: to fetch them takes less time
than another launch, and than smaller kernels lose. As measured on two H100s: docs/log/context-parallel.json."""
COPIED_BYTES = {"forward": 128 << 20}
"""The same where copy engines move them, where a second group takes the host as long as it hides. A backward is one
group: two lose 2 to 6% of its kernels, and what copies take is less, the longer the call the more so."""


def group_ends(heads_kv: int, buffer_bytes: int, backward: bool, copied: bool) -> list[int]:
    """The end of each group of key heads, in their order.

    Nothing hides the way of the first group, nor in a backward that of the last one's gradients, which are more.
    """
    least = (COPIED_BYTES if copied else HIDDEN_BYTES).get("backward" if backward else "forward")
    if heads_kv < 2 or least is None or buffer_bytes < least:
        return [heads_kv]
    return [max(1, heads_kv // (2 if backward else 4)), heads_kv]


def hidden_shares(heads_kv: int, buffer_bytes: int, keys: int, gradients: int, copied: bool) -> tuple[float, float]:
    """What travels under kernels of a forward, which receives ``keys`` bytes, and of a backward, which receives as many
    again and ``gradients``."""
    in_sight = []
    for backward in (False, True):
        ends = group_ends(heads_kv, buffer_bytes, backward, copied)
        first, last = ends[0] / max(heads_kv, 1), (ends[-1] - (ends[-2] if len(ends) > 1 else 0)) / max(heads_kv, 1)
        in_sight.append((first, last))
    (forward, _), (first, last) = in_sight
    return 1 - forward, 1 - (keys * first + gradients * last) / max(keys + gradients, 1)
