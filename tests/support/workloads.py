"""The programs in workloads/: making their data first, and running them under iotrace and strace."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support import strace
from tests.support.runs import PROJECT, Run, environment, launcher

STEPS = 10


@dataclass(frozen=True)
class Workload:
    """A program, and how it is started."""

    name: str
    data: str
    arguments: tuple[str, ...] = ()
    ranks: int = 1

    def command(self, *arguments: str) -> list[str]:
        """Its command line after ``python``."""
        program = str(PROJECT / "workloads" / f"{self.name}.py")
        start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
        return [
            *(start if self.ranks > 1 else []),
            program,
            "--steps",
            str(STEPS),
            *self.arguments,
            *arguments,
        ]


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("unet3d_hdf5", "data/unet3d"),
        Workload("weather_zarr", "data/weather"),
        Workload("images", "data/images"),
        Workload("volumes_npz", "data/volumes"),
        Workload("gpt_memmap", "data/tokens", ("--cold",)),
        Workload("ddp_slow_rank", "data/shards", ranks=2),
        Workload("stream_iterable", "data/stream"),
    )
}

_MAKE = """
import importlib, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
for name, data, ranks in json.loads(sys.argv[2]):
    for rank in range(ranks):
        importlib.import_module(name).make_data(Path(data), *([rank] if ranks > 1 else []))
"""


def make_data(directory: Path, workloads: Iterable[Workload] = tuple(WORKLOADS.values())) -> None:
    """Make the data of `workloads` below `directory`, as each would on first use; torch is imported once."""
    missing = [
        (workload.name, workload.data, workload.ranks)
        for workload in workloads
        if not (directory / workload.data).exists()
    ]
    line = [sys.executable, "-c", _MAKE, str(PROJECT / "workloads"), json.dumps(missing)]
    subprocess.run(line, cwd=directory, check=True, timeout=280, env=environment())


@dataclass(frozen=True)
class Traced:
    """A workload's run under iotrace; `logs` are strace's, None where it ran without."""

    workload: Workload
    directory: Path
    run: Run
    logs: Path | None

    @cached_property
    def report(self) -> dict[str, Any]:
        """The report as JSON."""
        return self.run.report()

    @property
    def ranks(self) -> list[dict[str, Any]]:
        """The report's ranks."""
        ranks: list[dict[str, Any]] = self.report["ranks"]
        return ranks

    @property
    def data(self) -> Path:
        """The directory of the data, links resolved."""
        return (self.directory / self.workload.data).resolve()

    @property
    def trained(self) -> dict[int, int]:
        """Batches trained by rank, as the program counted them."""
        found = re.findall(r"^(?:rank (\d+) )?trained (\d+) steps", self.run.stdout, re.M)
        return {int(rank or 0): int(steps) for rank, steps in found}

    def files(self) -> list[tuple[str, dict[str, Any]]]:
        """The I/O of each data file, by its resolved path; one entry for each rank that used it."""
        return [
            (str(path), file)
            for rank in self.ranks
            for file in rank["io"]["files"]
            if (path := (self.directory / file["path"]).resolve()).is_relative_to(self.data)
        ]

    def reads(self) -> dict[tuple[str, str], int]:
        """Read calls by pid and data file."""
        return {(pid, path): count for path, file in self.files() for pid, count in file["by_worker"].items()}


def run_workload(workload: Workload, directory: Path, logs: Path | None, *arguments: str) -> Traced:
    """Run `workload` in `directory`, also under strace where there is a place for its logs.

    strace stops a process at each call that it logs: what it sees is counted, not timed.
    """
    line, session = launcher(directory, [], ["--quiet"])
    tracer = strace.command(logs) if logs else []
    line = [*line[:-1], *tracer, line[-1], *workload.command(*arguments)]
    done = subprocess.run(
        line,
        cwd=directory,
        capture_output=True,
        text=True,
        env=environment(OMP_NUM_THREADS="1"),
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    left = list(session.glob("processes/*/agent.log"))
    assert not left, left[0].read_text()
    return Traced(workload, directory, Run(done.returncode, done.stdout, done.stderr, session), logs)
