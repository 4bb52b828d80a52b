# SPDX-License-Identifier: Apache-2.0
"""What is wanted of several GPUs, and whether a run has it."""

from typing import Any

from ranks.group import AHEAD, IN_A_GRAPH, IN_A_ROW

SHORT, CACHE = 8192, 1 << 22


def _both(cells: list[dict[str, Any]], mask: str, what: str) -> float | None:
    """Of both passes by gather at the fewest tokens a GPU, in the mask's own layout, which is measured first."""
    found = [x for x in cells if x.get("mask") == mask and x.get("scheme") == "gather" and x["tokens"] == SHORT]
    return found[0][what]["both"][IN_A_ROW] if found else None


def goals(world: int, lists: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """By name: what is wanted, what was measured, or None, and whether it is enough."""
    cells = lists["cells"]
    times = {mask: _both(cells, mask, "ms") for mask in ("causal", "deterministic")}
    longer = None if None in times.values() else round(times["deterministic"] / times["causal"] - 1, 4)
    faster: dict[str, float] = {}
    for decode in lists["decode"]:
        faster |= decode["times as fast"] if decode.get("keys") == CACHE else {}
    rows = [
        ("causal, 8k tokens a GPU, both passes, of ideal at least", 0.90, _both(cells, "causal", "share"), 1),
        ("documents, 8k tokens a GPU, both passes, of ideal at least", 0.88, _both(cells, "documents", "share"), 1),
        ("deterministic, 8k tokens a GPU, both passes, longer by at most", 0.05, longer, -1),
        (
            "decode over 4M keys, times as fast as one GPU at least",
            round(3.5 / 4 * world, 3),
            faster.get(IN_A_GRAPH, faster.get(AHEAD)),
            1,
        ),
    ]
    return [
        {"goal": name, "wanted": wanted, "measured": x, "reached": None if x is None else sign * x >= sign * wanted}
        for name, wanted, x, sign in rows
    ]
