"""What ``tools/gpu-check`` does once there is a GPU: see its comment, and docs/gpu.md for the figures."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from iotrace.analysis.device.activity import Activity
from iotrace.analysis.intervals import Coverage
from iotrace.analysis.rank import RankAnalysis
from iotrace.sources.session import Rank, Session, open_session

WORKLOADS = Path(__file__).parent.parent / "workloads"
# The workload and the library that it needs beside numpy, best first.
CHOICES = (("unet3d_hdf5.py", "h5py"), ("volumes_npz.py", "numpy"))
STEPS = 60


def main() -> int:
    """Run everything and print it; 0 if every check that could be made holds."""
    parser = argparse.ArgumentParser(description="Check iotrace on this machine's GPU.")
    parser.add_argument("--pairs", type=int, default=5, help="interleaved pairs for the overhead")
    parser.add_argument("-o", "--output", type=Path, help="write the figures as JSON, too")
    options = parser.parse_args()
    program = next(name for name, library in CHOICES if importlib.util.find_spec(library))
    command = [sys.executable, str(WORKLOADS / program), "--steps", str(STEPS), "--batch-size", "8"]
    with tempfile.TemporaryDirectory() as directory:
        found = {**machine(), "workload": program, **check(Path(directory), command)}
        found["overhead"] = overhead(Path(directory), command, options.pairs)
    for name, value in found.items():
        print(f"{name:<28} {json.dumps(value)}")
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=2) + "\n")
    failed = [name for name, holds in found["holds"].items() if not holds]
    print("all checks hold" if not failed else f"DOES NOT HOLD: {', '.join(failed)}")
    return 1 if failed else 0


def machine() -> dict[str, Any]:
    """What the figures belong to."""
    import torch

    return {
        "date": date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "python": sys.version.split()[0],
    }


def trace(directory: Path, command: list[str], number: int, *options: str) -> tuple[Path, float]:
    """Run `command` traced; its session, and the command's own seconds."""
    session = directory / f"session-{number}-{time.monotonic_ns()}"
    line = [sys.executable, "-m", "iotrace", "run", "-q", "-o", str(session), *options, "--", *command]
    done = subprocess.run(line, cwd=directory, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"the traced training failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    outcome = json.loads((session / "outcome.json").read_text())
    return session, outcome["duration_ns"] / 1e9


def check(directory: Path, command: list[str]) -> dict[str, Any]:
    """One traced run: kernels, the exposed wait by both sources, clocks, telemetry."""
    path, _ = trace(directory, command, 0, "--torch-steps", "10:2:20")
    session = open_session(path)
    line = [sys.executable, "-m", "iotrace", "report", str(path), "--json"]
    report = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    (rank,) = session.ranks
    told = report["ranks"][0]
    windows = [Activity(trace) for trace in rank.main.windows.traces]
    found: dict[str, Any] = {
        "kernels": sum(int(window.compute_kernels.sum()) for window in windows),
        "device_events": sum(int(window.device.sum()) for window in windows),
        "breakdown_ms": told["breakdown_ms"],
        "raw_wait_ms": told["data_wait"]["raw_ms"],
        "exposed_ms": told["data_wait"]["exposed_ms"],
        "exposed_source": told["data_wait"]["exposed_source"],
        "same_steps": side_by_side(session, rank, windows),
        "launch_to_kernel_us": launch_residual(windows),
        "gpus": told["system"]["gpus"],
        "not_captured": report["not_captured"],
    }
    same, residual = found["same_steps"], found["launch_to_kernel_us"]
    found["holds"] = {
        "kernels were recorded": found["kernels"] > 0,
        "every step has events": same is not None and same["steps"] > 0,
        # The events enclose the wait and are recorded some us beside it.
        "events and kernels agree within 1 ms or 10 %": same is not None
        and abs(same["by_events_ms"] - same["by_kernels_ms"]) <= max(1.0, 0.1 * same["by_kernels_ms"]),
        "no kernel began before its launch": residual is not None and residual["before_launch"] == 0,
        "NVML answered": any(gpu["util_pct_mean"] is not None for gpu in told["system"]["gpus"]),
    }
    return found


def side_by_side(session: Session, rank: Rank, windows: list[Activity]) -> dict[str, Any] | None:
    """The exposed wait of the same steps, those inside the window, by events and by kernels."""
    steps = RankAnalysis(session, rank).loop.steps
    raw, by_events, by_kernels = [], [], []
    for window in windows:
        span = window.trace.span_ns()
        if span is None:
            continue
        busy = Coverage(*window.busy())
        for step in steps:
            inside = span[0] <= step.start_ns and step.end_ns <= span[1]
            if not inside or not step.awaited or step.exposed_ns is None:
                continue
            starts = np.array([awaited.wait_start_ns for awaited in step.awaited], dtype=np.int64)
            ends = np.array([awaited.delivered_ns for awaited in step.awaited], dtype=np.int64)
            raw.append(step.wait_ns)
            by_events.append(step.exposed_ns)
            by_kernels.append(step.wait_ns - int(busy.within(starts, ends).sum()))
    if not raw:
        return None
    return {
        "steps": len(raw),
        "raw_ms": statistics.mean(raw) / 1e6,
        "by_events_ms": statistics.mean(by_events) / 1e6,
        "by_kernels_ms": statistics.mean(by_kernels) / 1e6,
    }


def launch_residual(windows: list[Activity]) -> dict[str, Any] | None:
    """From the start of each launch to that of its kernel: below 0 the two clocks disagree."""
    found = []
    for window in windows:
        rows = np.flatnonzero(window.device & (window.launch >= 0))
        starts = window.trace.events.start_ns
        found.append(starts[rows] - starts[window.launch[rows]])
    delays = np.concatenate(found) / 1e3 if found else np.zeros(0)
    if not len(delays):
        return None
    return {
        "pairs": len(delays),
        "min": float(delays.min()),
        "p50": float(np.median(delays)),
        "p99": float(np.percentile(delays, 99)),
        "before_launch": int((delays < 0).sum()),
    }


def overhead(directory: Path, command: list[str], pairs: int) -> dict[str, Any]:
    """Ratios of traced to bare time of interleaved pairs, with and without the torch window."""
    ratios: dict[str, list[float]] = {"window off": [], "window on": []}
    for number in range(pairs):
        bare = seconds(directory, command)
        for name, options in (("window off", ["--torch-steps", "off"]), ("window on", [])):
            ratios[name].append(trace(directory, command, number, *options)[1] / bare)
    return {
        name: {"median": statistics.median(values), "min": min(values), "max": max(values)}
        for name, values in ratios.items()
    }


def seconds(directory: Path, command: list[str]) -> float:
    """How long the command takes by itself."""
    started = time.monotonic()
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
