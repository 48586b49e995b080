"""The start-up of a real program: its parts, its imports, what it pickled; on the timeline, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iotrace.analysis.startup.imports import STANDARD
from iotrace.analysis.startup.waterfall import NOT_NAMED
from tests.support.perfetto import query
from tests.support.runs import in_process, run_traced

PROGRAM_WITH_STEPS = """
import iotrace, email.mime.audio, multiprocessing
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=print, args=("a" * 5000,))
    process.start()
    process.join()
    for _ in range(3):
        iotrace.step()
"""


def test_a_run_says_what_its_start_was_made_of(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM_WITH_STEPS)
    run = run_traced(tmp_path, [str(program)], ["--quiet", "--no-telemetry"])
    assert run.code == 0, run.stderr
    (rank,) = run.report()["ranks"]
    startup = rank["startup"]
    names = [part["name"] for part in startup["parts"]]
    assert names[:3] == ["launch", "interpreter", "imports"]
    assert names[-1] == NOT_NAMED  # the program's own lines
    assert {"tracing", "pickling", "first step"} <= set(names)
    assert sum(part["seconds"] for part in startup["parts"]) == pytest.approx(startup["first_step_seconds"])
    assert startup["parts"][-1]["seconds"] == pytest.approx(
        startup["first_step_seconds"] * (1 - startup["named_fraction"])
    )
    imports = {row["package"]: row for row in startup["imports"]}
    assert imports[STANDARD]["modules"] > 5
    assert sum(row["seconds"] for row in imports.values()) == pytest.approx(
        sum(part["seconds"] for part in startup["parts"] if part["name"] in ("imports", "tracing"))
    )
    assert startup["pickled_bytes"] > 5000
    assert startup["imports_waiting_seconds"] is None  # nothing sampled how long it waited for a CPU
    shown = in_process("report", str(run.session), "--view", "startup").stdout
    assert "not named" in shown
    assert "pickled for spawned processes: " in shown
    assert "import email.mime.audio" in str(query_names(run.timeline()))


def query_names(trace: Path) -> list[Any]:
    """The names of the slices of the start, as Perfetto's importer has them."""
    (rows,) = query(trace, "select name from slice where category = 'start-up'")
    return [name for (name,) in rows]
