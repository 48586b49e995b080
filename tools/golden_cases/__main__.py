"""The command line of tools/golden."""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tools.golden_cases import normal
from tools.golden_cases.cases import Case, cases
from tools.golden_cases.checkout import Checkout
from tools.golden_cases.compare import compare
from tools.golden_cases.recording import Recorded, record
from tools.golden_cases.write import write

_ABOUT = f"""\
Prove that a rebuild changed no figure: run the commands of two checkouts on the same recorded sessions,
traces and damaged files, and compare what they write.

  tools/golden record --checkout DIR      record sessions once, with one checkout
  tools/golden write --checkout DIR --out DIR
  tools/golden compare DIR DIR            exit code 1 where results differ
  tools/golden diff CHECKOUT CHECKOUT     write both, and compare

{normal.MASKED}"""


def main() -> int:
    """Run the command line; returns the exit code."""
    given = _arguments()
    if given.command == "compare":
        return _compare(given.first, given.second, given)
    recorded = Recorded(given.recorded.resolve())
    if given.command == "record":
        record(recorded, Checkout.at(given.checkout, given.python), _say)
        return 0
    if not recorded.of("sessions"):
        raise SystemExit(f"golden: nothing is recorded in {recorded.path}: tools/golden record")
    chosen = list(_chosen(recorded, given.only))
    if given.command == "write":
        write(Checkout.at(given.checkout, given.python), recorded, chosen, given.out, given.jobs, _say)
        return 0
    with tempfile.TemporaryDirectory(prefix="golden-results-") as name:
        out = given.out or Path(name)
        for side, checkout in (("a", given.first), ("b", given.second)):
            shutil.rmtree(out / side, ignore_errors=True)
            write(Checkout.at(checkout, given.python), recorded, chosen, out / side, given.jobs, _say)
        return _compare(out / "a", out / "b", given)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _chosen(recorded: Recorded, patterns: list[str]) -> Iterator[Case]:
    return (case for case in cases(recorded) if _matches(case.name, patterns))


def _matches(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatch(name, f"*{pattern}*") for pattern in patterns)


def _compare(first: Path, second: Path, given: argparse.Namespace) -> int:
    found = 0
    for name, lines in compare(first, second, lambda name: _matches(name, given.only), not given.figures):
        found += 1
        print(name)
        for line in lines:
            print(f"    {line}")
    print(f"{found} results differ" if found else "no difference")
    return 1 if found else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/golden", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--recorded", type=Path, default=Path(".golden"), metavar="DIR", help="the inputs")
    shared.add_argument("--python", help="runs the checkouts; default: the .venv-test of each")
    filtered = argparse.ArgumentParser(add_help=False)
    filtered.add_argument("--only", action="append", default=[], metavar="PATTERN", help="cases by name")
    compared = argparse.ArgumentParser(add_help=False)
    compared.add_argument("--figures", action="store_true", help="compare sentences by the numbers in them")
    running = argparse.ArgumentParser(add_help=False, parents=[shared, filtered])
    running.add_argument("-j", "--jobs", type=int, default=1, metavar="N", help="cases at a time (1)")

    one = commands.add_parser("record", parents=[shared], help="record what is not recorded yet")
    one.add_argument("--checkout", type=Path, default=Path("."), metavar="DIR")
    one = commands.add_parser("write", parents=[running], help="write a checkout's results")
    one.add_argument("--checkout", type=Path, default=Path("."), metavar="DIR")
    one.add_argument("--out", type=Path, required=True, metavar="DIR")
    one = commands.add_parser("compare", parents=[filtered, compared], help="compare two folders of results")
    one.add_argument("first", type=Path, metavar="DIR")
    one.add_argument("second", type=Path, metavar="DIR")
    one = commands.add_parser(
        "diff", parents=[running, compared], help="write and compare the results of two checkouts"
    )
    one.add_argument("first", type=Path, metavar="CHECKOUT")
    one.add_argument("second", type=Path, metavar="CHECKOUT")
    one.add_argument("--out", type=Path, metavar="DIR", help="where results are kept; default: nowhere")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
