# SPDX-License-Identifier: Apache-2.0
"""Context parallelism on the GPUs of one host, beside one of them: right, and how fast of what would be ideal.

    scripts/gpu/context_parallel.sh OUT            # starts a process on each GPU, and draws what they measured

32 query heads, 8 key heads, head_dim 128, bfloat16, 8k, 32k and 128k tokens a GPU. First every scheme, layout and
option is compared with one GPU: in the bits where that is promised. Then forward and both passes are timed, in order of
importance, beside one GPU and, with --ring, ring-flash-attn, and PyTorch's context_parallel. Ideal is one GPU's time
for the whole divided by the number of GPUs. OUT.json is written after every cell: a run that is cut off counts; what
there was no time for is in "left out". --device cpu shows that all of it works, on tiny tensors. With
STROBE_HIGH_PRIORITY in the environment messages travel on a stream of high priority. Ends with 1 where a result is
wrong.
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from ranks.calls import CAUSAL, DETERMINISTIC, DOCUMENTS, FULL, SCHEMES, TINY, WINDOW, Mask, Sizes
from ranks.checks import Checks
from ranks.goals import goals
from ranks.group import Ranks
from ranks.overlap import profiled
from ranks.peers import Peers
from ranks.times import Times
from ranks.training import trained
from torch import distributed

SMOKE_OPTIONS = ["one row-invariant launch", "sink", "bias", "documents with slopes", "a learnt scale"]
ROTATIONS, BACKENDS = ("allgather", "alltoall"), ("CUDNN_ATTENTION", "FLASH_ATTENTION")


class Record:
    """The JSON of a run, which rank 0 writes after every step."""

    def __init__(self, ranks: Ranks, out: Path, about: dict[str, Any]) -> None:
        self.ranks, self.out, self.start = ranks, out, time.time()
        self.about = about
        self.lists: dict[str, list[Any]] = {name: [] for name in ("cells", "decode", "overlap", "training")}
        self.checks: dict[str, Any] = {}
        self.left_out: list[str] = []

    def save(self) -> None:
        if self.ranks.rank == 0:
            reached = goals(self.ranks.world, self.lists)
            record = self.about | {"seconds": round(time.time() - self.start, 1), "goals": reached} | self.lists
            record |= {"left out": self.left_out, "checks": self.checks}
            new = self.out.with_suffix(".new")
            new.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
            new.replace(self.out)

    def step(self, where: str, name: str, seconds: float, measure: Callable[[], dict[str, Any]]) -> None:
        """What a step measures, if it would end in time. What fails does so on every rank."""
        if self.ranks.left() < seconds:
            self.left_out.append(name)
            return
        try:
            result = measure()
        except Exception as error:  # of what a scheme or a peer does not have, of memory
            result = {"name": name, "raised": f"{type(error).__name__}: {error}"[:300]}
        gc.collect()
        if self.ranks.on_gpus:
            torch.cuda.empty_cache()
        self.lists[where].append(result)
        self.save()
        if self.ranks.rank == 0:
            told = {
                key: x for key, x in result.items() if key in ("share", "times as fast", "tokens/s", "raised", "error")
            }
            print(f"{self.about['GPUs']} GPUs, {name}: {json.dumps(told)}", flush=True)


class Measurements:
    """Steps by importance."""

    def __init__(self, record: Record, ranks: Ranks, sizes: Sizes, ring: str | None) -> None:
        self.record, self.ranks, self.sizes = record, ranks, sizes
        self.times = Times(ranks, sizes)
        self.peers = Peers(ranks, sizes, self.times, ring)

    def run(self) -> None:
        shorter, longest = self.sizes.tokens[:2], self.sizes.tokens[2:]
        for tokens in shorter:
            for mask in (CAUSAL, DOCUMENTS, DETERMINISTIC):
                self.cell(mask, tokens)
        self.decode()
        for tokens in shorter:
            self.overlap(tokens)
            self.beside(tokens)
        for tokens in shorter:
            for mask in (WINDOW, FULL):
                self.cell(mask, tokens)
        self.training()
        for tokens in longest:
            for mask in (CAUSAL, DOCUMENTS, WINDOW, FULL):
                self.cell(mask, tokens)
        for tokens in shorter:
            for scheme in SCHEMES[1:]:
                self.cell(CAUSAL, tokens, scheme)
            self.cell(DOCUMENTS, tokens, "gather", "zigzag")
            self.cell(WINDOW, tokens, "gather", "zigzag")
            for scheme in SCHEMES[1:]:
                self.cell(DOCUMENTS, tokens, scheme)
        if self.ranks.on_gpus:  # last, as a capture that fails leaves a group behind that none can use
            keys = self.sizes.cache
            self.record.step("decode", f"decode over {keys} keys in a graph", 12, lambda: self.times.decode(keys, True))

    def cell(self, mask: Mask, tokens: int, scheme: str = "gather", layout: str | None = None) -> None:
        layout = layout or mask.layout
        one = self.times.seconds(mask, tokens * self.ranks.world)
        # A long call is run four times by the ranks, and a call that one GPU can end in time by it.
        seconds = 5 + 6 * one / self.ranks.world + 5 * min(one, 3.0)
        name = f"{mask.name}, {tokens} tokens a GPU, {layout}, {scheme}"
        self.record.step("cells", name, seconds, lambda: self.times.shared(mask, tokens, scheme, layout))

    def decode(self) -> None:
        for keys in (self.sizes.cache, self.sizes.cache // 4):
            self.record.step("decode", f"decode over {keys} keys", 12, lambda keys=keys: self.times.decode(keys))

    def overlap(self, tokens: int) -> None:
        for scheme in SCHEMES:
            name = f"overlap, {tokens} tokens a GPU, {scheme}"
            self.record.step(
                "overlap", name, 10, lambda scheme=scheme: profiled(self.ranks, self.sizes, tokens, scheme)
            )

    def beside(self, tokens: int) -> None:
        seconds = 10 + 8 * self.times.seconds(CAUSAL, tokens * self.ranks.world) / self.ranks.world
        name = f"ring-flash-attn, {tokens} tokens a GPU"
        self.record.step("cells", name, seconds, lambda: self.peers.ring(tokens))
        if not self.ranks.on_gpus:
            return
        for method in ROTATIONS:
            for backend in BACKENDS:
                name = f"PyTorch's context_parallel, {tokens} tokens a GPU, {method}, {backend}"
                self.record.step("cells", name, seconds, lambda m=method, b=backend: self.peers.pytorch(tokens, m, b))

    def training(self) -> None:
        for together in (True, False):
            name = f"training, {self.sizes.training} tokens, {'all' if together else 'one GPU'}"
            self.record.step(
                "training", name, 30, lambda together=together: trained(self.ranks, self.sizes.training, together)
            )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="OUT.json")
    parser.add_argument("--minutes", type=float, default=8, help="of the whole run")
    parser.add_argument("--check-minutes", type=float, help="of them at most for checks, a third by default")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=int, nargs="+", help="a GPU: three numbers at most, the third by gather alone")
    parser.add_argument("--ring", help="a folder with the package ring_flash_attn")
    return parser.parse_args()


def main() -> int:
    options = parse()
    ranks = Ranks(options.device, 60 * options.minutes)
    sizes = Sizes() if ranks.on_gpus else TINY
    if options.tokens:
        sizes = Sizes(**(vars(sizes) | {"tokens": tuple(options.tokens[:3])}))
    about = {
        "device": torch.cuda.get_device_name() if ranks.on_gpus else "CPU",
        "GPUs": ranks.world,
        "torch": torch.__version__,
        "heads": [sizes.heads, sizes.heads_kv, sizes.head_dim],
        "columns of times": "medians of the slowest rank in milliseconds, and shares of one GPU's time for its part",
    }
    record = Record(ranks, options.out, about)
    checks = Checks(ranks, sizes)

    def save_checks() -> None:
        record.checks = checks.summary()
        record.save()

    minutes = options.minutes / 3 if options.check_minutes is None else options.check_minutes
    checks.run(60 * minutes, save_checks, None if ranks.on_gpus else SMOKE_OPTIONS)
    save_checks()
    if ranks.rank == 0:
        print(
            f"{checks.right} checks are right, {len(checks.wrong)} wrong, {len(checks.left_out)} left out", flush=True
        )
        print("".join(f"WRONG: {name}\n" for name in checks.wrong), end="", flush=True)
    Measurements(record, ranks, sizes, options.ring).run()
    record.save()
    distributed.barrier()
    distributed.destroy_process_group()
    wrong = checks.wrong or any("WRONG" in str(cell.get("error")) for cell in record.lists["cells"])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
