# SPDX-License-Identifier: Apache-2.0
"""What travels under kernels, by PyTorch's profiler: when each kernel, copy and message of a call was on its GPU."""

from typing import Any

import strobe.torch
import torch
from ranks.calls import CAUSAL, Mask, Sizes, draw, passes
from ranks.group import Ranks

WARM_UP = 3
_MESSAGES, _COPIES, _WAITS = ("nccl",), ("Memcpy PtoP", "Memcpy DtoD"), ("barrier",)

Span = tuple[float, float]


def kind(name: str) -> str:
    """Of an event on a GPU. Copies within a GPU count as travel: the profiler does not tell the peers' from them."""
    lower = name.lower()
    if any(word in lower for word in _WAITS):
        return "wait"
    if any(word in lower for word in _MESSAGES) or name.startswith(_COPIES):
        return "travel"
    return "kernel"


def united(spans: list[Span]) -> list[Span]:
    """In order, those that touch as one."""
    result: list[Span] = []
    for begin, end in sorted(spans):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((begin, end))
    return result


def length(spans: list[Span]) -> float:
    return sum(end - begin for begin, end in spans)


def common(a: list[Span], b: list[Span]) -> float:
    """How long both have something, where each is united."""
    return sum(max(0.0, min(x[1], y[1]) - max(x[0], y[0])) for x in a for y in b)


def summary(events: list[tuple[str, float, float]]) -> dict[str, float]:
    """Of a GPU's (name, begin, end) in microseconds."""
    of_kind = {
        which: united([(begin, end) for name, begin, end in events if kind(name) == which])
        for which in ("kernel", "travel", "wait")
    }
    busy, travel = of_kind["kernel"], of_kind["travel"]
    whole = max((end for *_, end in events), default=0.0) - min((begin for _, begin, _ in events), default=0.0)
    return {
        "ms": round(whole / 1e3, 3),
        "kernels, ms": round(length(busy) / 1e3, 3),
        "travel, ms": round(length(travel) / 1e3, 3),
        "waits, ms": round(length(of_kind["wait"]) / 1e3, 3),
        "of travel under kernels": round(common(busy, travel) / length(travel), 4) if travel else 1.0,
    }


def profiled(ranks: Ranks, sizes: Sizes, tokens: int, scheme: str, mask: Mask = CAUSAL) -> dict[str, Any]:
    """Of one forward and backward, by rank, and the events of rank 0."""
    cp = strobe.torch.ContextParallel(layout=mask.layout, scheme=scheme)
    cp.set_sequences(tokens * ranks.world)
    parts = draw(sizes, len(cp.positions()), ranks.device)
    call = passes(cp.attention, parts, mask.options(sizes))["both"]
    for _ in range(WARM_UP):
        call()
    ranks.synchronize()
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CUDA if ranks.on_gpus else activity.CPU]) as profile:
        call()
        ranks.synchronize()
    device = torch.autograd.DeviceType.CUDA if ranks.on_gpus else torch.autograd.DeviceType.CPU
    events = sorted(
        (
            (x.name, x.time_range.start, x.time_range.end)
            for x in profile.events()
            if x.device_type == device and not x.name.startswith("ProfilerStep")
        ),
        key=lambda x: x[1],
    )
    first = events[0][1] if events else 0.0
    shown = [[round(begin - first, 1), round(end - begin, 1), name[:60]] for name, begin, end in events]
    of_ranks = ranks.gathered(summary(events))
    result = {"mask": mask.name, "tokens": tokens, "scheme": scheme, "ranks": of_ranks}
    return result | ({"events of rank 0, us": shown} if ranks.on_gpus else {})
