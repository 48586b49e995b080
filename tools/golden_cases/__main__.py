"""The command line of tools/golden."""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tools.golden_cases import normal
from tools.golden_cases.agent import write_agent
from tools.golden_cases.cases import cases
from tools.golden_cases.checkout import Checkout
from tools.golden_cases.compare import compare
from tools.golden_cases.damaged import damaged
from tools.golden_cases.damaged_sessions import damaged_sessions
from tools.golden_cases.options import options
from tools.golden_cases.recording import Recorded, Recorder, record_all
from tools.golden_cases.sessions import sessions, sweeps
from tools.golden_cases.sweep_states import sweep_states
from tools.golden_cases.traces import traces
from tools.golden_cases.write import write

_ABOUT = f"""\
Prove that a rebuild changed no figure: run the commands of two checkouts on the same recorded sessions,
traces and damaged files, and compare what they write.

  tools/golden record --checkout DIR      record sessions once, with one checkout
  tools/golden write --checkout DIR --out DIR
  tools/golden compare DIR DIR            exit code 1 where results differ
  tools/golden diff CHECKOUT CHECKOUT     write both, and compare
  tools/golden agent CHECKOUT CHECKOUT    compare what both agents record of deterministic programs

{normal.MASKED}"""


def main() -> int:
    """Run the command line; returns the exit code."""
    given = _arguments()
    if given.command == "compare":
        return _compare(given.first, given.second, given)
    if given.command == "agent":
        return _both(given, lambda checkout, out: write_agent(checkout, out, _wanted(given), _say))
    recorded = Recorded(given.recorded.resolve())
    if given.command == "record":
        recorder = Recorder(recorded, Checkout.at(given.checkout, given.python))
        makers = {
            "sessions": sessions(),
            "sweeps": sweeps(),
            "sweep_states": sweep_states(),
            "traces": traces(),
            "damaged": damaged(),
            "damaged_sessions": damaged_sessions(),
        }
        for kind, made in makers.items():
            record_all(recorder, kind, made, _say)
        return 0
    if not recorded.of("sessions"):
        raise SystemExit(f"golden: nothing is recorded in {recorded.path}: tools/golden record")
    wanted = _wanted(given)
    chosen = [case for case in (*cases(recorded), *options(recorded)) if wanted(case.name)]
    if given.command == "write":
        write(Checkout.at(given.checkout, given.python), recorded, chosen, given.out, given.jobs, _say)
        return 0
    return _both(given, lambda checkout, out: write(checkout, recorded, chosen, out, given.jobs, _say))


def _both(given: argparse.Namespace, write_results: Callable[[Checkout, Path], None]) -> int:
    """Write the results of both checkouts and compare them."""
    with tempfile.TemporaryDirectory(prefix="golden-results-") as name:
        out = given.out or Path(name)
        for side, path in (("a", given.first), ("b", given.second)):
            shutil.rmtree(out / side, ignore_errors=True)
            write_results(Checkout.at(path, given.python), out / side)
        return _compare(out / "a", out / "b", given)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _wanted(given: argparse.Namespace) -> Callable[[str], bool]:
    """Whether a name is chosen by --only."""
    patterns = given.only
    return lambda name: not patterns or any(fnmatch.fnmatch(name, f"*{pattern}*") for pattern in patterns)


def _compare(first: Path, second: Path, given: argparse.Namespace) -> int:
    found, absent = 0, Counter[tuple[str, str]]()
    for name, lines in compare(first, second, _wanted(given), not given.figures):
        found += 1
        if lines[0].startswith("only in"):
            absent[name.partition("/")[0], lines[0]] += 1
            continue
        print(name)
        for line in lines:
            print(f"    {line}")
    for (kind, where), count in absent.items():
        print(f"{kind}: {count} results {where}")
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
    compared.add_argument(
        "--figures",
        action="store_true",
        help="compare sentences by the numbers in them, and no sizes of files that hold sentences",
    )
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
    one = commands.add_parser("agent", parents=[filtered, compared], help="compare what two agents record")
    one.add_argument("first", type=Path, metavar="CHECKOUT")
    one.add_argument("second", type=Path, metavar="CHECKOUT")
    one.add_argument("--out", type=Path, metavar="DIR", help="where results are kept; default: nowhere")
    one.add_argument("--python", help="runs the checkouts; default: the .venv-test of each")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
