"""Run the suites bare and traced, compare them test by test: tools/test --suites [NAME...] [--rounds N]"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import iotrace_command

SUITES = {
    "h5py": ["h5py"],
    "numpy": ["numpy.lib.tests.test_io", "numpy.lib.tests.test_format", "numpy.lib.tests.test__datasource"],
    "pandas": [
        *(f"pandas.tests.io.{part}" for part in ("json", "parser.common", "formats.test_to_csv")),
        *(f"pandas.tests.io.{part}" for part in ("test_pickle", "test_common", "test_compression")),
    ],
}
# Without the plugins of the project's own tests.
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-p",
    "no:randomly",
]


@dataclass(frozen=True)
class Outcomes:
    """How each test of a suite ended, how long all took, and how much processor time with their children."""

    of_test: dict[str, str]
    seconds: float
    cpu_s: float
    shown: str

    def count(self, outcome: str) -> int:
        return list(self.of_test.values()).count(outcome)


def main() -> int:
    """Print a line for each suite and each test that differs; 1 where one does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*SUITES, []], metavar="NAME", help=", ".join(SUITES))
    parser.add_argument("--rounds", type=int, default=1, help="how often each way, in turn, for the times")
    wanted = parser.parse_args()
    differing = 0
    for name in wanted.names or SUITES:
        for _ in range(wanted.rounds):
            bare, traced = run(name, False), run(name, True)
            differing += report(name, bare, traced)
            shown = (
                f"{what} bare {before:.1f}, traced {after:.1f} s: {after / before:.2f}"
                for what, before, after in (
                    ("wall", bare.seconds, traced.seconds),
                    ("processor", bare.cpu_s, traced.cpu_s),
                )
            )
            print(f"{name}: {'; '.join(shown)}", flush=True)
    return 1 if differing else 0


def run(name: str, traced: bool) -> Outcomes:
    """Run a suite in an empty directory."""
    with tempfile.TemporaryDirectory(prefix="iotrace-suite-") as directory:
        results = Path(directory) / "results.xml"
        here = Path(directory) / "cwd"
        here.mkdir()
        command = [*PYTEST, f"--junitxml={results}", f"--basetemp={directory}/tmp", "--pyargs", *SUITES[name]]
        launcher = [sys.executable, iotrace_command.__file__, "run", "-q", "-o", f"{directory}/session", "--"]
        begun, before = time.monotonic(), children_cpu_s()
        done = subprocess.run(
            [*(launcher if traced else []), *command], cwd=here, capture_output=True, text=True, timeout=3600
        )
        seconds = time.monotonic() - begun
        if not results.exists():
            raise SystemExit(f"{name}: pytest left no results:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return Outcomes(outcomes(results), seconds, children_cpu_s() - before, done.stdout)


def children_cpu_s() -> float:
    """Return the processor time of all processes that have been waited for."""
    used = os.times()
    return used.children_user + used.children_system


def outcomes(results: Path) -> dict[str, str]:
    """Return the outcome of each test; those of one name are numbered."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        child = next((each.tag for each in case if each.tag in ("failure", "error", "skipped")), "passed")
        name = f"{case.get('classname')}::{case.get('name')}"
        number = 1
        while name in found:
            number += 1
            name = f"{name.rsplit(' #', 1)[0]} #{number}"
        found[name] = child
    return found


def report(name: str, bare: Outcomes, traced: Outcomes) -> int:
    """Print what a suite gave; return how many tests differ."""
    tests = sorted({*bare.of_test, *traced.of_test})
    differing = [test for test in tests if bare.of_test.get(test) != traced.of_test.get(test)]
    passed = f"{bare.count('passed')} passed, {bare.count('skipped')} skipped"
    failed = bare.count("failure") + bare.count("error")
    print(f"{name}: {len(tests)} tests, bare {passed}, {failed} failed; {len(differing)} differ traced")
    for test in differing:
        print(f"  {test}: bare {bare.of_test.get(test)}, traced {traced.of_test.get(test)}")
    return len(differing)


if __name__ == "__main__":
    sys.exit(main())
