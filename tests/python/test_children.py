# SPDX-License-Identifier: Apache-2.0
"""No program that a test starts outlives it, wherever it put itself."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import children
import pytest

# A program that starts another in a session of its own, writes both process ids, and waits for good.
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
with open(sys.argv[1] + ".part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".part", sys.argv[1])
print("waiting", flush=True)
time.sleep(1000)
"""
IN_A_TEST = "import children, sys; children.run([sys.executable, '-c', sys.argv[1], sys.argv[2]])"


def ends(process):
    """Whether it is gone, or a zombie, soon."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def processes(path):
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return [int(process) for process in path.read_text().split()]


def test_time_limit(tmp_path):
    with pytest.raises(AssertionError, match=r"took more than 5 s") as caught:
        children.run([sys.executable, "-c", PARENT, tmp_path / "processes"], timeout=5)
    assert "waiting" in str(caught.value)
    assert "Current thread" in str(caught.value)  # where each thread was
    assert all(ends(process) for process in processes(tmp_path / "processes"))


def test_death_of_the_tests(tmp_path):
    command = [sys.executable, "-c", IN_A_TEST, PARENT, str(tmp_path / "processes")]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(command, env=environment, preexec_fn=children.die_with_parent) as tests:
        started = processes(tmp_path / "processes")
        tests.send_signal(signal.SIGKILL)
    assert all(ends(process) for process in started)


def test_what_programs_leave_behind(tmp_path):
    program = PARENT.rpartition("time.sleep")[0]
    assert children.run([sys.executable, "-c", program, tmp_path / "processes"]).stdout == "waiting\n"
    assert all(ends(process) for process in processes(tmp_path / "processes"))


def test_results():
    ended = children.run(
        [sys.executable, "-c", "import sys; print(1); print(2, file=sys.stderr); sys.exit(3)"], check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "1\n", "2\n")
    killed = children.run([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], check=False)
    assert killed.returncode == 128 + 9
    with pytest.raises(AssertionError, match="ended with 4"):
        children.run([sys.executable, "-c", "import sys; sys.exit(4)"])
