#!/usr/bin/env python3
"""How fast `iotrace merge` is, as a ratio to copying the same bytes in the same minute, and its memory.

    tools/bench_merge.py [--sizes 300,1000] [--rounds 3] [--json]

`cat` copies the input in pieces of 8 MiB. The rounds take turns, so that a busy machine slows all alike.
Memory is the largest process's peak. `viztracer --combine` runs where it is installed, on the smallest size.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import make_trace

_COPY = (
    "import sys\nwith open(sys.argv[1],'rb') as a, open(sys.argv[2],'wb') as b:\n"
    "    while d := a.read(8 << 20): b.write(d)\n"
)


def run(command: list[str]) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and MB of the largest process of a command."""
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    if status:
        assert process.stderr is not None
        raise SystemExit(f"{' '.join(command)} failed: {process.stderr.read().decode()[-500:]}")
    process.returncode = 0
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure(sizes: list[float], rounds: int, directory: Path) -> list[dict[str, Any]]:
    """One row for each size and command."""
    rows = []
    merge = [sys.executable, "-m", "iotrace", "merge"]
    for size in sizes:
        one = directory / "one.json"
        make_trace.write(one, size, 0)
        halves = []
        for rank in range(2):
            half = directory / f"half-{rank}.json"
            make_trace.write(half, size / 2, rank)
            halves.append(str(half))
        out = str(directory / "out")
        commands = {
            "cat": [sys.executable, "-c", _COPY, str(one), out],
            "json, 1 core": [*merge, "--processes", "1", str(one), "-o", f"{out}.json"],
            "json, 2 files on 1 core": [*merge, "--processes", "1", *halves, "-o", f"{out}.json"],
            "json, 2 files on 2 cores": [*merge, "--processes", "2", *halves, "-o", f"{out}.json"],
            "pftrace, 1 core": [*merge, "--processes", "1", str(one), "-o", f"{out}.pftrace"],
            "pftrace, 2 files on 2 cores": [*merge, "--processes", "2", *halves, "-o", f"{out}.pftrace"],
        }
        if shutil.which("viztracer") and size == min(sizes):
            commands["viztracer --combine"] = ["viztracer", "--combine", *halves, "-o", f"{out}.json"]
        figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                for old in (out, f"{out}.json", f"{out}.pftrace"):
                    Path(old).unlink(missing_ok=True)
                os.sync()  # none waits for what another one left to be written
                figures[name].append(run(command))
        copied = statistics.median(seconds for seconds, _, _ in figures["cat"])
        for name, found in figures.items():
            seconds = statistics.median(item[0] for item in found)
            rows.append(
                {
                    "input_mb": size,
                    "command": name,
                    "seconds": round(seconds, 2),
                    "cpu_seconds": round(statistics.median(item[1] for item in found), 2),
                    "mb_per_second": round(size / seconds, 1),
                    "ratio_to_cat": round(copied / seconds, 3),
                    "peak_rss_mb": round(max(item[2] for item in found)),
                }
            )
    return rows


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="300,1000", help="MB of input; 3000 takes some minutes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where the files are made; default: a temporary one")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        rows = measure([float(size) for size in given.sizes.split(",")], given.rounds, Path(directory))
    if given.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'input':>8}  {'command':29}{'seconds':>9}{'CPU s':>8}{'MB/s':>8}{'of cat':>8}{'RSS MB':>8}")
    for row in rows:
        print(
            f"{row['input_mb']:>5.0f} MB  {row['command']:29}{row['seconds']:>9.2f}{row['cpu_seconds']:>8.2f}"
            f"{row['mb_per_second']:>8.1f}{row['ratio_to_cat']:>8.3f}{row['peak_rss_mb']:>8}"
        )


if __name__ == "__main__":
    main()
