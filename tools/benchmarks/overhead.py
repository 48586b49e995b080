"""What tracing costs: every workload traced over bare, each source apart, and the small figures behind it."""

from __future__ import annotations

import argparse
import compileall
import json
import os
import signal
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.benchmarks import tables
from tools.benchmarks.compare import Compared, compare
from tools.benchmarks.machine import machine
from tools.benchmarks.micro import micro
from tools.benchmarks.variants import AGAIN, BARE, MEANINGS, NO_WINDOW, RUN

import iotrace

_WORKLOADS = Path(__file__).parent.parent.parent / "workloads"


def main() -> None:
    options, chosen, variants = _options()
    # An installed package has its bytecode; a checkout that may not write any would be compiled each time.
    compileall.compile_dir(Path(iotrace.__file__).parent, quiet=1)
    directory = options.directory or Path(tempfile.gettempdir()) / "iotrace-bench-data"
    directory.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what was measured is shown
    about = machine()
    compared: dict[str, Compared] = {}
    for workload in chosen:
        found = compare(workload, variants, options.passes, options.seconds, directory)
        compared[workload.stem] = found
        if not found.whole:
            break
    interrupted = any(not found.whole for found in compared.values())
    small = None if options.no_micro or interrupted else micro(options.rounds)
    load_after = os.getloadavg()[0]
    if options.json:
        plain = {name: asdict(found) for name, found in compared.items()}
        result: dict[str, Any] = {"machine": about, "load_average_after": load_after}
        print(json.dumps({**result, "workloads": plain, "micro": small}, indent=2))
        return
    lines = [tables.heading(about, load_after), ""]
    if compared:
        lines += [*tables.workloads(compared), ""]
    print("\n".join(lines + (tables.small(small) if small else [])))


def _options() -> tuple[argparse.Namespace, list[Path], list[str]]:
    parser = argparse.ArgumentParser(prog="tools/bench overhead", description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="names in workloads/; default: all")
    parser.add_argument(
        "--passes", type=int, help="how often every variant runs, in shuffled order (10; 2 if quick)"
    )
    parser.add_argument(
        "--seconds", type=float, help="of steps in each run, beside its start (10; 3 if quick)"
    )
    parser.add_argument(
        "--variants",
        metavar="LIST",
        help=f"of {', '.join(MEANINGS)} (all; {AGAIN}, {NO_WINDOW}, {RUN} if quick); separated by commas",
    )
    parser.add_argument("--quick", action="store_true", help="few short runs: fixed costs count most in them")
    parser.add_argument("--no-micro", action="store_true", help="leave out the small figures")
    parser.add_argument("--no-workloads", action="store_true", help="the small figures alone")
    parser.add_argument("--directory", type=Path, help="where the workloads' data is kept")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    there = {path.stem: path for path in sorted(_WORKLOADS.glob("*.py"))}
    for name in options.workloads:
        if name not in there:
            parser.error(f"no workload {name}; there are: {', '.join(there)}")
    asked = options.variants.split(",") if options.variants else []
    for name in asked:
        if name not in MEANINGS:
            parser.error(f"no variant {name}; there are: {', '.join(MEANINGS)}")
    if options.passes is None:
        options.passes = 2 if options.quick else 10
    if options.seconds is None:
        options.seconds = 3.0 if options.quick else 10.0
    if options.passes < 1 or not 0 < options.seconds < 3600:
        parser.error("--passes must be 1 or more, --seconds above 0")
    options.rounds = 2 if options.quick else 6
    chosen = [there[name] for name in options.workloads or there] if not options.no_workloads else []
    default = [AGAIN, NO_WINDOW, RUN] if options.quick else list(MEANINGS)
    return options, chosen, [BARE, *(asked or default)]


if __name__ == "__main__":
    main()
