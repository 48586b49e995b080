"""What `iotrace report` of a big trace takes, beside HolisticTraceAnalysis' load and temporal breakdown.

One made-up trace in Kineto's layout for each size; the programs take turns, so that a busy machine slows all
alike. HTA runs on the smallest alone. iotrace makes all its views (`--json` holds every one). Memory is the
process's peak.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools import make_trace
from tools.benchmarks.statistics import spread

_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
TraceAnalysis(trace_files={0: sys.argv[1]}).get_temporal_breakdown(visualize=False)
"""
_MOST_MB = {300: 300, 1000: 700}  # of memory, by the trace's size: the goals
_LEAST_RATIO = 30


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench report", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="300", help="MB of the traces: 300,1000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta", metavar="PYTHON", help="an interpreter with HolisticTraceAnalysis 0.5.0")
    parser.add_argument("--html", action="store_true", help="also measure the page")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        sizes = sorted(map(int, chosen.sizes.split(",")))
        for size in sizes:
            trace = Path(directory) / f"{size}.json"
            make_trace.write(trace, size)
            rows += _measured(
                size, _commands(trace, chosen.hta if size == sizes[0] else None, chosen.html), chosen.rounds
            )
            trace.unlink()
    print(json.dumps(rows) if chosen.json else _text(rows))


def _commands(trace: Path, hta: str | None, with_page: bool) -> dict[str, list[str]]:
    report = [sys.executable, "-m", "iotrace", "report", str(trace)]
    found = {"iotrace report --json": [*report, "--json"]}
    if with_page:
        found["iotrace report --html"] = [*report, "--html", str(trace.with_suffix(".html"))]
    if hta is not None:
        found["HTA"] = [hta, "-c", _HTA, str(trace)]
    return found


def _measured(size: int, commands: dict[str, list[str]], rounds: int) -> list[dict[str, Any]]:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            found[name].append(_run(command))
    rows = []
    for name, runs in found.items():
        cpu = spread([seconds for seconds, _ in runs])
        rows.append(
            {"mb": size, "command": name, "cpu_s": cpu.plain(), "rss_mb": max(rss for _, rss in runs)}
        )
    return rows


def _run(command: list[str]) -> tuple[float, float]:
    """Run a command; returns the CPU seconds and the MB (of 10^6 bytes) of its peak."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise SystemExit(f"{command} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def _text(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} CPUs",
        "  MB  command                  CPU s    MB",
    ]
    for row in rows:
        lines.append(f"{row['mb']:4}  {row['command']:21} {row['cpu_s']['median']:8.2f} {row['rss_mb']:5.0f}")
        goal = _MOST_MB.get(row["mb"])
        if goal is not None and row["command"].startswith("iotrace"):
            lines[-1] += f"  goal: <= {goal} MB"
    for size in dict.fromkeys(row["mb"] for row in rows):
        of_size = {row["command"]: row["cpu_s"]["median"] for row in rows if row["mb"] == size}
        if "HTA" in of_size:
            ratio = of_size["HTA"] / of_size["iotrace report --json"]
            lines.append(f"{size:4}  HTA / iotrace: {ratio:.0f}  goal: >= {_LEAST_RATIO}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
