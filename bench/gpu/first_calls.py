#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long the first call of a score or mask text takes, beside its later calls: first_calls.py [--json FILE]
[--only "documents;relative bias"] [--seqlen 4096] [--batch 4] [--heads 16] [--repeats 3]
[--device h200 --strobe build/release/bin/strobe]

On a GPU each text is called in processes of its own, forward and then backward, after plain calls of the same shapes,
which start the driver and load the kernels that every call has: cold, where the cache on disk is empty; from disk, in a
new process with the same cache; and from memory, in the same process. bfloat16, head_dim 128. Times are from the call
to the end of its work on the GPU: the least of `repeats` processes, and in memory the median of 50 calls. The goal is
3 s cold and 5 ms from disk; what takes longer has a *. Then, on the CPU alone, the time in which each function of
flex_attention becomes text, and how much longer its call takes than strobe.torch.attention's with that text.

With --device, which needs no GPU, the kernels that each text's first call lacks are compiled for that device by `strobe
compile`, one after another, in place of the calls; the time of a processor is the compiler's alone, whatever else runs
on the machine.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import strobe.torch
import torch
from strobe.torch.flex.tracing import Sizes, trace
from torch import Tensor

COLD_SECONDS, DISK_SECONDS = 3.0, 0.005
IN_MEMORY = 50
HEAD_DIM = 128
PASSES = ("forward", "backward")


@dataclass
class Case:
    """Captures whose names are in `learned` have their gradients in the backward."""

    score: str | None = None
    mask: str | None = None
    captures: dict[str, Tensor] = field(default_factory=dict)
    learned: tuple[str, ...] = ()
    queries: int | None = None  # of a sequence; None: as many as keys
    score_mod: Callable[..., Any] | None = None
    mask_mod: Callable[..., Any] | None = None

    @property
    def passes(self) -> tuple[str, ...]:
        return PASSES[:1] if self.queries else PASSES


def cases(seqlen: int, heads: int) -> dict[str, Case]:
    document = torch.arange(seqlen, dtype=torch.int32) // 700
    table, slope = torch.randn(heads, 2 * seqlen), torch.rand(heads)

    def sees(_b: Any, _h: Any, q: Any, k: Any) -> Any:
        return (k <= q) & (document[k] == document[q])

    def adds(s: Any, _b: Any, h: Any, q: Any, k: Any) -> Any:
        return s + table[h, k - q + seqlen]

    of_documents = {"mask": "k <= q && document[k] == document[q]", "mask_mod": sees}
    of_distance = {"score": f"score + table[head][k - q + {seqlen}]", "score_mod": adds}
    return {
        "documents": Case(captures={"document": document}, **of_documents),
        "documents, 1 query": Case(captures={"document": document}, queries=1, **of_documents),
        "relative bias": Case(captures={"table": table}, **of_distance),
        "relative bias, learned": Case(captures={"table": table}, learned=("table",), **of_distance),
        "relative bias, 1 query": Case(captures={"table": table}, queries=1, **of_distance),
        "relative bias and documents": Case(
            captures={"table": table, "document": document}, **of_documents, **of_distance
        ),
        "any function": Case(
            score="tanh(score) * slope[head] - log(1.0 + abs(q - k))",
            captures={"slope": slope},
            score_mod=lambda s, _b, h, q, k: torch.tanh(s) * slope[h] - torch.log(1.0 + (q - k).abs()),
        ),
    }


def tensors(
    case: Case, arguments: argparse.Namespace, device: str, seqlen: int
) -> tuple[list[Tensor], dict[str, Tensor]]:
    shape = (arguments.batch, case.queries or seqlen, arguments.heads, HEAD_DIM)
    keys = (arguments.batch, seqlen, arguments.heads, HEAD_DIM)
    made = [torch.randn(x, device=device, dtype=torch.bfloat16).requires_grad_() for x in (shape, keys, keys)]
    captures = {name: x.to(device).requires_grad_(name in case.learned) for name, x in case.captures.items()}
    return made, captures


class Timed:
    """Calls of one text on the GPU: forward with a tape, and its backward."""

    def __init__(self, case: Case, arguments: argparse.Namespace) -> None:
        self.inputs, self.captures = tensors(case, arguments, "cuda", arguments.seqlen)
        self.case, self.options = case, {"score": case.score, "mask": case.mask, "captures": self.captures}
        self.d_o = torch.randn_like(self.inputs[0])

    def call(self, **options: Any) -> dict[str, float]:
        """Seconds of each pass."""
        seconds = {}
        start = perf_counter()
        out = strobe.torch.attention(*self.inputs, **options)
        torch.cuda.synchronize()
        seconds["forward"] = perf_counter() - start
        if "backward" not in self.case.passes:
            return seconds
        learned = [self.captures[name] for name in self.case.learned] if options else []
        start = perf_counter()
        torch.autograd.grad(out, [*self.inputs, *learned], self.d_o)
        torch.cuda.synchronize()
        return seconds | {"backward": perf_counter() - start}


def measured_here(case: Case, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """In a process of its own: the first call's seconds and the median of later ones."""
    timed = Timed(case, arguments)
    for _ in range(2):
        timed.call()
    first = timed.call(**timed.options)
    later = [timed.call(**timed.options) for _ in range(IN_MEMORY)]
    return {"first": first, "memory": {name: statistics.median(x[name] for x in later) for name in first}}


def in_a_process(name: str, arguments: argparse.Namespace, cache: str) -> dict[str, dict[str, float]]:
    command = [sys.executable, __file__, "--child", name]
    for option in ("seqlen", "batch", "heads"):
        command += [f"--{option}", str(getattr(arguments, option))]
    environment = os.environ | {"STROBE_CACHE_DIR": cache, "STROBE_PROGRESS": "0"}
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)


def kernels_in(cache: str) -> int:
    return sum(path.is_file() for path in Path(cache, "kernels").glob("*"))


def measured(name: str, case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of the first call without a cache and with one, and of later calls, by pass."""
    cold, disk, memory, kernels = [], [], [], 0
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(in_a_process(name, arguments, cache)["first"])
            kernels = kernels_in(cache)
            again = in_a_process(name, arguments, cache)
        disk.append(again["first"])
        memory.append(again["memory"])
    kinds = {"cold": cold, "disk": disk, "memory": memory}
    of_pass = {x: {kind: min(run[x] for run in runs) for kind, runs in kinds.items()} for x in case.passes}
    return {"compiled_kernels": kernels, **of_pass}


def compiled(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """The least seconds in which `strobe compile` has what the calls of this length lack, by pass."""
    results: dict[str, Any] = {}
    for line in recorded(case, arguments):
        runs = [compiled_once(line, arguments) for _ in range(arguments.repeats)]
        results[line.get("pass", "forward")] = {name: min(run[name] for run in runs) for name in runs[0]}
    return results


def compiled_once(line: dict[str, Any], arguments: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder, "calls.jsonl")
        calls.write_text(json.dumps(line) + "\n")
        command = [arguments.strobe, "compile", "--recorded", str(calls), "--device", arguments.device]
        environment = os.environ | {"STROBE_CACHE_DIR": folder}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = subprocess.run([*command, "--jobs", "1", "--json", "-"], env=environment, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if run.returncode != 0:
        sys.exit(run.stderr)
    answer = json.loads(run.stdout)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cold": answer["seconds"], "processor": processor, "compiled_kernels": len(answer["compiled"])}


def recorded(case: Case, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The calls as STROBE_RECORD writes them: those of few tokens on this machine's CPU, with other lengths."""
    few = 8
    with tempfile.NamedTemporaryFile(mode="r") as file:
        command = [sys.executable, __file__, "--child", arguments.name, "--record", str(few), "--seqlen"]
        command += [str(arguments.seqlen), "--batch", "1", "--heads", str(arguments.heads)]
        subprocess.run(command, env=os.environ | {"STROBE_RECORD": file.name}, check=True)
        lines = [json.loads(line) for line in file.read().splitlines()]
    queries = case.queries or arguments.seqlen
    lengths = {"seqlen_q": queries, "seqlen_k": arguments.seqlen, "batch": arguments.batch}
    totals = {"total_q": arguments.batch * queries, "total_k": arguments.batch * arguments.seqlen}
    return [line | lengths | totals for line in lines]


def record_here(case: Case, arguments: argparse.Namespace) -> None:
    inputs, captures = tensors(case, arguments, "cpu", arguments.record)
    out = strobe.torch.attention(*inputs, score=case.score, mask=case.mask, captures=captures)
    if "backward" in case.passes:
        out.sum().backward()


def traced(case: Case, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds, the least of many: of the functions as text, and of flex_attention's call over one with that text."""
    few = 16
    sizes = Sizes(1, arguments.heads, few, few)
    q, k, v = (torch.randn(1, arguments.heads, few, 64) for _ in range(3))
    block_mask = case.mask_mod and strobe.torch.create_block_mask(case.mask_mod, None, None, few, few)
    texts = trace(case.score_mod, case.mask_mod, sizes, torch.float32, q.device)._asdict()
    heads_last = [x.transpose(1, 2) for x in (q, k, v)]

    def least(call: Callable[[], Any]) -> float:
        return min(timeit.repeat(call, number=20, repeat=40)) / 20

    with torch.no_grad():
        both = least(lambda: strobe.torch.flex_attention(q, k, v, case.score_mod, block_mask))
        text = least(lambda: strobe.torch.attention(*heads_last, **texts))
    tracing = least(lambda: trace(case.score_mod, case.mask_mod, sizes, torch.float32, q.device))
    return {"trace": tracing, "more_than_a_text": both - text}


def print_calls(name: str, of_case: dict[str, Any]) -> None:
    for x in PASSES:
        if x not in of_case:
            continue
        times, kernels = of_case[x], of_case[x].get("compiled_kernels", of_case.get("compiled_kernels"))
        cells = f"{times['cold']:8.2f} s{'*' if times['cold'] > COLD_SECONDS else ' '}"
        if "processor" in times:
            cells += f" {times['processor']:8.2f} s"
        if "disk" in times:
            over = "*" if times["disk"] > DISK_SECONDS else " "
            cells += f" {1e3 * times['disk']:8.2f} ms{over} {1e3 * times['memory']:8.3f} ms"
        print(f"{name:<30} {x:<9} {kernels:>3} {cells}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--seqlen", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", help="compile for it in place of calls: h100, h200, a100, ..")
    parser.add_argument("--strobe", default="strobe", help="the program, with --device")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--record", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    table = cases(arguments.seqlen, arguments.heads)
    if arguments.child:
        case = table[arguments.child]
        if arguments.record:
            record_here(case, arguments)
        else:
            print(json.dumps(measured_here(case, arguments)))
        return
    names = [x for x in table if not arguments.only or x in arguments.only.split(";")]
    device = arguments.device or torch.cuda.get_device_name()
    report: dict[str, Any] = {"device": device, "torch": torch.__version__, "seqlen": arguments.seqlen, "cases": {}}
    print(f"{device}: first calls of texts, {arguments.batch} x {arguments.seqlen} tokens, {arguments.heads} heads")
    columns = f"{'processor':>11}" if arguments.device else f" {'disk':>11} {'memory':>12}"
    print(f"{'':<30} {'':<9} new {'cold':>10}{columns}")
    for name in names:
        arguments.name = name
        found = compiled(table[name], arguments) if arguments.device else measured(name, table[name], arguments)
        print_calls(name, found)
        report["cases"][name] = found
    print("functions of flex_attention, on the CPU: as text, and more than a call with that text")
    for name in names:
        times = traced(table[name], arguments)
        print(f"{name:<30} {1e6 * times['trace']:8.0f} us {1e6 * times['more_than_a_text']:8.0f} us", flush=True)
        report["cases"][name] |= times
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
