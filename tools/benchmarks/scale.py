"""Merge traces of 1 to 64 made-up ranks: time over bytes, memory, Dask; what 1,024 ranks would take.

Each merge is a process of its own (`--processes 1`), whose wall time and RSS count.
Dask is measured in turns on one and two workers that have started, where it is installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from tools.benchmarks.tables import table
from tools.make_trace import write

from iotrace.cluster import LOCAL, connected
from iotrace.merge.run import merge

_RANKS, _MEGABYTES = 1024, 1000
_LARGEST = 4  # sizes: in smaller ones the start, which is the same in all, would pass for a low exponent


def exponent(megabytes: list[float], seconds: list[float]) -> float:
    """Return the slope of time over bytes, both as logarithms: 1 is linear."""
    return float(np.polyfit(np.log(megabytes), np.log(seconds), 1)[0])


def hours(
    ranks: int, megabytes: float, mb_per_s: float, power: float, measured_mb: float, workers: int
) -> float:
    """Extrapolate from `measured_mb` at `mb_per_s` with `power`, divided by `workers`."""
    whole = ranks * megabytes
    return measured_mb / mb_per_s * (whole / measured_mb) ** max(power, 1.0) / workers / 3600


def _merged(inputs: list[Path], output: Path) -> tuple[float, int]:
    """Merge in a process of its own: seconds, and the RSS of its largest process in bytes."""
    words = [*map(str, inputs), "-o", str(output), "--processes", "1", "--json"]
    program = (
        "import resource, sys; from iotrace.cli import _main; code = _main(sys.argv[1:]); "
        "own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; "
        "print(own, file=sys.stderr); sys.exit(code)"
    )
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, "merge", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        sys.exit(done.stderr.decode())
    return seconds, 1024 * int(done.stderr.split()[-1])


def _with_dask(inputs: list[Path], output: Path, rounds: int) -> dict[int, float]:
    """Merge on one and on two workers, in turns: the median seconds of each."""
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, own in seconds.items():
            with connected(LOCAL, workers) as cluster:
                began = time.perf_counter()
                merge(list(map(str, inputs)), output, cluster=cluster)
                own.append(time.perf_counter() - began)
    return {workers: float(np.median(own)) for workers, own in seconds.items()}


def _measure(directory: Path, most: int, megabytes: float, rounds: int) -> None:
    traces = [directory / f"rank{rank}.json" for rank in range(most)]
    for rank, path in enumerate(traces):
        write(path, megabytes, rank, most)
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64, 128) if count <= most]
    rows, sizes, medians = [], [], []
    for count in counts:
        found = [_merged(traces[:count], directory / "out.pftrace") for _ in range(rounds)]
        seconds, rss = float(np.median([each[0] for each in found])), max(each[1] for each in found)
        size = sum(path.stat().st_size for path in traces[:count]) / 1e6
        sizes.append(size)
        medians.append(seconds)
        rows.append(
            [f"{count}", f"{size:.0f}", f"{seconds:.2f}", f"{size / seconds:.0f}", f"{rss / 2**20:.0f}"]
        )
    print("\n".join(table(["ranks", "MB", "seconds", "MB/s", "peak RSS, MiB"], rows)))
    power = exponent(sizes[-_LARGEST:], medians[-_LARGEST:])
    print(f"\nexponent of time over bytes, of the {_LARGEST} largest: {power:.3f} (the goal: 1.05 at most)")
    workers = {}
    if find_spec("distributed") is None:
        print("Dask was not measured: the package distributed is not installed")
    else:
        workers = _with_dask(traces, directory / "out.pftrace", rounds)
        faster = workers[1] / workers[2]
        print(f"Dask: {workers[1]:.2f} s on 1 worker, {workers[2]:.2f} on 2: {faster:.2f} times as fast")
    rate, efficiency = sizes[-1] / medians[-1], workers[1] / workers[2] / 2 if workers else 1.0
    print(f"\n{_RANKS:,} ranks of {_MEGABYTES:,} MB, extrapolated (not measured):\n")
    used = [1, 16, 64, 256]
    cells = [
        [str(n), f"{hours(_RANKS, _MEGABYTES, rate, power, sizes[-1], n) / efficiency:.2f}"] for n in used
    ]
    print("\n".join(table(["workers", "hours"], cells)))
    print(
        f"\nIt assumes {rate:.0f} MB/s a worker, that exponent (1 at least), workers {efficiency:.2f} times"
    )
    print("as fast together as alone, a disk that keeps up, and that they share the copy of all parts into")
    print("one file. They do not: one process does it. --per-rank needs no such copy.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench scale", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--megabytes", type=float, default=20, help="of each rank's trace (default: 20)")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="iotrace-scale-") as directory:
        _measure(Path(directory), chosen.ranks, chosen.megabytes, chosen.rounds)
    print(f"\nload {os.getloadavg()[0]:.1f}, {len(os.sched_getaffinity(0))} cores")


if __name__ == "__main__":
    main()
