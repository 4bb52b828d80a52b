# SPDX-License-Identifier: Apache-2.0
"""Which key heads gather computes together: all, or two groups. The second travels under the kernel of the first."""

HIDDEN_BYTES = {"forward": 128 << 20, "backward": 512 << 20}
"""Of the keys and values of all ranks. Fewer are one group: to fetch them takes less time than another launch, and than
smaller kernels lose. As measured on two H100s: docs/log/context-parallel.json."""


def first_heads(heads_kv: int, buffer_bytes: int, backward: bool) -> int:
    """Key heads of the first group; 0: there is one group.

    Nothing hides the way of the first group, nor in a backward that of the last one's gradients, which are more.
    """
    if heads_kv < 2 or buffer_bytes < HIDDEN_BYTES["backward" if backward else "forward"]:
        return 0
    return max(1, heads_kv // (2 if backward else 4))


def hidden_shares(heads_kv: int, buffer_bytes: int, keys: int, gradients: int) -> tuple[float, float]:
    """What travels under kernels of a forward, which receives ``keys`` bytes, and of a backward, which receives as many
    again and ``gradients``."""
    forward, backward = (first_heads(heads_kv, buffer_bytes, x) / max(heads_kv, 1) for x in (False, True))
    in_sight = keys * backward + gradients * (1 - backward)
    return (
        1 - forward if forward else 0.0,
        1 - in_sight / max(keys + gradients, 1) if backward else 0.0,
    )
