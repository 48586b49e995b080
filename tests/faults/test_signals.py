"""Signals."""

from __future__ import annotations

import signal

import pytest

from iotrace.session.names import DFTRACER, RECORDER
from tests.faults.harness import Running, Trial
from tests.faults.programs import BUFFER, DATA, LOST, OF_DFTRACER, READING, READS
from tests.faults.rows import row

ENDLESS = (
    READING
    + """
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""
)
CHECKPOINTS = (
    READING
    + """
def save(number, frame):
    with open("checkpoint", "w") as file:
        file.write(f"signal {number}, loss {loss(60)}")
    sys.exit(9)
for number in signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT:
    signal.signal(number, save)
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""
)


@row(
    "SIGTERM, SIGHUP or SIGUSR1 to the launcher; the program's handler writes a checkpoint",
    kept="the checkpoint, the program's exit code, all records",
    lost="nothing",
    default=True,
)
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.fault),
        pytest.param(signal.SIGUSR1, marks=pytest.mark.fault),
    ],
)
def test_a_handler_that_saves(trial: Trial, number: signal.Signals) -> None:
    trial.files = DATA
    pair = trial.both(CHECKPOINTS, act=lambda running: running.asleep("ready").kill(number))
    pair.assert_same()
    pair.assert_nothing_lost()
    assert "checkpoint" in pair.traced.files
    assert pair.calls("pread64", "data.bin") == READS + 1


@row(
    "SIGHUP, SIGTERM or SIGQUIT to the process group, no handler",
    kept="the end by that signal, records up to a second before",
    lost=LOST,
)
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT])
def test_the_group_ends(trial: Trial, number: signal.Signals) -> None:
    trial.files = DATA
    pair = trial.both(ENDLESS, act=lambda running: running.asleep("ready").kill_group(number))
    pair.assert_same()
    pair.assert_nothing_lost()  # this program has no records but of its calls
    assert pair.calls("pread64", "data.bin") == READS


@row(
    "Ctrl-C on the terminal",
    kept="one KeyboardInterrupt, its traceback and exit code, all records",
    lost="nothing",
)
def test_control_c(trial: Trial) -> None:
    def press(running: Running) -> None:
        running.asleep("ready").press(b"\x03")

    trial.files = DATA
    pair = trial.both(ENDLESS, act=press, terminal=True)
    pair.assert_same()
    pair.assert_nothing_lost()
    assert "KeyboardInterrupt" in pair.traced.stderr
    assert pair.calls("pread64", "data.bin") == READS


@row("Ctrl-\\ on the terminal", kept="the end by SIGQUIT", lost=LOST)
def test_control_backslash(trial: Trial) -> None:
    trial.files = DATA
    pair = trial.both(ENDLESS, act=lambda running: running.asleep("ready").press(b"\x1c"), terminal=True)
    pair.assert_same()
    pair.assert_nothing_lost()


ENDS = {
    "abort": "os.abort()",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "SIGKILL by itself": "os.kill(os.getpid(), signal.SIGKILL)",
}


@row(
    "abort(), a segfault, SIGKILL of the program",
    kept="the end by that signal, all calls",
    lost=f"{LOST}; {OF_DFTRACER}",
)
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
@pytest.mark.parametrize("how", ENDS)
def test_the_program_dies(trial: Trial, how: str, by: str) -> None:
    trial.files = DATA
    pair = trial.both(READING + ENDS[how], options=["--io-by", by])
    pair.assert_same()
    if by == DFTRACER:
        pair.assert_lost("main (pid")
    else:
        pair.assert_nothing_lost()  # this program has no records but of its calls
    lost = BUFFER if by == DFTRACER else 0
    assert READS - lost <= pair.calls("pread64", "data.bin") <= READS


LEAVES = {
    "os._exit": "os._exit(5)",
    "sys.exit": "sys.exit(6)",
    "sys.exit with a text": "sys.exit('no more data')",
    "an exception": "raise OSError(28, 'No space left on device')",
    "exec": "os.execv('/bin/sh', ['sh', '-c', 'echo executed; exit 7'])",
    "exec of what is not there": "os.execv('/not/there', ['there'])",
}


@row(
    "the program leaves by os._exit, sys.exit, an exception or exec",
    kept="its exit code and traceback, all records",
    lost="nothing",
)
@pytest.mark.parametrize("how", LEAVES)
@pytest.mark.parametrize("by", [RECORDER, DFTRACER])
def test_the_program_leaves(trial: Trial, how: str, by: str) -> None:
    trial.files = DATA
    pair = trial.both(READING + LEAVES[how], options=["--io-by", by])
    pair.assert_same()
    pair.assert_nothing_lost()
    assert pair.calls("pread64", "data.bin") == READS
