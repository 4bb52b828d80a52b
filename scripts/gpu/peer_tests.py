# SPDX-License-Identifier: Apache-2.0
"""Runs a test file of flash-attn's own repository against Strobe's drop-ins, unchanged, and counts the outcomes:

    python scripts/gpu/peer_tests.py flash-attention/tests/test_flash_attn.py
    python scripts/gpu/peer_tests.py flash-attention/hopper/test_flash_attn.py --device cpu --each 20 -- -k varlen

A test is unsupported if a NotImplementedError ended it. The files have hundreds of thousands of parametrisations, of
which --each takes a random few of every function. --device cpu puts what they make on "cuda" into host memory.
"""

import argparse
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.overrides import TorchFunctionMode


class OnTheCpu(TorchFunctionMode):
    """Makes tensors that are asked for on "cuda" in host memory."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def pretend_to_have_a_gpu():
    """What the files ask of the device before they ask for tensors."""
    torch.cuda.get_device_capability = lambda *device: (9, 0)
    properties = SimpleNamespace(total_memory=2**40, multi_processor_count=132)
    torch.cuda.get_device_properties = lambda *device: properties


def causes(error):
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class Counts:
    """A plugin of pytest's: samples, runs until the time is over, and counts."""

    def __init__(self, options):
        self.options = options
        self.deadline = 0.0
        self.outcomes = Counter()
        self.messages = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc):
        result = yield
        calls = metafunc._calls
        if len(calls) > self.options.each:
            chosen = random.Random(f"{self.options.seed} {metafunc.function.__name__}")
            metafunc._calls = chosen.sample(calls, self.options.each)
        return result

    def pytest_collection_modifyitems(self, items):
        random.Random(self.options.seed).shuffle(items)  # the time may end before the tests do
        self.deadline = time.monotonic() + self.options.seconds  # collecting takes a minute of its own

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        if time.monotonic() > self.deadline:
            pytest.skip("the time is over")
        if self.options.device == "cuda":
            return (yield)
        with OnTheCpu():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "call":
            error = call.excinfo.value if report.failed else None
            unsupported = next((e for e in causes(error) if isinstance(e, NotImplementedError)), None)
            self.outcomes["unsupported" if unsupported else report.outcome] += 1
            if error is not None:
                self.messages[str(unsupported or repr(error)).partition("\n")[0][:150]] += 1
            if report.failed and unsupported is None:
                print(f"FAILED {item.name}: {error!r}"[:1500])
                print(report.capstdout[-600:])
        return report


def main():
    own = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="its folder holds the modules that it imports")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--each", type=int, default=100, help="parametrisations of a function")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--seconds", type=float, default=600, help="what has not begun by then is left out")
    options = parser.parse_args(own)
    if options.device == "cpu":
        pretend_to_have_a_gpu()
    counts = Counts(options)
    settings = [
        "-c",
        os.devnull,
        "--rootdir",
        str(options.file.parent),
        "--import-mode=prepend",
        "-p",
        "no:cacheprovider",
    ]
    settings += ["-q", "--no-header", "--tb=no", "--no-summary", "-W", "ignore"]
    code = pytest.main([*settings, str(options.file), *sys.argv[1 + len(own) + 1 :]], plugins=[counts])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(code)
    for message, count in counts.messages.most_common():
        print(f"{count:6}  {message}")
    print(", ".join(f"{counts.outcomes[name]} {name}" for name in ("passed", "unsupported", "failed", "skipped")))
    sys.exit(1 if counts.outcomes["failed"] else 0)


if __name__ == "__main__":
    main()
