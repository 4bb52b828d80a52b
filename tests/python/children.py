# SPDX-License-Identifier: Apache-2.0
"""Programs that tests start. None outlives its test: not past its time limit, and not past the tests' own process.

`run` starts this file as a program between the two: it is told when the process of the tests dies, whatever kills that,
and adopts whatever its command starts, in sessions of their own too, as torchrun's workers are.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 300  # that a program may take
DIE_WITH_PARENT, ADOPT_ORPHANS = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of Linux's prctl
STACKS_TAKE = 3  # seconds, that Python prints those of all threads in


def run(command, *, check=True, timeout=SECONDS, cwd=None, env=None):
    """subprocess.run of text that is captured; what does not end in time fails the test with all that was printed."""
    environment = dict(os.environ if env is None else env) | {"PYTHONFAULTHANDLER": "1"}
    supervised = [sys.executable, "-E", "-S", __file__, str(os.getpid()), *map(str, command)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(supervised, cwd=cwd, env=environment, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException as error:
            process.terminate()
            output, errors = process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise AssertionError(f"{command} took more than {timeout} s\n{output}\n{errors}") from None
            raise
    assert not check or process.returncode == 0, f"{command} ended with {process.returncode}\n{output}\n{errors}"
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def die_with_parent(number=signal.SIGKILL):
    """Of this process, when the thread that started it ends."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, int(number), 0, 0, 0)


def end_children():
    """Kills all processes below this one. A killed process leaves its own children to this one."""
    for number, seconds in ((signal.SIGABRT, STACKS_TAKE), (signal.SIGKILL, 60)):
        deadline = time.monotonic() + seconds
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                for child in children():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, number)
                while os.waitpid(-1, os.WNOHANG)[0] != 0:
                    pass
                time.sleep(0.05)


def children():
    for task in Path("/proc/self/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def main(parent, *command):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    die_with_parent(signal.SIGTERM)
    ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit(1)
    try:
        code = subprocess.Popen(command).wait()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end_children()
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(*sys.argv[1:])
