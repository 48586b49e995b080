"""Check the command and the Python that it names, and judge the tiny program's run by it: the agent, the
POSIX tracer, the interpreter and its libraries.
"""

from __future__ import annotations

import os
import platform
import shlex
from typing import Any

from msgspec.structs import replace

from iotrace.analysis.rules.facts.host import HostFacts
from iotrace.doctor.command import Interpreter, find_python, find_script
from iotrace.doctor.probe import READS, InterpreterFacts, Probe
from iotrace.doctor.results import Check, judged, ok, unknown
from iotrace.errors import LaunchError
from iotrace.launch.child import find, script_interpreter

_READERS = ("h5py", "zarr", "numpy", "pillow", "tifffile", "pyarrow", "pandas")
_INSTALL = "pip install iotrace-agent into that interpreter's environment"


def check_command(command: list[str], path: str | None) -> Check:
    """Check the program and the script that `command` names, searched on `path`."""
    try:
        program = find(command, path)
    except LaunchError as error:
        return judged("command", HostFacts(not_runnable=str(error), remedy=error.remedy))
    name, interpreter = script_interpreter(program, path)
    if name and interpreter is None:
        what = f"{shlex.quote(program)} is run by {name!r}, which is not there, or not executable"
        remedy = "correct its first line, or install what it names"
        return judged("command", HostFacts(not_runnable=what, remedy=remedy))
    script = find_script(command)
    if script is not None and not os.path.exists(script):
        shown = shlex.quote(script)
        what = f"{program}, but there is no {shown} here"
        remedy = f"check its path, or run iotrace where {shown} is"
        return judged("command", HostFacts(not_runnable=what, remedy=remedy))
    return ok("command", find_python(program, path) or program)


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
    if probe.facts is None:
        agent = judged("agent", _about_agent(facts, stopped_by_iotrace=probe.failure))
    return [check_python(facts), agent, posix, check_start_method(facts), *check_libraries(facts)]


def check_python(facts: InterpreterFacts) -> Check:
    """Check the interpreter's implementation and version."""
    what = f"{facts.implementation} {facts.version}"
    about = HostFacts(what=what, version=_version(facts), implementation=facts.implementation)
    return judged("python", about)


def _version(facts: InterpreterFacts) -> tuple[int, ...]:
    return tuple(map(int, facts.version.split(".")[:2]))


def _about_agent(facts: InterpreterFacts, **known: Any) -> HostFacts:
    return HostFacts(what="does not get into the interpreter", version=_version(facts), **known)


def check_agent(facts: InterpreterFacts) -> Check:
    """Check that the agent was there before the program's first line; else find what keeps it out."""
    kept_out, remedy = "its start failed, or the environment was emptied", _INSTALL
    if facts.no_site:
        kept_out, remedy = "python -S loads no site packages, so no agent", "leave out -S"
    elif facts.isolated or facts.ignore_environment:
        option = "-I" if facts.isolated else "-E"
        kept_out = f"python {option} ignores PYTHONPATH, and iotrace is not installed there"
        remedy = f"{_INSTALL}, or leave out {option}"
    if facts.agent:
        way = "installed there" if facts.packages.get("iotrace-agent") else "through PYTHONPATH"
        about = replace(_about_agent(facts), what=f"gets into the interpreter, {way}")
        return judged("agent", about)
    return judged("agent", _about_agent(facts, kept_out=kept_out, remedy=remedy))


def check_posix(probe: Probe, environment: dict[str, str]) -> Check:
    """Check that the recorder is installed, loads, and saw the tiny program's reads."""
    capture = probe.capture
    if capture.why_not:
        return judged("posix", HostFacts(no_recorder=capture.why_not, remedy=capture.remedy))
    if probe.facts is None:
        return unknown(
            "posix", "the preloaded tracer could not be tried", "the tiny program did not run", "see agent"
        )
    if probe.reads_seen is None:
        libc = " ".join(filter(None, platform.libc_ver())) or "this C library"
        facts = HostFacts(
            is_preloaded=False,
            preload_asked_for=probe.facts.asked_for,
            why=probe.failure,
            remedy=f"the interpreter must be dynamically linked with glibc ({libc} here)",
        )
        return judged("posix", facts)
    inherited = environment.get("LD_PRELOAD", "")
    beside = f", before {inherited}" if inherited else ""
    what = f"the recorder saw all {READS} reads of a tiny program{beside}"
    return judged("posix", HostFacts(what=what, reads=(probe.reads_seen, READS), preloads=inherited))


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
    return [judged("torch", HostFacts(torch_absent=True)), libraries]
