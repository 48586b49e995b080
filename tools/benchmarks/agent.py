"""What the agent costs: one process, span, batch, region and POSIX call, and the sidecar beside them."""

from __future__ import annotations

import argparse
import json
import os

from tools.benchmarks import tables
from tools.benchmarks.machine import machine
from tools.benchmarks.micro import micro


def main() -> None:
    parser = argparse.ArgumentParser(prog="tools/bench agent", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds of each figure (5)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    about, found = machine(), micro(options.rounds)
    load_after = os.getloadavg()[0]
    if options.json:
        print(json.dumps({"machine": about, "load_average_after": load_after, "micro": found}, indent=2))
    else:
        print("\n".join([tables.heading(about, load_after), "", *tables.small(found)]))


if __name__ == "__main__":
    main()
