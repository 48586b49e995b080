"""Copies of recorded sessions, each with one file damaged or missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tools.golden_cases.recording import Make, Recorder

Damage = Callable[[bytes], bytes]


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _noise(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(range(256)) + data[middle + 256 :]


def _lines_joined(data: bytes) -> bytes:
    return data.replace(b"\n", b" ", 5)


def _line_lost(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[: len(lines) // 3] + lines[len(lines) // 3 + 3 :])


def _empty(data: bytes) -> bytes:
    return b""


_DAMAGES: dict[str, tuple[str, Damage | None]] = {
    "files_missing": ("files.json", None),
    "files_noise": ("files.json", _noise),
    "manifest_missing": ("manifest.json", None),
    "manifest_half": ("manifest.json", _half),
    "manifest_format": ("manifest.json", lambda data: data.replace(b'"format": 1', b'"format": 99')),
    "outcome_missing": ("outcome.json", None),
    "outcome_half": ("outcome.json", _half),
    "costs_half": ("costs.json", _half),
    "costs_missing": ("costs.json", None),
    "process_half": ("processes/*/process.json", _half),
    "process_empty": ("processes/*/process.json", _empty),
    "records_half": ("processes/*/records.jsonl", _half),
    "records_noise": ("processes/*/records.jsonl", _noise),
    "records_joined": ("processes/*/records.jsonl", _lines_joined),
    "records_lost": ("processes/*/records.jsonl", _line_lost),
    "records_empty": ("processes/*/records.jsonl", _empty),
    "records_missing": ("processes/*/records.jsonl", None),
    "spans_cut": ("processes/*/spans.bin", lambda data: data[:-30]),
    "spans_half": ("processes/*/spans.bin", _half),
    "spans_noise": ("processes/*/spans.bin", _noise),
    "spans_missing": ("processes/*/spans.bin", None),
    "torch_half": ("processes/*/torch-*", _half),
    "torch_noise": ("processes/*/torch-*", _noise),
    "torch_missing": ("processes/*/torch-*", None),
    "posix_half": ("posix/*.io", _half),
    "posix_noise": ("posix/*.io", _noise),
    "posix_cut": ("posix/*.io", lambda data: data[:-30]),
    "posix_missing": ("posix/*.io", None),
    "telemetry_records_half": ("telemetry/*/records.jsonl", _half),
    "telemetry_samples_cut": ("telemetry/*/processes.bin", lambda data: data[:-30]),
    "telemetry_samples_noise": ("telemetry/*/processes.bin", _noise),
    "telemetry_missing": ("telemetry/*/*", None),
}
_OF = ("stream_iterable", "unet3d_hdf5")  # the second for what concerns spans of read paths


def damaged_sessions() -> dict[str, Make]:
    """How each damaged session is made, by name."""
    found: dict[str, Make] = {}
    for name, (pattern, damage) in _DAMAGES.items():
        source = _OF[name.startswith(("spans", "torch", "records_half"))]
        found[name] = partial(_copy, source=source, pattern=pattern, damage=damage)
    return found


def _copy(recorder: Recorder, session: Path, *, source: str, pattern: str, damage: Damage | None) -> None:
    sound = recorder.recorded.path / "sessions" / source
    shutil.copytree(sound, session, ignore=shutil.ignore_patterns("out"))
    paths = sorted(session.glob(pattern))
    if not paths:
        raise SystemExit(f"golden: {sound} has no {pattern} to damage")
    for path in paths:
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage(path.read_bytes()))
