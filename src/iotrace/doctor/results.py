"""What the doctor says, as plain data: its JSON is documented in docs/doctor.md."""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA_VERSION = 1

Status = Literal["ok", "warning", "missing", "unknown"]


class Check(msgspec.Struct, frozen=True):
    """One thing looked at. `what` is the finding; `why` it matters; `remedy` what would help.

    ``missing``: a part of the recording will not be there. ``warning``: it will, but something makes the
    run slow or a figure hard to read. ``unknown``: it could not be looked at, for the reason in `why`.
    """

    id: str
    status: Status
    what: str
    why: str = ""
    remedy: str = ""


class Unknown(msgspec.Struct, frozen=True):
    """A part of the recording of which it is not known whether it will be there; `why` names the check."""

    part: str
    why: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Every check, and what follows for a run. `interpreter` is null where CMD starts none that was found."""

    schema_version: int
    iotrace_version: str
    argv: list[str]
    interpreter: str | None
    captured: list[str]
    not_captured: list[str]
    unknown: list[Unknown]
    checks: list[Check]
    seconds: float


class CheckError(Exception):
    """Why a check could not be made, and what would help."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


def ok(identity: str, what: str, why: str = "") -> Check:
    """All is well; `why` may say what it means."""
    return Check(identity, "ok", what, why)


def warning(identity: str, what: str, why: str, remedy: str = "") -> Check:
    """Recorded all the same, but worth knowing."""
    return Check(identity, "warning", what, why, remedy)


def missing(identity: str, what: str, why: str, remedy: str = "") -> Check:
    """A part of the recording will not be there."""
    return Check(identity, "missing", what, why, remedy)


def unknown(identity: str, what: str, why: str, remedy: str = "") -> Check:
    """It could not be looked at."""
    return Check(identity, "unknown", what, why, remedy)
