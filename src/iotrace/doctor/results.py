"""The doctor's findings as plain data. docs/doctor.md documents their JSON."""

from __future__ import annotations

from typing import Literal, cast

import msgspec

from iotrace.analysis.rules.advice import unsilenced
from iotrace.analysis.rules.facts.host import HostFacts
from iotrace.analysis.rules.model import find_all
from iotrace.errors import IotraceError

SCHEMA_VERSION = 1

Status = Literal["ok", "warning", "missing", "unknown"]


class CachedFile(msgspec.Struct, frozen=True):
    """How much of a file was in the page cache, by `sampled_pages` of its pages, chosen by chance.

    `resident_fraction` is 0 to 1; None for the reason in `why`.
    """

    path: str
    bytes: int
    sampled_pages: int
    resident_fraction: float | None
    why: str = ""


class Check(msgspec.Struct, frozen=True):
    """The result of one check. `what` is the finding, `why` it matters, `remedy` what would help.

    ``missing``: a part of the recording will not be there. ``warning``: it will, but something makes the
    run slow or a figure hard to read. ``unknown``: the check could not be made, for the reason in `why`.
    `code` is that of the rule that found what is not ``ok``: `iotrace explain CODE`.
    """

    id: str
    status: Status
    what: str
    why: str = ""
    remedy: str = ""
    files: list[CachedFile] = []  # of `page-cache`, the largest ones
    code: str | None = None


class Unknown(msgspec.Struct, frozen=True):
    """A part of the recording that may or may not be there; `why` names the check that could not be made."""

    part: str
    why: str


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Every check, and what follows for a run. `interpreter` is null where none was found in CMD."""

    schema_version: int
    iotrace_version: str
    argv: list[str]
    interpreter: str | None
    captured: list[str]
    not_captured: list[str]
    unknown: list[Unknown]
    checks: list[Check]
    seconds: float


class CheckError(IotraceError):
    """A check could not be made."""


def ok(identity: str, what: str, why: str = "") -> Check:
    """Make a finding that all is well; `why` may say what it means."""
    return Check(identity, "ok", what, why)


def unknown(identity: str, what: str, why: str, remedy: str = "") -> Check:
    """Make a finding of a check that could not be made."""
    return judged(identity, HostFacts(unknown=what, why=why, remedy=remedy))


def judged(identity: str, facts: HostFacts, why: str = "") -> Check:
    """Make the finding of a check: what a rule finds in its facts, else that all is well, and `why`."""
    for finding in unsilenced(find_all("host", facts)):
        status = cast(Status, finding.level)
        return Check(identity, status, finding.text, finding.why, finding.remedy, code=finding.rule)
    return ok(identity, facts.what, why)
