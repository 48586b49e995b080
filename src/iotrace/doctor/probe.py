"""Run a tiny program by the command's interpreter, traced as `iotrace run` would trace it."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from dataclasses import dataclass

import msgspec

from iotrace.doctor.command import Interpreter
from iotrace.doctor.run import Sandbox
from iotrace.launch import posix
from iotrace.launch.traced_run import traced_environment
from iotrace.session import names
from iotrace.sources.recorder.reader import read_recorded

READS, READ_BYTES = 8, 512
# For both runs together: they end before the check is given up.
_SECONDS = 3.6

# Runs in any Python, 2.7 too: prints what it is and whether the agent is there, and reads a file for the
# tracer to see.
_PROGRAM = """
import json, os, platform, sys
bootstrap = sys.modules.get("iotrace.agent.bootstrap")
descriptor = os.open("data.bin", os.O_RDONLY)
for _ in range(8):
    os.read(descriptor, 512)
os.close(descriptor)
maps = open("/proc/self/maps").read() if os.path.exists("/proc/self/maps") else ""
def version(name):
    try:
        from importlib import metadata
        return metadata.version(name)
    except Exception:
        pass
    try:
        from importlib import util
        return "of unknown version" if util.find_spec(name) else None
    except Exception:
        return None
try:
    import multiprocessing
    start = multiprocessing.get_context().get_start_method()
except Exception:
    start = None
print(json.dumps({
    "agent": bootstrap is not None and getattr(bootstrap, "_recorder", None) is not None,
    "preloaded": "_posix_recorder" in maps,
    "asked_for": "_posix_recorder" in os.environ.get("LD_PRELOAD", ""),
    "version": "%d.%d.%d" % sys.version_info[:3],
    "implementation": platform.python_implementation().lower(),
    "isolated": getattr(sys.flags, "isolated", 0), "no_site": sys.flags.no_site,
    "ignore_environment": sys.flags.ignore_environment,
    "start_method": start,
    "packages": {name: version(name) for name in (
        "torch", "iotrace-agent", "h5py", "zarr", "numpy", "pillow", "tifffile", "pyarrow", "pandas")},
}))
"""


class InterpreterFacts(msgspec.Struct, frozen=True):
    """What the tiny program prints of its interpreter."""

    agent: bool
    preloaded: bool
    asked_for: bool
    version: str
    implementation: str
    isolated: int
    no_site: int
    ignore_environment: int
    start_method: str | None
    packages: dict[str, str | None]


@dataclass(frozen=True)
class Probe:
    """The result of the traced tiny program. `reads_seen` of READS; None where the tracer was not loaded.

    `facts` is None where it failed; `untraced` holds the facts of a run without iotrace, made only then.
    """

    facts: InterpreterFacts | None
    capture: posix.PosixCapture
    reads_seen: int | None
    failure: str = ""
    untraced: InterpreterFacts | None = None


def probe(interpreter: Interpreter, environment: dict[str, str], sandbox: Sandbox) -> Probe:
    """Run the tiny program with agent and POSIX tracer, in a directory that is removed afterwards.

    Raises:
        OSError: files, processes or memory have run out, which is not the interpreter's fault.
    """
    deadline = time.monotonic() + _SECONDS

    def attempt(variables: dict[str, str]) -> tuple[subprocess.CompletedProcess[str] | None, str]:
        try:
            line = [*interpreter.words, "-c", _PROGRAM]
            return sandbox.run(line, variables, max(0.1, deadline - time.monotonic()), directory), ""
        except subprocess.TimeoutExpired:
            return None, f"it did not end within {_SECONDS} s"
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM):
                raise
            return None, str(error)

    with sandbox.directory() as directory:
        (directory / names.PROCESSES).mkdir()
        (directory / names.POSIX).mkdir()
        (directory / "data.bin").write_bytes(bytes(READS * READ_BYTES))
        capture = posix.plan(interpreter.program, [str(directory / "data.bin")])
        traced = traced_environment(environment, capture, directory, {})
        done, failure = attempt(traced)
        facts = _facts_in(done)
        if facts is None:
            untraced, _ = attempt(environment)
            return Probe(None, capture, None, failure or last_line(done), _facts_in(untraced))
        calls = read_recorded([directory / names.POSIX])
        seen = int(calls.calls[calls.named(["read"])].sum())
        return Probe(facts, capture, seen if facts.preloaded else None, _preload_error(done))


def _facts_in(done: subprocess.CompletedProcess[str] | None) -> InterpreterFacts | None:
    if done is None or done.returncode or not done.stdout.strip():
        return None
    try:
        return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=InterpreterFacts)
    except msgspec.DecodeError:
        return None


def last_line(done: subprocess.CompletedProcess[str] | None) -> str:
    """Return the last line of a process's standard error, else how it ended."""
    if done is None:
        return ""
    if done.returncode < 0:
        return f"it was ended by signal {-done.returncode}"
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"it left with exit code {done.returncode}"


def _preload_error(done: subprocess.CompletedProcess[str] | None) -> str:
    """Return the dynamic loader's message where it could not preload."""
    lines = done.stderr.splitlines() if done else []
    return next((line for line in lines if "LD_PRELOAD" in line and "_posix_recorder" in line), "")


def clean_environment() -> dict[str, str]:
    """Return this process's environment without another session's settings, its paths absolute."""
    environment = {key: value for key, value in os.environ.items() if key != names.SETTINGS_VARIABLE}
    if environment.get("PYTHONPATH"):
        entries = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(
            os.path.abspath(entry) if entry else "" for entry in entries
        )
    return environment
