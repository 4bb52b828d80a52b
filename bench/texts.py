# SPDX-License-Identifier: Apache-2.0
"""What score and mask texts cost on a CPU, beside the option that says the same or the most like: texts.py [OUT.json]

8 heads, 1,024 queries and keys, or one query of 4,096 keys. A text and what it is compared with run in turns, each in
this thread; a ratio is that of the tenth percentiles of the thread's own time on a processor.
"""

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import strobe
import torch

HEADS, KEYS, FAR_KEYS = 8, 1024, 4096
SECONDS, MOST_TURNS, LEAST_TURNS = 1.0, 200, 5


@dataclass
class Text:
    """`like`: the options of the call that it is compared with."""

    name: str
    score: str | None = None
    mask: str | None = None
    captures: dict[str, torch.Tensor] = field(default_factory=dict)
    like: dict[str, Any] = field(default_factory=dict)


def texts(queries: int, keys: int) -> list[Text]:
    slope = torch.exp2(-torch.arange(1.0, HEADS + 1))
    bias, diagonals = torch.randn(HEADS, queries, keys), torch.randn(HEADS, queries + keys)
    document = (torch.arange(keys) // 300).int()
    at, option = "(q + k_len - q_len)", {"bias": bias[None]}
    causal = f"k <= {at}"
    of_diagonals = f"score + rel[head][k - q + {queries - 1}]"
    return [
        Text("`30 * tanh(score / 30)`", "30 * tanh(score / 30)", like={"softcap": 30.0}),
        Text("the same `+ 0.001 * k`", "30 * tanh(score / 30) + 0.001 * k", like={"softcap": 30.0}),
        Text(
            "ALiBi and a causal mask", f"score + slope[head] * (k - {at})", causal, {"slope": slope},
            {"alibi_slopes": slope, "causal": True},
        ),
        Text("`score + bias[head][q][k]`", "score + bias[head][q][k]", None, {"bias": bias}, option),
        Text("`score + 2 * bias[head][q][k]`", "score + 2 * bias[head][q][k]", None, {"bias": bias}, option),
        Text("`score + rel[head][k - q + c]`", of_diagonals, None, {"rel": diagonals}, option),
        Text("causal", mask=causal, like={"causal": True}),
        Text("window of 256", mask=f"{causal} && {at} - k < 256", like={"window": (255, 0)}),
        Text(
            "causal and documents", mask=f"{causal} && document[k] == document[{at}]", captures={"document": document},
            like={"causal": True},
        ),
    ]  # fmt: skip


def ratio(one: Callable[[], Any], other: Callable[[], Any]) -> float:
    """Times of the one over those of the other."""
    times: tuple[list[float], list[float]] = ([], [])
    one(), other()
    end = time.perf_counter() + SECONDS
    while len(times[0]) < LEAST_TURNS or (time.perf_counter() < end and len(times[0]) < MOST_TURNS):
        for call, of_call in zip((one, other), times, strict=True):
            start = time.thread_time()
            call()
            of_call.append(time.thread_time() - start)
    first, second = (statistics.quantiles(x, n=10, method="inclusive")[0] for x in times)
    return round(first / second, 3)


def calls(options: dict[str, Any], inputs: list[torch.Tensor], d_o: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Of the forward and, of more than one query, of the backward."""
    o, lse = strobe.attention(*inputs, return_lse=True, threads=1, **options)
    forward = {"forward": lambda: strobe.attention(*inputs, threads=1, **options)}
    if inputs[0].shape[1] == 1:
        return forward
    return forward | {
        "backward": lambda: strobe.attention_backward(d_o, *inputs, o, lse, threads=1, **options),
    }


def cells(dtype: torch.dtype, head_dim: int, queries: int, keys: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    inputs = [torch.randn(1, n, HEADS, head_dim).to(dtype) for n in (queries, keys, keys)]
    d_o, found = torch.randn(1, queries, HEADS, head_dim).to(dtype), []
    for text in texts(queries, keys):
        options = {"score": text.score, "mask": text.mask, "captures": text.captures or None}
        written, wanted = (calls(x, inputs, d_o) for x in (options, text.like))
        ratios = {name: ratio(written[name], wanted[name]) for name in written}
        found.append({"text": text.name, "dtype": str(dtype).removeprefix("torch."), "head_dim": head_dim})
        found[-1] |= {"queries": queries, "keys": keys, **ratios}
        print(found[-1], flush=True)
    return found


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    torch.set_num_threads(1)
    found = []
    for dtype, head_dim in product((torch.float32, torch.bfloat16), (64, 128)):
        for queries, keys in ((KEYS, KEYS), (1, FAR_KEYS)):
            found += cells(dtype, head_dim, queries, keys)
    if len(sys.argv) > 1:
        report = {"processor": processor(), "strobe": strobe.__version__, "ratios": found}
        Path(sys.argv[1]).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
