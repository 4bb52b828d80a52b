# SPDX-License-Identifier: Apache-2.0
"""Python programs that tests run in their own process, since to import PyTorch takes longer than what they compute."""

import contextlib
import io
import runpy
import subprocess
import sys
import traceback
from pathlib import Path

import torch


def run(command, *, check=True, cwd):
    """As children.run does `python command`: the program, with its options, on the CPU and one thread of PyTorch's.

    What it imports from its own folder and those beside it is forgotten afterwards.
    """
    program, *options = map(str, command)
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors), _place(program, options, cwd):
        code = _exit_code(program)
    assert not check or code == 0, f"{command} ended with {code}\n{output.getvalue()}\n{errors.getvalue()}"
    return subprocess.CompletedProcess(command, code, output.getvalue(), errors.getvalue())


def _exit_code(program):
    """Of the program, run as such; what ends it is written to sys.stderr, as Python does."""
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except Exception:
        traceback.print_exc()
        return 1
    return 0


@contextlib.contextmanager
def _place(program, options, folder):
    """What a program finds of its process, as it would be in a process of its own."""
    arguments, paths, modules = sys.argv, list(sys.path), set(sys.modules)
    threads, has_gpu = torch.get_num_threads(), torch.cuda.is_available
    own = Path(program).resolve().parent
    sys.argv = [program, *options]
    sys.path.insert(0, str(own))
    torch.set_num_threads(1)
    torch.cuda.is_available = lambda: False
    try:
        with contextlib.chdir(folder), torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.cuda.is_available = has_gpu
        torch.set_num_threads(threads)
        sys.argv, sys.path[:] = arguments, paths
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(own.parent):
                del sys.modules[name]
