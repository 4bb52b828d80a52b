# SPDX-License-Identifier: Apache-2.0
"""The program strobe, as the console script and as ``python -m strobe``, beside the one that is built without Python.

STROBE_PROGRAM names that one. All of the program's own tests run on the console script, too: python.program.
"""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest
import strobe
from strobe import _core

SCRIPT = [str(Path(sys.executable).with_name("strobe"))]
MODULE = [sys.executable, "-m", "strobe"]
SECONDS = 300
LONG = ["verify", "--seqlen", "16384", "--heads", "64", "--threads", "1"]  # minutes, which no test waits for
SMALL = ["verify", "--heads", "2", "--head-dim", "24", "--causal", "--seqlen"]  # and the length
TINY = ["bench", "--seqlen", "32", "--head-dim", "16", "--heads", "1", "--repeats", "1", "--pass", "forward"]


def run(program, *arguments, **options):
    done = subprocess.run([*program, *arguments], capture_output=True, timeout=SECONDS, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def native():
    if "STROBE_PROGRAM" not in os.environ:
        pytest.skip("STROBE_PROGRAM names no program")
    return [os.environ["STROBE_PROGRAM"]]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["verify", "--help"],
        ["explain", "--seqlen", "8192", "--head-dim", "128", "--threads", "2", "--causal", "--backward"],
        ["explain", "--seqlen", "512", "--mask-text", "k <= q", "--json", "-"],
        ["bench", "--io", "--head-dim", "64", "--seqlen", "512", "--fast-memory", "8192"],
        ["completion", "bash"],
        ["completion", "fish"],
        [],
        ["infos"],
        ["explain", "--dtype", "float8"],
        ["explain", "--heads", "8", "--heads-kv", "3"],
        ["explain", "--engine", "gpu"],
        ["run", "--q", b"\xff\xfe.npy", "--k", "k.npy", "--v", "v.npy"],
    ],
    ids=str,
)
def test_output_and_exit_code_are_the_program_s(native, arguments, tmp_path):
    expected = run(native, *arguments, cwd=tmp_path)
    for program in SCRIPT, MODULE:
        assert run(program, *arguments, cwd=tmp_path) == expected


def test_verify_finds_the_same_errors(native):
    """Standard attention's products are other code there, so that its errors are about the same, and Strobe's equal."""
    expected, found = (run(program, *SMALL, "80", "--json", "-") for program in (native, SCRIPT))
    assert (expected[0], found[0]) == (0, 0), found[2].decode()
    rows = [json.loads(outcome[1])["rows"] for outcome in (expected, found)]
    assert len(rows[0]) == len(rows[1]) == 60
    for one, other in zip(*rows, strict=True):
        same = one["implementation"] == "strobe"
        assert other == (
            one
            if same
            else one | {name: pytest.approx(one[name], rel=0.5) for name in one.keys() & {"rmse", "worst_of_bound"}}
        )


def test_info_is_what_the_package_reports():
    """One library serves both: its kernels, caches, tables and compiler are the same."""
    code, output, errors = run(MODULE, "info", "--json", "-")
    assert (code, errors) == (0, b"")
    document = json.loads(output)
    assert document["version"] == strobe.__version__
    assert document["gpu"] == strobe.info()["gpu"]


def test_pytorch_is_measured_in_this_environment(tmp_path):
    """Without --python, whichever python3 PATH has."""
    code, output, errors = run(SCRIPT, *TINY, "--implementation", "pytorch", env=os.environ | {"PATH": str(tmp_path)})
    assert code == 0 and b"pytorch" in output, errors


def test_standard_attention_is_not_measured():
    code, output, errors = run(SCRIPT, *TINY, "--implementation", "standard")
    assert (code, output) == (3, b"") and b"this build has no OpenBLAS" in errors
    code, output, errors = run(SCRIPT, *TINY, "--python", "/nonexistent")
    assert code == 0 and b"standard is left out: this build has no OpenBLAS" in errors and b"float32" in output


def test_a_pipe_that_nobody_reads_ends_it():
    with subprocess.Popen([*SCRIPT, "manual"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == -signal.SIGPIPE


@pytest.mark.parametrize("program", [SCRIPT, MODULE], ids=["script", "module"])
def test_closed_streams(program):
    for stream, expected in (("<", 0), (">", 4), ("2>", 0)):
        shell = ["/bin/sh", "-c", f'exec "$@" {stream}&-', "sh", *program, "completion", "bash"]
        code, _, errors = run(shell)
        assert code == expected, errors
        assert not errors or errors == b"strobe: cannot write to standard output: Bad file descriptor\n"


def in_a_terminal(program, columns):
    """(process, descriptor) of a program whose terminal has so many columns and sends it what is written to it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(["setsid", "--ctty", *program], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    return process, ours


def rest_of(descriptor):
    text = b""
    try:
        while part := os.read(descriptor, 4096):
            text += part
    except OSError:  # where the other side of a terminal is closed
        pass
    os.close(descriptor)
    return text


def test_text_is_as_wide_as_the_terminal(native):
    outputs = []
    for program in native, SCRIPT:
        process, terminal = in_a_terminal([*program, "explain", "--head-dim", "64"], 50)
        outputs.append(rest_of(terminal))
        assert process.wait(SECONDS) == 0
    assert outputs[0] == outputs[1] and max(map(len, outputs[1].split(b"\r\n"))) <= 50


@pytest.mark.parametrize("program", ["native", SCRIPT, MODULE], ids=["native", "script", "module"])
def test_control_c_ends_a_long_verify(program, request):
    if program == "native":
        program = request.getfixturevalue("native")
    process, terminal = in_a_terminal([*program, *LONG], 80)
    text = b""
    while b"verify" not in text:  # its progress bar
        text += os.read(terminal, 4096)
    begin = time.monotonic()
    os.write(terminal, b"\x03")
    assert process.wait(SECONDS) == -signal.SIGINT
    assert time.monotonic() - begin < 60
    assert b"Traceback" not in text + rest_of(terminal)


def test_an_interrupt_that_was_ignored_stays_so():
    shell = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *SCRIPT, *SMALL, "400"]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stderr.read(1)  # progress
        process.send_signal(signal.SIGINT)
        assert b"pass: " in process.stdout.read()
    assert process.returncode == 0


def call(*arguments):
    """In this process; the exit code."""
    return _core.run_program([b"strobe", *(argument.encode() for argument in arguments)], sys.executable)


def test_handlers_are_afterwards_as_before(capfd):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)}
    assert call("--version") == 0 and capfd.readouterr().out == f"strobe {strobe.__version__}\n"
    assert handlers == {number: signal.getsignal(number) for number in handlers}
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(SECONDS)
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"x")
    os.close(writing)


def test_a_run_does_not_remember_the_one_before(capfd):
    assert call("explain", "--json", "-") == 0
    assert json.loads(capfd.readouterr().out)
    assert call("explain", "--dtype", "float8") == 2
    assert "float8" in capfd.readouterr().err
    assert call("explain") == 0
    assert "engine" in capfd.readouterr().out


def test_the_environment_is_python_s(tmp_path):
    code = f"""
import os, sys
from strobe.__main__ import main
os.environ["STROBE_KERNELS"] = {str(tmp_path / "missing")!r}
sys.argv = ["strobe", "info", "--json", "-"]
sys.exit(main())
"""
    code, output, errors = run([sys.executable, "-c", code])
    assert (code, errors) == (0, b"")
    assert "missing: not used" in json.loads(output)["gpu"]["installed_kernels"][0]


def test_other_threads_run_meanwhile(capfd):
    codes, turns = [], 0
    thread = threading.Thread(target=lambda: codes.append(call(*SMALL, "300")))
    thread.start()
    while thread.is_alive():
        thread.join(0.01)
        turns += 1
    assert codes == [0] and turns > 5 and "pass: " in capfd.readouterr().out


def test_arguments_are_bytes():
    with pytest.raises((RuntimeError, TypeError)):
        _core.run_program(["strobe", "--version"], "python3")
