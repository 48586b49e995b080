"""Switches for debugging that are left on: which are on, and which line of the program names one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from iotrace.agent import debug_switches as module
from iotrace.agent.debug_switches import debug_switches


def torch_with(monkeypatch: pytest.MonkeyPatch, anomaly: bool = False, deterministic: bool = False) -> None:
    torch = SimpleNamespace(
        is_anomaly_enabled=lambda: anomaly, are_deterministic_algorithms_enabled=lambda: deterministic
    )
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[misc]


def program(monkeypatch: pytest.MonkeyPatch, directory: Path, **texts: str) -> None:
    for name, text in texts.items():
        own = ModuleType(name)
        own.__file__ = str(directory / f"{name}.py")
        Path(own.__file__).write_text(text)
        monkeypatch.setitem(sys.modules, name, own)


def test_nothing_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_with(monkeypatch)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")  # and no device is used
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace(is_initialized=lambda: False))  # type: ignore[misc]
    assert debug_switches() is None


def test_the_line_that_names_it_is_told_where_it_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch_with(monkeypatch, anomaly=True)
    own = "import torch\n# torch.autograd.set_detect_anomaly(True)\ntorch.autograd.set_detect_anomaly(True)\n"
    monkeypatch.setattr(module, "_LIBRARIES", (str(Path(__file__).parents[2]), "-packages/", "/lib/python"))
    program(monkeypatch, tmp_path, one_train=own, other="torch.autograd.set_detect_anomaly(False)\n")
    assert debug_switches() == {"type": "debug_switches", "places": {"anomaly": f"{tmp_path}/one_train.py:3"}}
    program(monkeypatch, tmp_path, third="with detect_anomaly():\n    pass\n")
    found = debug_switches()
    assert found is not None
    assert found["places"] == {"anomaly": ""}


def test_what_counts_on_a_device_and_among_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_with(monkeypatch)
    used = SimpleNamespace(is_initialized=lambda: True)
    for name in ("torch.cuda", "torch.distributed"):
        monkeypatch.setitem(sys.modules, name, used)  # type: ignore[misc]
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    found = debug_switches()
    assert found is not None
    assert found["places"] == {"launch_blocking": "", "distributed_detail": ""}
