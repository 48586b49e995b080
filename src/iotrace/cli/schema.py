"""``iotrace schema``: what ``--json`` prints, as JSON Schema."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer


class Subject(str, Enum):
    """A command whose ``--json`` has a schema."""

    report = "report"
    sweep = "sweep"
    merge = "merge"
    doctor = "doctor"


def schema(
    subject: Annotated[Subject, typer.Argument(help="The command whose --json is meant.")],
) -> int:
    """Print the JSON Schema of what a command's --json prints.

    Exit codes: 0 printed, 2 wrong usage.
    """
    import msgspec

    from iotrace.cli.output import print_json

    print_json(msgspec.json.schema(_type(subject)))
    return 0


def _type(subject: Subject) -> Any:
    if subject is Subject.report:
        from iotrace.analysis.results import Report

        return Report
    if subject is Subject.sweep:
        from iotrace.sweeps.results import SweepResult

        return SweepResult
    if subject is Subject.doctor:
        from iotrace.doctor.results import Diagnosis

        return Diagnosis
    from iotrace.merge.summary import Summary

    return Summary
