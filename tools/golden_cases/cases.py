"""What is run: commands of iotrace on the recorded inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.golden_cases.recording import Recorded
from tools.golden_cases.sweep_states import resume_arguments

ONE = ("--processes", "1", "--json")
# Replaces the session that ``iotrace run`` has begun by a recorded one: it then writes the timelines of that.
_REPLAY = 'cp -R "$0/." session && rm -rf session/files.json session/out/*'
# The same for a run of a sweep, which has its output in the session's parent.
_REPLAY_OF_SWEEP = (
    'run=$(dirname "$(readlink /proc/$$/fd/1)"); cp -R "$0/$(basename "$run")/session/." "$run/session"'
)

# A merge draws the other sessions by the same model.
_TIMELINES = [
    "ddp_slow_rank",
    "elastic",
    "gpu",
    "killed_program",
    "lightning",
    "marks",
    "own_profiler",
    "readers",
    "regions",
    "two_launchers",
    "unet3d_hdf5",
    "weather_zarr",
]


@dataclass(frozen=True)
class Case:
    """``iotrace ARGUMENTS`` in a directory that holds copies of `given` (the path, the name there) alone.

    The files that match `kept` are results, and so is what is printed if it does not depend on the moment.
    With `fresh` the command is run by an interpreter of its own.
    """

    name: str
    arguments: tuple[str, ...]
    kept: tuple[str, ...] = ("*",)
    given: tuple[tuple[Path, str], ...] = ()
    printed: bool = True
    fresh: bool = False


def cases(recorded: Recorded) -> Iterator[Case]:
    """Every case, in order."""
    for session in recorded.of("sessions"):
        yield from _of_input("sessions", session, "report")
        yield from _of_session(session)
    for trace in recorded.of("traces"):
        yield from _of_input("traces", trace, "report")
    for trace in recorded.of("damaged"):
        yield from _of_input("damaged", trace)
    for session in recorded.of("damaged_sessions"):
        yield from _of_input("damaged_sessions", session, "report")
    yield from _of_sweeps(recorded)


def _of_input(kind: str, path: Path, *more: str) -> Iterator[Case]:
    name, source = f"{kind}/{path.name}", str(path)
    yield Case(f"{name}/report-json", ("report", source, "--json"))
    if "report" in more:
        yield Case(f"{name}/report", ("report", source))
    yield Case(f"{name}/merge-json", ("merge", source, "-o", "merged.json", *ONE))
    yield Case(f"{name}/merge-native", ("merge", source, "-o", "merged.pftrace", *ONE))


def _of_session(session: Path) -> Iterator[Case]:
    name, source = f"sessions/{session.name}", str(session)
    export = ("export", source, "--format", "dftracer", "-o", "events.pfw", "--json")
    yield Case(f"{name}/export", export)
    if session.name not in _TIMELINES:
        return
    replay = ("run", "--no-telemetry", "--io", "/nowhere", "-o", "session", "--", "sh", "-c", _REPLAY, source)
    yield Case(f"{name}/timeline", replay, ("session/out/*", "session/files.json"), printed=False)


def _of_sweeps(recorded: Recorded) -> Iterator[Case]:
    for path in recorded.of("sweep_states"):
        state = json.loads(path.read_text())
        given, command = ((path, "sweep/sweep.json"),), ["--", *state["plan"]["command"]]
        line = [*resume_arguments(state), "-o", "sweep"]
        name = f"sweeps/{path.stem}"
        yield Case(f"{name}/json", (*line, "--json", *command), (), given)
        yield Case(f"{name}/table", (*line, "--csv", "table.csv", *command), ("table.csv",), given)
    for sweep in recorded.of("sweeps"):
        options = ("--workers", "1,2", "--steps", "20", "--io", "/nowhere", "-o", "sweep", "--json")
        replay = ("sweep", *options, "--", "sh", "-c", _REPLAY_OF_SWEEP, str(sweep / "runs"))
        yield Case(f"sweeps/{sweep.name}/measured", replay, ("sweep/sweep.json",), printed=False)
