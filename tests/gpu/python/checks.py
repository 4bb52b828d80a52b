# SPDX-License-Identifier: Apache-2.0
"""The command line of checks that go through a list of calls."""

import argparse
import itertools
import sys

import torch


def main(description, cases, plan, check_all, measure):
    """Ends the program: 1 where check_all() says that something is wrong.

    `cases`: positional and named arguments of each call. `plan`: plans a call of such arguments, and so compiles it.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true", help="measure, too")
    parser.add_argument(
        "--plan", metavar="I/N", help="only plan every N-th call from the I-th: to compile side by side"
    )
    arguments = parser.parse_args()
    torch.manual_seed(1)
    if arguments.plan:
        first, step = map(int, arguments.plan.split("/"))
        for case, options in itertools.islice(cases, first, None, step):
            plan(*case, **options)
        return
    good = check_all()
    if arguments.speed:
        measure()
    sys.exit(0 if good else 1)
