# SPDX-License-Identifier: Apache-2.0
"""What is wanted of several GPUs, and whether a run has it."""

from typing import Any

from ranks.group import AHEAD, IN_A_ROW

SHORT, CACHE = 8192, 1 << 22


def _share(cells: list[dict[str, Any]], mask: str, way: str = IN_A_ROW) -> float | None:
    """Of both passes by gather at the fewest tokens a GPU, in the mask's own layout, which is measured first."""
    found = [x for x in cells if x.get("mask") == mask and x.get("scheme") == "gather" and x["tokens"] == SHORT]
    return found[0]["share"]["both"][way] if found else None


def goals(world: int, lists: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """By name: what is wanted, what was measured, or None, and whether it is enough."""
    cells, decode = lists["cells"], [x for x in lists["decode"] if x.get("keys") == CACHE]
    causal, steady = _share(cells, "causal"), _share(cells, "deterministic")
    ratio = None if causal is None or steady is None else round(causal / steady - 1, 4)
    faster = decode[0]["times as fast"] if decode else {}
    faster = faster.get("in a graph", faster.get(AHEAD))
    rows = [
        ("causal, 8k tokens a GPU, both passes, of ideal at least", 0.90, causal, 1),
        ("documents, 8k tokens a GPU, both passes, of ideal at least", 0.88, _share(cells, "documents"), 1),
        ("deterministic, 8k tokens a GPU, both passes, longer by at most", 0.05, ratio, -1),
        ("decode over 4M keys, times as fast as one GPU at least", round(3.5 / 4 * world, 3), faster, 1),
    ]
    return [
        {"goal": name, "wanted": wanted, "measured": x, "reached": None if x is None else sign * x >= sign * wanted}
        for name, wanted, x, sign in rows
    ]
