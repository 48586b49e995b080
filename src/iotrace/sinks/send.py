"""What runs in the process that hands a result over: NAME DIRECTORY, its answer as a line of JSON."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path

from iotrace.sinks import SINKS
from iotrace.sinks.content import read


def main() -> None:
    """Hand over what lies in a directory. Standard output has the answer alone: clients print much."""
    name, directory = sys.argv[1:]
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(2, 1)
        sys.stdout = sys.stderr  # whose lines are written at once: nothing flushes at the end
        try:
            module = import_module(f"iotrace.sinks.{SINKS[name].module}")
            outcome = {"where": module.send(read(Path(directory)), Path(directory))}
        except Exception as error:  # whatever a client raises: its reason is reported, the run counts
            outcome = {"why": (str(error) or type(error).__name__).strip().split("\n")[0]}
        json.dump(outcome, answer)
        answer.flush()
        os._exit(0)  # a client's threads may wait for its server long after
