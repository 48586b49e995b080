"""Check whether the command can run, and whether it names a Python that can be tried."""

from __future__ import annotations

import os
import shlex

from iotrace.doctor.command import Interpreter, python_of, script_of
from iotrace.doctor.results import Check, missing, ok, unknown
from iotrace.errors import LaunchError
from iotrace.launch.child import find, script_interpreter

_NOTHING_RUNS = "nothing can be run"


def check_command(command: list[str], path: str | None) -> Check:
    """Check the program and the script that `command` names, searched on `path`."""
    try:
        program = find(command, path)
    except LaunchError as error:
        return missing("command", str(error), _NOTHING_RUNS, error.remedy)
    name, interpreter = script_interpreter(program, path)
    if name and interpreter is None:
        what = f"{shlex.quote(program)} is run by {name!r}, which is not there, or not executable"
        return missing("command", what, _NOTHING_RUNS, "correct its first line, or install what it names")
    script = script_of(command)
    if script is not None and not os.path.exists(script):
        shown = shlex.quote(script)
        what = f"{program}, but there is no {shown} here"
        return missing("command", what, _NOTHING_RUNS, f"check its path, or run iotrace where {shown} is")
    return ok("command", python_of(program, path) or program)


def check_interpreter(command: list[str], interpreter: Interpreter | None) -> Check:
    """Check whether the words of `command` name a Python that can be tried."""
    if interpreter is None:
        return unknown(
            "interpreter",
            f"{command[0]} names no Python that could be tried",
            "only a run shows whether the agent gets into what it starts",
            "name the Python behind it: iotrace doctor -- python",
        )
    if interpreter.behind:
        return ok(
            "interpreter",
            f"{interpreter.program}, behind {interpreter.behind}",
            f"tried here, without {interpreter.behind}: it must hand on the environment",
        )
    return ok("interpreter", " ".join(interpreter.words))
