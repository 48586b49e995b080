"""Standard streams and the terminal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from iotrace.session.names import DFTRACER, RECORDER
from tests.faults.harness import RUN, Running, Trial
from tests.faults.programs import DATA, READING, READS
from tests.faults.rows import row

ECHOES = """
import hashlib, sys
data = sys.stdin.buffer.read()
print(len(data), hashlib.sha256(data).hexdigest(), sys.stdin.isatty())
sys.stdout.buffer.write(bytes(range(256)) * 100)
"""


@row("100 MB through standard input, a file or a pipe, bytes of all kinds", kept="every byte", lost="nothing")
@pytest.mark.parametrize("piped", [False, True])
def test_a_long_input(trial: Trial, piped: bool) -> None:
    data = os.urandom(1 << 20) * 100
    if piped:
        (trial.directory / "data").write_bytes(data)
        session = trial.directory / "session"
        pipe = ["sh", "-c", 'cat "$0" | exec "$@"', str(trial.directory / "data")]
        launcher = [*RUN, "-q", "-o", str(session), "--"]
        command = trial.command(ECHOES)
        pair = trial.pair(trial.start([*pipe, *command]), trial.start([*pipe, *launcher, *command]), session)
    else:
        pair = trial.both(ECHOES, stdin=data)
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.bare.stdout.startswith(str(100 << 20))


TERMINAL = """
import os, sys, termios
print(sys.stdin.isatty(), os.isatty(0), os.tcgetpgrp(0) == os.getpgrp(), flush=True)
print("ready", flush=True)
print("line", input(), termios.tcgetattr(0)[3] & termios.ECHO, flush=True)
"""


@row("a terminal as standard input", kept="its settings, its foreground group, what is typed", lost="nothing")
def test_a_terminal(trial: Trial) -> None:
    pair = trial.both(TERMINAL, act=lambda running: running.when("ready").press(b"typed\n"), terminal=True)
    pair.assert_same()
    pair.assert_nothing_lost()
    assert "line typed" in pair.bare.stdout


CLOSED = (
    READING
    + """
with open("seen", "w") as file:
    file.write(str([sys.stdin is None, sys.stdout is None, sys.stderr is None]))
sys.exit(8)
"""
)


@row(
    "a standard stream is closed at the start (`<&-`)",
    kept="which one is; the exit code, all calls",
    lost="nothing",
)
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream(trial: Trial, closed: int, by: str) -> None:
    trial.files = DATA
    program = CLOSED.replace("print(loss(step), flush=True)", "loss(step)")
    pair = trial.both(program, prepare=lambda: os.close(closed), options=["--io-by", by])
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.traced.code == 8
    assert pair.calls("pread64", "data.bin") == READS


PIPES = """
import subprocess, sys
program = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
program.stdout.readline()
program.stdout.close()
errors = program.stderr.read().decode()
print(program.wait(), errors)
"""


@row("nobody reads standard output any more (`| head -1`)", kept="BrokenPipeError, exit code", lost="nothing")
def test_a_broken_pipe(trial: Trial) -> None:
    trial.files = DATA
    quiet = READING.replace("print(loss(step), flush=True)", "loss(step)")
    program = quiet + "while True:\n    print(loss(0), flush=True)\n"
    reader = trial.directory / "reader.py"
    reader.write_text(PIPES)
    command = trial.command(program)
    session = trial.directory / "session"
    launcher = [*RUN, "-q", "-o", str(session), "--"]
    bare = trial.start([sys.executable, str(reader), *command])
    traced = trial.start([sys.executable, str(reader), *launcher, *command])
    assert "BrokenPipeError" in bare.stdout
    assert (traced.stdout, traced.stderr) == (bare.stdout, bare.stderr)
    pair = trial.pair(bare, traced, session)
    pair.assert_nothing_lost()


@row("standard error is a full device, or nobody reads it", kept="the exit code", lost="nothing")
@pytest.mark.parametrize("full", [True, False])
def test_standard_error_is_gone(trial: Trial, full: bool) -> None:
    def redirect() -> None:
        reading, writing = os.pipe()
        os.dup2(os.open("/dev/full", os.O_WRONLY) if full else writing, 2)
        os.close(reading)
        os.close(writing)

    trial.files = DATA
    pair = trial.both(READING + "sys.exit(12)\n", prepare=redirect)
    pair.assert_same()
    pair.assert_nothing_lost()


@row(
    "without -q, standard error is a full device",
    kept="the exit code",
    lost="the lines of iotrace",
)
def test_our_lines_cannot_be_written(trial: Trial) -> None:
    trial.files = DATA
    command = trial.command(READING + "sys.exit(12)\n")
    session = trial.directory / "session"
    line = [*RUN, "-o", str(session), "--", *command]
    bare = trial.start(command)
    with open("/dev/full", "wb") as full:
        traced = subprocess.run(
            line, cwd=trial.directory / "run-1" / "cwd", stdout=-1, stderr=full, timeout=50
        )
    assert (traced.returncode, traced.stdout.decode()) == (bare.code, bare.stdout)
    trial.pair(bare, bare, session).assert_nothing_lost()


CONTROL = (
    READING
    + """
import time
def stopped(number, frame):
    print("continued", flush=True)
    sys.exit(3)
signal.signal(signal.SIGCONT, stopped)
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""
)


@row("Ctrl-Z on the terminal, then SIGCONT", kept="the stop, the handler, the exit code", lost="nothing")
def test_control_z(trial: Trial) -> None:
    import signal

    def stop(running: Running) -> None:
        import psutil

        from tests.support.waiting import eventually

        running.when("ready").press(b"\x1a")
        program = psutil.Process(running.pid)
        # Without a shell the group is an orphan: the kernel drops the stop of the key, so we send one.
        running.kill_group(signal.SIGSTOP)
        eventually(lambda: program.status() == psutil.STATUS_STOPPED)
        running.kill_group(signal.SIGCONT)

    trial.files = DATA
    pair = trial.both(CONTROL, act=stop, terminal=True)
    pair.assert_same()
    pair.assert_nothing_lost()
