#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every architecture of the installed transformers with attn_implementation="strobe", beside eager attention.

Each is built from a tiny configuration with random weights and runs the cases of tests/python/architectures/cases.py:
padding, packed documents, masks of the caller's own, caches, generation, cross-attention, gradients. An architecture is
equal to eager in float32, to rounding, or says what it needs that Strobe has not; anything else is a failure and the
exit status 1. Run with a Python that has strobe and transformers:

    python scripts/transformers_sweep.py                  # about two minutes
    python scripts/transformers_sweep.py llama t5 --verbose
"""

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))
from architectures import cases, tiny

MARKS = {"equal": ".", "refused": "r", "not comparable": "-", "not served": "n", "wrong": "W", "failed": "F"}


def run(architecture, names, verbose):
    """What happened in each case, by name; a text where no case ran."""
    try:
        model = tiny.model_of(architecture, names)
    except Exception as error:
        return f"not built: {type(error).__name__}: {' '.join(str(error).split())[:140]}"
    outcomes = {}
    for name, case in cases.cases_of(model).items():
        outcomes[name] = cases.outcome(model, case)
        if verbose:
            print(f"    {name:12} {outcomes[name][0]:15} {' '.join(outcomes[name][1].split())[:150]}", flush=True)
    if not outcomes:
        return f"not run: its input is {model.main_input_name}"
    results = {kind for kind, _ in outcomes.values()}
    if results <= {"not comparable", "not served"}:
        reason = next((words for kind, words in outcomes.values() if kind == "not served"), None)
        return (
            f"not served: {reason}"
            if reason
            else f"not run: {' '.join(next(iter(outcomes.values()))[1].split())[:140]}"
        )
    return outcomes


def report(architecture, outcomes):
    """A line of the table, and what failed or was refused."""
    marks = "".join(MARKS[kind] for kind, _ in outcomes.values())
    print(f"{architecture:34} {marks}", flush=True)
    said = set()
    for name, (kind, words) in outcomes.items():
        if kind in ("refused", "wrong", "failed") and words not in said:
            said.add(words)
            print(f"    {name}: {kind}: {' '.join(words.split())[:200]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architectures", nargs="*", help="model types; all by default")
    parser.add_argument("--verbose", action="store_true", help="a line for each case")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    cases.count_calls()
    print(f"transformers {transformers.__version__}; {', '.join(f'{mark} {kind}' for kind, mark in MARKS.items())}")
    began, totals, left_out, served = time.time(), Counter(), {}, set()
    for architecture, names in tiny.classes():
        if arguments.architectures and architecture not in arguments.architectures:
            continue
        outcomes = run(architecture, names, arguments.verbose)
        if isinstance(outcomes, str):
            left_out[f"{architecture} ({names[0]})"] = outcomes
            continue
        served.add(architecture)
        totals.update(kind for kind, _ in outcomes.values())
        report(architecture, outcomes)
    print(f"\n{len(left_out)} architectures without a result:")
    for architecture, reason in left_out.items():
        print(f"    {architecture}: {reason}")
    counts = ", ".join(f"{number} {kind}" for kind, number in totals.items())
    print(f"\n{len(served)} architectures in {time.time() - began:.0f} s: {counts}")
    return 1 if totals["wrong"] or totals["failed"] or not served else 0


if __name__ == "__main__":
    sys.exit(main())
