"""``python -m tests.programs [NAME...]``: run the battery, or those programs whose names hold a NAME.

With --traced-only no program runs bare beside it: half the time, and output and exit code are not compared.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.programs.catalog import programs
from tests.programs.harness import Outcome, examine

_ROW = "{:36} {:>9} {:>9} {:>11} {:>11}  {:10} {:24} {}"


def main() -> int:
    """Run the programs one after another; print a row for each. Return 1 if one disagrees."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs")
    parser.add_argument("names", metavar="NAME", nargs="*", help="a part of the names of programs")
    parser.add_argument("--traced-only", action="store_true", help="run no program bare")
    chosen_by = parser.parse_args()
    os.environ["IOTRACE_TESTS_WHOLE_TORCH"] = "1"
    names = chosen_by.names
    chosen = [one for one in programs() if not names or any(name in one.name for name in names)]
    print(_ROW.format("program", "own steps", "told", "own wait %", "told %", "cause", "file", "verdict"))
    counts = {"agree": 0, "disagree": 0, "skipped": 0}
    for program in chosen:
        with tempfile.TemporaryDirectory(prefix="iotrace-program-") as directory:
            outcome = examine(program, Path(directory).resolve(), not chosen_by.traced_only)
        print(_row(outcome), flush=True)
        counts["skipped" if outcome.skipped else "agree" if outcome.agrees else "disagree"] += 1
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    return 1 if counts["disagree"] else 0


def _row(outcome: Outcome) -> str:
    return _ROW.format(
        outcome.program.name,
        _joined(outcome.own_steps),
        _joined(outcome.told_steps),
        _percent(outcome.own_fractions),
        _percent(outcome.told_fractions),
        _joined(outcome.causes),
        _joined(outcome.files),
        outcome.verdict,
    )


def _joined(values: list[int | None] | list[int] | list[str | None]) -> str:
    return " ".join("-" if value is None else str(value) for value in values)


def _percent(fractions: list[float | None]) -> str:
    return " ".join("-" if one is None else f"{100 * one:.1f}" for one in fractions)


if __name__ == "__main__":
    sys.exit(main())
