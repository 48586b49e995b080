"""Run the command traced: make the session, start the command with the agent in it, write the outcome.

Check the settings of the torch profiler, which the agent uses in each training process.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from pathlib import Path

from iotrace.errors import LaunchError
from iotrace.launch import capture_directory, child, posix
from iotrace.launch.capture_directory import make_private
from iotrace.launch.session_directory import (
    TakenError,
    begin,
    job_name,
    may_join,
    numbered,
    read_commit,
    task_name,
)
from iotrace.launch.telemetry.procfs import count_oom_kills
from iotrace.launch.telemetry.start import Telemetry, start
from iotrace.session import names
from iotrace.session.liveness import this_process
from iotrace.session.manifest import Manifest, NotCaptured, Outcome, PosixState, write_document
from iotrace.session.masks import masked
from iotrace.version import __version__

# Of read paths that other packages add, as `agent.readpaths.finders` reads them.
_FINDER = re.compile(r"(\d+(:\w+)?|result)(\.\w+(\(\))?)*|length")
_CALL = re.compile(r"\w+(\.\w+)*")
_READ_PATHS_REMEDY = "see docs/readpaths.md"
# NVIDIA, AMD, Intel. A node without a device behind it makes the exposed wait unknown, not wrong.
_ACCELERATOR_NODES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*", "/dev/accel/accel*")
_SHIM = Path(__file__).parent.parent / "agent" / "shim"


@dataclass(frozen=True)
class Finished:
    """How the command ended; `first` unless an earlier launcher of the job made the `session`."""

    exit_code: int
    first: bool
    session: Path


def begin_by_default(manifest: Manifest, suffix: str = "") -> tuple[Path, Path]:
    """Make a session in the current directory, named by time; all tasks of a job get the same name.

    Return its path as it is shown, and what `begin` returns.

    Raises:
        LaunchError: it cannot be written.
    """
    job = job_name(os.environ)
    name = job or f"{datetime.now():%Y%m%d-%H%M%S}"
    for path in numbered(Path(f"iotrace-{name}{suffix}")):
        # Another task of the job may have made the directory just now, and be about to write its manifest.
        is_begun = job and path.is_dir() and not (path / names.MANIFEST).exists()
        if not path.exists() or is_begun or (job and may_join(path, job, task_name(os.environ))):
            with suppress(TakenError):  # another run that began in the same second was faster
                return path, begin(path, manifest)
    raise AssertionError("there is always a next number")


def run(
    command: list[str],
    directory: Path | None,
    only: list[str],
    torch: dict[str, str],
    telemetry_ms: int | None = None,
    announce: Callable[[Path], None] = lambda _: None,
    most_bytes: int = 0,
    by: str = names.RECORDER,
) -> Finished:
    """Run `command` traced into the session `directory`, a new one or one of the same job; None: by time.

    Once the command has started, its exit code is returned whatever fails. `torch` holds the profiler's
    settings (`torch_settings.settings`). Processes are sampled every `telemetry_ms`; None: not at all. The
    launcher that made the session calls `announce` with its path before the command starts. What samples
    keeps the session below `most_bytes`; 0: no limit. POSIX calls are traced `by` our recorder or dftracer.

    Raises:
        LaunchError: the program does not start; 125, or 126 and 127 as in a shell.
    """
    if not command:
        raise LaunchError("no command was given", "iotrace run -- python train.py")
    environment = dict(os.environ)
    program = child.find(command, environment.get("PATH"))
    capture = posix.plan(program, only, by)
    read_paths, not_captured = added_read_paths()
    # Before dftracer is switched on for iotrace: a program that uses it sees what the user set.
    own_dftracer = "on" if environment.get("DFTRACER_ENABLE") == "1" else "off"
    if capture.why_not:
        not_captured.append(NotCaptured("posix", capture.why_not, capture.remedy))
    paths = [] if only == [names.OFF] else [readable(path) for path in only]
    state = PosixState(on=not capture.why_not, only=paths, by=capture.by)
    manifest = describe(command, state, not_captured, torch, telemetry_ms)
    shown, launch = (directory, begin(directory, manifest)) if directory else begin_by_default(manifest)
    session = shown.resolve()
    settings = {"dftracer": own_dftracer, **read_paths, **torch}
    recorded = launch / names.POSIX
    if state.on and state.by == names.RECORDER:
        recorded = capture_directory.begin(recorded)
    environment = traced_environment(environment, capture, launch, settings, recorded)
    telemetry = start(session, telemetry_ms, most_bytes) if telemetry_ms else Telemetry(None)
    oom_kills = count_oom_kills()
    first = launch == session
    if first:
        announce(shown)
    started_ns = time.monotonic_ns()
    try:
        code = child.run(command, environment)
    except LaunchError:
        telemetry.kill()
        capture_directory.collect(recorded, launch / names.POSIX)
        if not manifest.job:
            shutil.rmtree(launch, ignore_errors=True)  # nothing ran: the name is free for the next try
        raise
    exit_code = 128 - code if code < 0 else code  # as a shell does
    with suppress(Exception, KeyboardInterrupt):  # the command has had its run; a report says what is missing
        capture_directory.collect(recorded, launch / names.POSIX)
        _conclude(launch, code, exit_code, started_ns, oom_kills)
        telemetry.release()
    return Finished(exit_code, first, as_shown(shown, session))


def _conclude(launch: Path, code: int, exit_code: int, started_ns: int, oom_kills: int | None) -> None:
    """Write how the command ended, and make dftracer's logs private."""
    since = count_oom_kills()
    outcome = Outcome(
        exit_code=exit_code,
        ended_ns=time.time_ns(),
        duration_ns=time.monotonic_ns() - started_ns,
        signal=-code if code < 0 else None,
        oom_kills=None if oom_kills is None or since is None else since - oom_kills,
    )
    write_document(launch / names.OUTCOME, outcome)
    make_private(launch / names.POSIX)


def as_shown(shown: Path, session: Path) -> Path:
    """Return `shown`, unless the program has left or deleted the directory that it is relative to."""
    try:
        return shown if shown.resolve() == session else session
    except OSError:  # the current directory is gone
        return session


def traced_environment(
    environment: dict[str, str],
    capture: posix.PosixCapture,
    launch: Path,
    settings: dict[str, str],
    recorded: Path | None = None,
) -> dict[str, str]:
    """Return `environment` with agent and POSIX tracer switched on, to write to `launch` and `recorded`."""
    traced = dict(environment)
    if not capture.why_not:
        own = [launch / names.POSIX, launch / names.PROCESSES]
        traced.update(posix.environment(capture, recorded or own[0], environment, own))
    traced.update(agent_environment(launch, environment.get("PYTHONPATH", ""), settings))
    return traced


def agent_environment(launch: Path, python_path: str, settings: dict[str, str]) -> dict[str, str]:
    """Return the variables that start the agent in a Python process; `python_path` is PYTHONPATH before."""
    return {
        names.SETTINGS_VARIABLE: names.encode_settings({"session": str(launch), **settings}),
        "PYTHONPATH": os.pathsep.join([str(_SHIM), *filter(None, [python_path])]),
    }


def describe(
    command: list[str],
    posix_state: PosixState,
    not_captured: list[NotCaptured],
    torch: dict[str, str],
    telemetry_ms: int | None = None,
    in_job: bool = True,
) -> Manifest:
    """Make the manifest of a run of `command` that begins now, here."""
    return Manifest(
        format=names.FORMAT_VERSION,
        iotrace_version=__version__,
        argv=masked([readable(word) for word in command]),
        cwd=readable(_working_directory()),
        host=readable(os.environ.get(names.HOST_VARIABLE) or os.uname().nodename),
        started_ns=time.time_ns(),
        cpus=len(os.sched_getaffinity(0)),
        posix=posix_state,
        job=job_name(os.environ) if in_job else "",
        task=task_name(os.environ) if in_job else "",
        accelerators=sorted(node for pattern in _ACCELERATOR_NODES for node in glob.glob(pattern)),
        telemetry_ms=telemetry_ms,
        not_captured=not_captured,
        torch=torch,
        launcher=this_process(),
        commit=read_commit(Path(_working_directory())),
    )


def readable(text: str) -> str:
    """Return `text` as UTF-8 can hold it: names of files may be any bytes."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # deleted under us; the command may not care
        return os.environ.get("PWD", "/")


# Five steps pass the start of the workers, and a warm-up of one is what torch's own examples take. Five
# steps recorded leave a run of sixteen with seven measured ones.
DEFAULT_STEPS = "5:1:5:1"
OPTIONS = ("shapes", "stacks", "memory", "flops")
ACTIVITIES = ("auto", "cpu", "all")

_LEAST = {"WAIT": 0, "WARMUP": 0, "ACTIVE": 1, "REPEAT": 1}


def settings(steps: str, options: str, activities: str, snapshot: str | None = None) -> dict[str, str]:
    """Return the agent's settings.

    Raises:
        LaunchError: torch's profiler does not have such a setting.
    """
    chosen = [option for option in options.split(",") if option]
    for option in chosen:
        if option not in OPTIONS:
            remedy = f"choose from {','.join(OPTIONS)}, or none"
            raise LaunchError(f"--torch-options does not know {option!r}", remedy)
    if activities not in ACTIVITIES:
        remedy = f"choose one of {', '.join(ACTIVITIES)}"
        raise LaunchError(f"--torch-activities does not know {activities!r}", remedy)
    return {
        names.TORCH_STEPS: _steps(steps),
        names.TORCH_OPTIONS: ",".join(chosen),
        names.TORCH_ACTIVITIES: activities,
        **({names.CUDA_SNAPSHOT: _snapshot(snapshot)} if snapshot is not None else {}),
    }


def _snapshot(text: str) -> str:
    """Return `text`, checked: training steps to wait, and steps to record."""
    if not re.fullmatch(r"[0-9]+:0*[1-9][0-9]*", text):
        raise LaunchError(
            f"--cuda-snapshot {text!r} is not WARMUP:STEPS in whole training steps, one or more to record",
            "as in --cuda-snapshot 5:3",
        )
    return text


def _steps(text: str) -> str:
    """Return `text` with all four numbers, or ``off``."""
    if text == names.OFF:
        return text
    remedy = f"as in --torch-steps {DEFAULT_STEPS}, or --torch-steps {names.OFF}"
    if not re.fullmatch(r"[0-9]+(:[0-9]+){2,3}", text):
        raise LaunchError(f"--torch-steps {text!r} is not WAIT:WARMUP:ACTIVE[:REPEAT] in whole steps", remedy)
    numbers = [*map(int, text.split(":")), 1][:4]
    for (name, least), number in zip(_LEAST.items(), numbers, strict=True):
        if number < least:
            raise LaunchError(f"--torch-steps {text!r}: {name} has to be {least} or more", remedy)
    return ":".join(map(str, numbers))


def added_read_paths() -> tuple[dict[str, str], list[NotCaptured]]:
    """Return the agent's setting with the read paths that other packages add, and those that are none.

    They are entry points, and no package is imported for them. A value is the call, such as
    ``mylib.reader:Reader.read``. Its name says the rest, between semicolons: a label that makes it unique,
    then any of ``file FINDER``, ``size FINDER``, ``threads`` and ``each``.
    """
    from importlib.metadata import entry_points

    rows, refused = [], []
    points = entry_points(group=names.READ_PATHS_GROUP)
    for point in sorted(points, key=attrgetter("value", "name")):
        module, _, call = point.value.partition(":")
        row, why = _read_path(point.name)
        if not why and not (_CALL.fullmatch(module.strip()) and _CALL.fullmatch(call.strip())):
            why = "its value is no MODULE:CALL"
        if why:
            refused.append(
                NotCaptured(f"the read path {point.value}", f"{why} (entry point)", _READ_PATHS_REMEDY)
            )
        else:
            rows.append("\t".join((module.strip(), call.strip(), *row)))
    return ({names.READ_PATHS: "\n".join(rows)} if rows else {}), refused


def _read_path(name: str) -> tuple[list[str], str]:
    """Return the finders of file and size and the words in an entry point's name, or why that says none."""
    finders = {"file": "", "size": "result"}
    words = []
    for field in name.split(";")[1:]:
        key, _, finder = field.strip().partition(" ")
        if key in ("threads", "each") and not finder:
            words.append(key)
        elif key in finders and (_FINDER.fullmatch(finder) or (key, finder) == ("size", "unknown")):
            finders[key] = "" if finder == "unknown" else finder
        else:
            return [], f"'{field.strip()}' is no field of a read path"
    return [*finders.values(), " ".join(words)], ""
