"""What to look up: ``iotrace schema``, ``iotrace rules``, ``iotrace explain``."""

from __future__ import annotations

from importlib import import_module

import click

from iotrace.cli.parameters import json_option, print_json
from iotrace.errors import UsageError

# By command, the module and the name of what it prints; imported when it is asked for.
_PRINTED = {
    "report": ("analysis.results", "Report"),
    "top": ("analysis.results.top", "Top"),
    "compare": ("analysis.compare.results", "Comparison"),
    "compare-traces": ("analysis.compare.traces", "TraceComparison"),
    "check": ("analysis.compare.results", "Check"),
    "sweep": ("sweeps.results", "SweepResult"),
    "tune": ("sweeps.tune.results", "TuneResult"),
    "try": ("trying.results", "Trial"),
    "merge": ("merge.summary", "Summary"),
    "ls": ("session.listing", "Listing"),
    "doctor": ("doctor.results", "Diagnosis"),
    "doctor-storage": ("session.plain_reads", "PlainReads"),
    "rules": ("analysis.rules.catalogue", "RuleList"),
}


@click.command()
@click.argument("subject", type=click.Choice(list(_PRINTED)))
def schema(subject: str) -> int:
    """Print the JSON Schema of what a command prints with --json.

    Exit codes: 0 printed, 2 wrong usage.
    """
    import msgspec

    module, name = _PRINTED[subject]
    document = msgspec.json.schema(getattr(import_module(f"iotrace.{module}"), name))
    for struct in document["$defs"].values():  # whatever its default, --json prints every field
        struct["required"] = list(struct["properties"])
        for field in struct["properties"].values():
            field.pop("default", None)
    print_json(document)
    return 0


@click.command()
@click.argument("words", metavar="[WORD]...", nargs=-1)
@json_option("the list")
def rules(words: tuple[str, ...], as_json: bool) -> int:
    """List the rules by which iotrace concludes what to change.

    Each rule has a code, a name, what it is about, and its meaning in a sentence. With WORDs, iotrace lists
    only rules that hold all of them in code, name, meaning or remedy. A site's own rules (entry points of the
    group iotrace.rules) are listed, too.

    Exit codes: 0 listed, 2 no rule has these words, or wrong usage.
    """
    from iotrace.analysis.rules.catalogue import listed

    listing = listed(words)
    if words and not listing.rules:
        raise UsageError(f"no rule has the words {' '.join(words)}", "all rules: iotrace rules")
    if as_json:
        print_json(listing)
    else:
        from iotrace.report.listing import print_rules

        print_rules(listing)
    return 0


def _codes(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """Complete a code or a name."""
    from iotrace.analysis.rules.catalogue import listed

    known = [spelled for each in listed().rules for spelled in (each.code, each.name)]
    return [each for each in known if each.lower().startswith(typed.lower())]


@click.command()
@click.argument("rule", metavar="CODE|NAME", shell_complete=_codes)
def explain(rule: str) -> int:
    """Explain a rule: what it means, how sure it is, what to do.

    CODE stands behind the advice of iotrace report -v, as [IO204]. The example is what the rule says of
    made-up figures.

    Exit codes: 0 explained; 2 there is no such rule, or wrong usage.
    """
    from iotrace.analysis.rules.catalogue import explained, named, near

    known_rule = named(rule)
    if known_rule is None:
        from iotrace.cli.usage import either

        meant = [f"{code} {each.name}" for code in near(rule) if (each := named(code)) is not None]
        asked = f": did you mean {either(meant)}?" if meant else ""
        raise UsageError(f"there is no rule {rule}{asked}", "all rules: iotrace rules")
    from iotrace.report.listing import print_rule

    print_rule(explained(known_rule))
    return 0
