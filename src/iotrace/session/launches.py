"""The launches of a session: how each began, and whether it ended, goes on, or was killed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from iotrace.session.liveness import ENDED, KILLED, RUNNING, UNKNOWN, last_heard_seconds, state_of
from iotrace.session.manifest import Manifest, Outcome, launches, read_manifest, read_outcome


class Launch(msgspec.Struct, frozen=True):
    """One ``iotrace run`` of the session's job: how it began and, if known, ended.

    `state` when it was read: ``ended``, ``running``, ``killed``, or ``unknown``; then something of it was
    written `heard_seconds` before, None where nothing was.
    """

    path: Path
    manifest: Manifest
    outcome: Outcome | None
    state: str = ENDED
    heard_seconds: float | None = None


def read_launches(session: Path) -> list[Launch]:
    """Read the launches of the session at `session`, the first launcher's first.

    Raises:
        SessionError: there is none that this version reads.
    """
    found = []
    for path in (session, *launches(session)):
        manifest, outcome = read_manifest(path), read_outcome(path)
        state = state_of(path, manifest, outcome)
        heard_seconds = last_heard_seconds(path) if state == UNKNOWN else None
        found.append(Launch(path, manifest, outcome, state, heard_seconds))
    return found


def joint_state(found: list[Launch]) -> str:
    """Return the state of a whole session: ``running`` as long as one of its launches is."""
    states = {launch.state for launch in found}
    return next((state for state in (RUNNING, KILLED, UNKNOWN) if state in states), ENDED)


def joint_exit_code(found: list[Launch]) -> int | None:
    """Return the first exit code that is not 0; None where an end was not seen, or has no code."""
    codes = [launch.outcome.exit_code if launch.outcome else None for launch in found]
    return None if None in codes else next((code for code in codes if code), 0)
