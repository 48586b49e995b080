"""What the first screen concludes of programs whose cause is known: by code, never by its words.

Each row of `expected.py` is a program as somebody reported it, or the same program mended. It runs traced,
once on the machine as it is and once with two busy processes beside it. `tools/test --sentences` runs all;
`-k NAME` some.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sentences.expected import PROGRAMS, Row
from tests.support.runs import PROJECT, in_process, report_of

pytestmark = pytest.mark.sentences
_SECONDS = 400
_BUSY = [sys.executable, "-c", "while True: pass"]


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where programs make their data, once for all of them."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(params=["alone", "beside-others"])
def neighbours(request: pytest.FixtureRequest) -> Iterator[str]:
    """Two processes that compute all the time, or none."""
    busy = request.param == "beside-others"
    processes = [subprocess.Popen(_BUSY) for _ in range(2 if busy else 0)]
    yield request.param
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("row", PROGRAMS, ids=[row.name for row in PROGRAMS])
def test_what_is_concluded(row: Row, neighbours: str, data: Path, tmp_path: Path) -> None:
    path = PROJECT.parent / "shared" / "programs" / row.program
    if not path.exists():
        pytest.skip(f"{path.name} is not there")
    if row.needs:
        pytest.importorskip(row.needs)
    session = tmp_path / "session"
    trace = [sys.executable, "-m", "iotrace", "run", "-q", "-o", str(session), "--"]
    job = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={row.ranks}"]
    launcher = [*job, f"--max-restarts={row.restarts}"] if row.ranks > 1 else []
    shell = ["bash"] if path.suffix == ".sh" else [sys.executable, *launcher]
    program = [*shell, str(path), *row.arguments]
    directory = tmp_path if row.apart else data
    variables = {
        **os.environ,
        "RDATA": str(data),
        "FIX": str(int(row.mended)),
        "OMP_NUM_THREADS": "1",
        "PROGS": str(path.parent),
        "PY": sys.executable,
        **row.variables,
    }
    if row.before:
        subprocess.run([sys.executable, str(path.with_name(row.before))], cwd=directory, check=True)
    bound = ["taskset", "-c", "0"] if row.one_cpu else []
    done = subprocess.run(
        [*bound, *trace, *program],
        cwd=directory,
        env=variables,
        timeout=_SECONDS,
        capture_output=True,
        text=True,
    )
    assert done.returncode == row.code, done.stderr
    screen = in_process("report", str(session)).stdout
    assert disagreements(row, report_of(session)) == [], screen


def disagreements(row: Row, report: dict[str, Any]) -> list[str]:
    """List in what the conclusions of a report are others than those of the row."""
    fixes = [item["code"] for item in report["recommendations"]]
    culprits = [*report["culprits"], *(item for rank in report["ranks"] for item in rank["culprits"])]
    seen = {*fixes, *(item["code"] for item in culprits)}
    verdict = report["verdict"]["class"]
    found = []
    if row.verdicts and verdict not in row.verdicts:
        found.append(f"the verdict is {verdict}, not {' or '.join(row.verdicts)}")
    if row.first and (not fixes or fixes[0] not in row.first):
        found.append(f"the first fix is {fixes[:1]}, not {' or '.join(row.first)}")
    if row.nothing_to_do and fixes:
        found.append(f"there is nothing to do, and it advises {fixes}")
    found += [f"{code} lacks" for code in row.has if code not in seen]
    found += [f"{code} is false" for code in row.never if code in seen]
    return found
