"""Intel's devices by Sysman: pyzes and a made-up loader of Level Zero, as the sidecar asks them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from iotrace.launch.telemetry import level_zero, start
from iotrace.launch.telemetry.gpus import UnavailableError
from tests.support.nvml import needs_compiler

_SOURCE = Path(__file__).parents[1] / "support" / "zes_standin.c"
_ASK = """
import json
from iotrace.launch.telemetry import level_zero
from iotrace.launch.telemetry.gpus import FigureError, UnavailableError
found = []
try:
    for device in level_zero.find(found.append):
        turns = []
        for _ in range(2):
            read, failed = {}, {}
            for figure in device.figures:
                try:
                    read.update(figure.read())
                except FigureError as error:
                    failed[figure.name] = str(error)
            turns.append((read, failed))
        found.append({**device.about, "turns": turns})
    print(json.dumps(found))
except UnavailableError as error:
    print(json.dumps(str(error)))
"""
needs_pyzes = pytest.mark.skipif(find_spec("pyzes") is None, reason="pyzes is not installed")
_GIB = 1 << 30


def asked(directory: Path, **variables: str) -> Any:
    """What a process says whose loader of Level Zero is the stand-in."""
    library = directory / "libze_loader.so.1"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["cc", *flags, "-o", str(library), str(_SOURCE)], check=True, timeout=60)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(directory), **variables}
    command = [sys.executable, "-c", _ASK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout)


@needs_compiler
@needs_pyzes
def test_a_device_and_its_tiles(tmp_path: Path) -> None:
    card, *tiles = asked(tmp_path, ZES_ENABLE_SYSMAN="1")
    name = "Intel(R) Data Center GPU Max 1550"
    assert (card["index"], card["instance"], card["name"]) == (0, None, name)
    assert card["memory_total_bytes"] == 128 * _GIB
    first, second = card["turns"]
    assert first == [
        {
            "memory_bytes": 30 * _GIB,
            "sm_clock_mhz": 1500,
            "clock_reasons": 0x40,  # of one of its tiles; NVML's bit of the same meaning
            "temperature_c": 60,
            "energy_j": 1200,
            "processes": [[4242, _GIB]],
        },
        {},
    ]
    assert second[1] == {}
    # Tiles are busy for all and for half of the time; 200 J in 0.5 s; 1 and 3 bytes a us on the bus.
    assert second[0] == {
        **first[0],
        "util_pct": 75,
        "energy_j": 1400,
        "power_w": 400,
        "pcie_sent_bytes_per_s": pytest.approx(1e6),
        "pcie_received_bytes_per_s": pytest.approx(3e6),
    }
    assert [(tile["index"], tile["instance"], tile["name"]) for tile in tiles] == [
        (0, 0, f"{name} tile 0"),
        (0, 1, f"{name} tile 1"),
    ]
    assert [tile["turns"][1][0] for tile in tiles] == [
        {
            "util_pct": 100,
            "memory_bytes": 10 * _GIB,
            "sm_clock_mhz": 1400,
            "clock_reasons": 0,
            "temperature_c": 50,
        },
        {
            "util_pct": 50,
            "memory_bytes": 20 * _GIB,
            "sm_clock_mhz": 1600,
            "clock_reasons": 0x40,
            "temperature_c": 60,
        },
    ]


@needs_compiler
@needs_pyzes
def test_a_host_without_a_driver(tmp_path: Path) -> None:
    assert asked(tmp_path).startswith("Level Zero: zesInit fails")


def test_without_its_library_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyzes", None)
    with pytest.raises(UnavailableError, match="pyzes is not installed"):
        level_zero.find(lambda record: None)


def test_sysman_is_enabled_for_the_sidecar_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the program it would change what torch sees of its devices."""
    monkeypatch.delenv("ZES_ENABLE_SYSMAN", raising=False)
    given: dict[str, Any] = {}
    monkeypatch.setattr(start.subprocess, "Popen", lambda *_, **named: given.update(named))
    start._spawn(tmp_path, tmp_path, 200, 0)
    assert given["env"]["ZES_ENABLE_SYSMAN"] == "1"
    assert "ZES_ENABLE_SYSMAN" not in os.environ
