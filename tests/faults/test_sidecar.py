"""The sidecar and the driver."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from iotrace.session import names
from tests.faults.harness import Running, Trial
from tests.faults.programs import DATA, READING, READS
from tests.faults.rows import row
from tests.support.nvml import build_standin, needs_compiler
from tests.support.waiting import eventually

WAITS = (
    READING
    + "print('ready', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\nsys.exit(3)\n"
)


def sidecar(running: Running) -> list[dict[str, Any]]:
    """What the sidecar has recorded so far."""
    found = [path.read_bytes() for path in running.session.glob(f"{names.TELEMETRY}/*/{names.RECORDS}")]
    lines = b"".join(found).split(b"\n")[:-1]  # one is being written
    return [msgspec.json.decode(line) for line in lines]


def go_on(running: Running) -> None:
    (running.directory / "go").touch()


@row(
    "SIGKILL or SIGSTOP of the sidecar",
    kept="the program's outcome, all records and calls; the command is not held up",
    lost="samples from then on, reported",
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_sidecar_is_killed(trial: Trial, number: signal.Signals) -> None:
    stopped: list[psutil.Process] = []

    def kill(running: Running) -> None:
        running.when("ready")
        if running.traced:
            told = eventually(
                lambda: [each for each in sidecar(running) if each["type"] == "process"] and sidecar(running)
            )
            stopped.append(psutil.Process(told[0]["pid"]))
            os.kill(stopped[0].pid, number)
            if number == signal.SIGSTOP:
                time.sleep(6)  # what is told is that it missed this time
        go_on(running)

    trial.files = DATA
    try:
        pair = trial.both(WAITS, act=kill)
    finally:
        for process in stopped:
            if process.is_running():
                process.kill()
    pair.assert_same()
    assert pair.calls("pread64", "data.bin") == READS
    pair.assert_lost("telemetry")


@needs_compiler
@row(
    "NVML loses a device, or hangs, during the run (a stand-in for NVML)",
    kept="the program's outcome, all calls; what the device said before; other devices' samples",
    lost="that device's figures from then on, reported with the driver's reason",
)
@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        ({"NVML_STANDIN_FAIL": "nvmlDeviceGetUtilizationRates:0=15"}, "GPU is lost"),
        ({"NVML_STANDIN_HANG": "nvmlDeviceGetUtilizationRates:0"}, "no answer"),
    ],
)
def test_nvml_fails_later(trial: Trial, tmp_path: Path, trouble: dict[str, str], why: str) -> None:
    since = tmp_path / "since"

    def fail(running: Running) -> None:
        running.when("ready")
        if running.traced:
            eventually(lambda: [each for each in sidecar(running) if each.get("util_pct") == 80])
            since.touch()
            eventually(lambda: [each for each in sidecar(running) if why in each.get("why", "")])
        go_on(running)

    trial.files = DATA
    library = build_standin(tmp_path / "library")
    variables = {"LD_LIBRARY_PATH": str(library), "NVML_STANDIN_SINCE": str(since), **trouble}
    pair = trial.both(WAITS, act=fail, env=variables)
    pair.assert_same()
    assert pair.calls("pread64", "data.bin") == READS
    assert any("gpu 0" in told and why in told for told in pair.told), pair.told
    assert not any("gpu 1" in told and why in told for told in pair.told), pair.told
