"""Check the command and the Python that it names, and judge the tiny program's run by it: the agent, the
POSIX tracer, the interpreter and its libraries.
"""

from __future__ import annotations

import os
import platform
import shlex

from iotrace.doctor.command import Interpreter, python_of, script_of
from iotrace.doctor.probe import READS, InterpreterFacts, Probe
from iotrace.doctor.results import Check, missing, ok, unknown, warning
from iotrace.errors import LaunchError
from iotrace.launch.child import find, script_interpreter

_NOTHING_RUNS = "nothing can be run"
_OLDEST = (3, 10)
_OLDEST_SHOWN = ".".join(map(str, _OLDEST))
_NEWER = f"run the program by Python {_OLDEST_SHOWN} or newer"
_READERS = ("h5py", "zarr", "numpy", "pillow", "tifffile", "pyarrow", "pandas")
_INSTALL = "pip install iotrace-agent into that interpreter's environment"


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


def judge(probe: Probe, environment: dict[str, str]) -> list[Check]:
    """Return the findings of every check that rests on the probe."""
    posix = check_posix(probe, environment)
    facts = probe.facts or probe.untraced
    if facts is None:
        remedy = "see what is wrong with it: CMD's python -c 'print(1)'"
        silent = unknown("agent", "the interpreter does not run a tiny program", probe.failure, remedy)
        return [silent, posix]
    agent = check_agent(facts)
    if probe.facts is None and not is_too_old(facts):
        agent = missing(
            "agent",
            f"a tiny program does not run traced: {probe.failure}",
            "it runs without iotrace, so it is iotrace that stops it",
            "please report it, with LD_PRELOAD, PYTHONPATH and the interpreter's version",
        )
    return [check_python(facts), agent, posix, check_start_method(facts), *check_libraries(facts)]


def is_too_old(facts: InterpreterFacts) -> bool:
    """Say whether the agent does not support that version."""
    return tuple(map(int, facts.version.split(".")[:2])) < _OLDEST


def check_python(facts: InterpreterFacts) -> Check:
    """Check the interpreter's implementation and version."""
    what = f"{facts.implementation} {facts.version}"
    if is_too_old(facts):
        return missing("python", what, f"the agent needs Python {_OLDEST_SHOWN}", _NEWER)
    if facts.implementation != "cpython":
        return warning("python", what, "iotrace is tested with CPython alone", "run the program by CPython")
    return ok("python", what)


def check_agent(facts: InterpreterFacts) -> Check:
    """Check that the agent was there before the program's first line; else find what keeps it out."""
    what = "does not get into the interpreter"
    lost = "no steps, no data waits, no read paths"
    if is_too_old(facts):
        return missing("agent", what, f"it needs Python {_OLDEST_SHOWN}: {lost}", _NEWER)
    if facts.agent:
        way = "installed there" if facts.packages.get("iotrace-agent") else "through PYTHONPATH"
        return ok("agent", f"gets into the interpreter, {way}")
    if facts.no_site:
        return missing("agent", what, f"python -S loads no site, hence no agent: {lost}", "leave out -S")
    if facts.isolated or facts.ignore_environment:
        option = "-I" if facts.isolated else "-E"
        return missing(
            "agent",
            what,
            f"python {option} ignores PYTHONPATH, and iotrace is not installed there: {lost}",
            f"{_INSTALL}, or leave out {option}",
        )
    return missing("agent", what, f"its start failed, or the environment was emptied: {lost}", _INSTALL)


def check_posix(probe: Probe, environment: dict[str, str]) -> Check:
    """Check that the recorder is installed, loads, and saw the tiny program's reads."""
    capture, lost = probe.capture, "no POSIX calls: reading and decoding cannot be charged to files"
    if capture.why_not:
        return missing("posix", capture.why_not, lost, capture.remedy)
    if probe.facts is None:
        return unknown(
            "posix", "the preloaded tracer could not be tried", "the tiny program did not run", "see agent"
        )
    if probe.reads_seen is None:
        what = "the recorder of POSIX calls is not loaded into the interpreter"
        if not probe.facts.asked_for:
            why = f"what starts it takes LD_PRELOAD out of its environment: {lost}"
            return missing("posix", what, why, "start it without env -i, or put that before iotrace")
        libc = " ".join(filter(None, platform.libc_ver())) or "this C library"
        remedy = f"the interpreter must be dynamically linked with glibc ({libc} here)"
        return missing("posix", what, probe.failure or lost, remedy)
    inherited = environment.get("LD_PRELOAD", "")
    beside = f", before {inherited}" if inherited else ""
    if probe.reads_seen != READS:
        return missing(
            "posix",
            f"the recorder is loaded{beside}, but saw {probe.reads_seen} of {READS} reads",
            lost,
            "unset LD_PRELOAD" if inherited else "please report it",
        )
    return ok("posix", f"the recorder saw all {READS} reads of a tiny program{beside}")


def check_start_method(facts: InterpreterFacts) -> Check:
    """Find how this Python starts loader workers unless the program says otherwise."""
    if facts.start_method is None:
        why = "multiprocessing was not importable"
        return unknown(
            "start-method", "multiprocessing does not say", why, "python -c 'import multiprocessing'"
        )
    what = f"loader workers start by {facts.start_method}"
    if facts.start_method == "fork":
        return ok("start-method", what)
    return ok("start-method", what, "each worker imports the program anew: the first batch comes late")


def check_libraries(facts: InterpreterFacts) -> list[Check]:
    """Check for torch, and list the libraries that iotrace hooks."""
    versions = {name: version for name, version in facts.packages.items() if version}
    readers = [f"{name} {versions[name]}" for name in _READERS if name in versions]
    libraries = ok("libraries", ", ".join(readers) or f"none of {', '.join(_READERS)} there")
    if "torch" in versions:
        return [ok("torch", versions["torch"]), libraries]
    lacking = warning(
        "torch",
        "the interpreter does not find it",
        "steps and data waits are then those of other loaders alone: docs/loaders.md, iotrace.batches",
        "where the program uses torch, name its own interpreter: iotrace doctor -- /path/to/python",
    )
    return [lacking, libraries]
