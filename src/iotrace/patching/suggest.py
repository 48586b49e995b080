"""The fixes of a report with their patches, and which of them is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.results import Fix, Report
from iotrace.patching.loader import MadeLoader, made_loader
from iotrace.patching.patch import Patch, patch_of_fix
from iotrace.sources.session import open_session


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """A fix, its number in the report (from 1), and its patch; what it gains was not tried."""

    number: int
    fix: Fix
    patch: Patch

    @property
    def can_be_made(self) -> bool:
        """Whether a diff or words of the command carry it out."""
        return self.patch.diff is not None or self.patch.command is not None

    @property
    def can_be_tried(self) -> bool:
        """Whether `iotrace try` knows what to change: settings, variables or how data is stored."""
        return self.fix.change is not None


class Suggestions(NamedTuple):
    """All fixes of a session's report, in its order."""

    report: Report
    made: MadeLoader | None
    found: list[Suggestion]

    @property
    def first(self) -> Suggestion | None:
        """The first one that can be made, else the first; None where the report names no fix."""
        return next((each for each in self.found if each.can_be_made), next(iter(self.found), None))


def suggestions(session: Path) -> Suggestions:
    """Return the fixes of a session's report.

    Raises:
        IotraceError: it cannot be read.
    """
    analysis = SessionAnalysis(open_session(session))
    report, made = analyse(analysis), made_loader(analysis)
    suggested = [
        Suggestion(number=number, fix=fix, patch=patch_of_fix(session, fix, made))
        for number, fix in enumerate(report.verdict.fixes, 1)
    ]
    return Suggestions(report, made, suggested)
