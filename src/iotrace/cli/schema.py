"""``iotrace schema``: what ``--json`` prints, as JSON Schema."""

from __future__ import annotations

from importlib import import_module

import click

from iotrace.cli.parameters import print_json

# By command, the module and the name of what it prints; imported when it is asked for.
_PRINTED = {
    "report": ("analysis.results", "Report"),
    "top": ("analysis.results.top", "Top"),
    "compare": ("analysis.compare.results", "Comparison"),
    "compare-traces": ("analysis.compare.traces", "TraceComparison"),
    "check": ("analysis.compare.results", "Check"),
    "sweep": ("sweeps.results", "SweepResult"),
    "tune": ("sweeps.tune.results", "TuneResult"),
    "merge": ("merge.summary", "Summary"),
    "ls": ("session.listing", "Listing"),
    "doctor": ("doctor.results", "Diagnosis"),
    "doctor-storage": ("session.plain_reads", "PlainReads"),
}


@click.command()
@click.argument("subject", type=click.Choice(list(_PRINTED)))
def schema(subject: str) -> int:
    """Print the JSON Schema of what a command prints with --json.

    Exit codes: 0 printed, 2 wrong usage.
    """
    import msgspec

    module, name = _PRINTED[subject]
    found = msgspec.json.schema(getattr(import_module(f"iotrace.{module}"), name))
    for struct in found["$defs"].values():  # whatever its default, --json prints every field
        struct["required"] = list(struct["properties"])
        for field in struct["properties"].values():
            field.pop("default", None)
    print_json(found)
    return 0
