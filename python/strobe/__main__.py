# SPDX-License-Identifier: Apache-2.0
"""The program strobe: what the console script and ``python -m strobe`` run."""

import os
import sys

from strobe._core import run_program


def main() -> int:
    """Runs the program with the arguments in ``sys.argv``; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it is None where the descriptor is closed
            stream.flush()
    return run_program([os.fsencode(argument) for argument in sys.argv], sys.executable or "python3")


if __name__ == "__main__":
    sys.exit(main())
