"""``iotrace schema``: what ``--json`` prints, as JSON Schema."""

from __future__ import annotations

from typing import Any

import click


@click.command()
@click.argument("subject", type=click.Choice(["report", "sweep", "merge", "doctor"]))
def schema(subject: str) -> int:
    """Print the JSON Schema of what a command prints with --json.

    Exit codes: 0 printed, 2 wrong usage.
    """
    import msgspec

    from iotrace.cli.output import print_json

    print_json(msgspec.json.schema(_type(subject)))
    return 0


def _type(subject: str) -> Any:
    if subject == "report":
        from iotrace.analysis.results import Report

        return Report
    if subject == "sweep":
        from iotrace.sweeps.results import SweepResult

        return SweepResult
    if subject == "doctor":
        from iotrace.doctor.results import Diagnosis

        return Diagnosis
    from iotrace.merge.summary import Summary

    return Summary
