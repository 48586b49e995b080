"""``iotrace patch``: the diff of the user's own source that carries out a fix."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from iotrace.cli.parameters import PATH, import_numpy, json_option, output_option, print_json
from iotrace.errors import IotraceError, replacing
from iotrace.report.printing import echo, visible
from iotrace.session.listing import newest_session


@click.command()
@click.argument("session", metavar="[SESSION]", required=False, type=PATH)
@click.option(
    "--fix",
    "wanted",
    metavar="N|CODE",
    default="",
    help="Write the patch of this fix: its number in the report (1 is the first one), or its rule's code."
    " Default: the first that has a patch.",
)
@output_option("FILE", "Write the patch there; default: print it.")
@click.option("--apply", "applies", is_flag=True, help="Apply it, to a clean git tree only.")
@json_option("the patch")
def patch(session: Path | None, wanted: str, output: Path | None, applies: bool, as_json: bool) -> int:
    """Write a fix of SESSION's report as a diff of your own source.

    iotrace changes the call that makes the training loader, or the place that its setting comes from. This
    may be a variable, the default of an option, a field of a dataclass, or a key of a dict, a YAML file or
    Hydra's configuration. Where it does not know that place for certain, it writes no patch and says why. The
    default SESSION is the newest one here.

    iotrace try measures what a fix gains; a patch alone proves nothing.

    Exit codes: 0 written, 1 there is no patch, or git refuses it, 2 wrong usage.
    """
    import_numpy()
    from iotrace.patching.git import apply
    from iotrace.patching.suggest import suggestions
    from iotrace.trying.fixes import find_fix, numbered

    if session is None:
        session = newest_session(Path())
        echo(f"iotrace: the newest session here is {session}", err=True)
    known = suggestions(session)
    fixes = known.report.verdict.fixes
    chosen = known.first if not wanted else known.found[fixes.index(find_fix(fixes, wanted))]
    if chosen is None:
        text = known.report.verdict.text
        raise IotraceError(f"the report names no fix: {text}", f"iotrace report {session}")
    fix, made = chosen.fix, chosen.patch
    if as_json:
        print_json(made)
    if made.diff is None:
        if as_json:
            return 1
        none = "needs no patch" if made.command is not None else "has no patch"
        if not wanted and len(fixes) > 1 and made.command is None:
            lines = zip(numbered(fixes).splitlines(), known.found, strict=True)
            why = "\n".join(f"{line}: {each.patch.why_not}" for line, each in lines)
            raise IotraceError("no fix of the report has a patch", why)
        raise IotraceError(f"this fix {none}: {fix.text}", made.why_not or "")
    if applies:
        apply(made)
        echo(f"iotrace: changed {', '.join(dict.fromkeys(file for file, _ in made.lines))}", err=True)
    if output is not None:
        with replacing(output, "choose another -o FILE") as file:
            file.write_bytes(made.diff.encode())
        echo(f"iotrace: wrote {output}; in {made.root}: git apply {output}", err=True)
    elif not applies and not as_json:
        _print(made.diff)
    if made.command is not None:
        echo(f"iotrace: the rest is in the command: {made.command}", err=True)
    echo(f"iotrace: its gain is not measured: iotrace try {session} --fix {chosen.number}", err=True)
    return 0


def _print(diff: str) -> None:
    """Print a diff as it is; on a terminal without what would steer that."""
    if sys.stdout.isatty():
        echo(*("\t".join(map(visible, line.split("\t"))) for line in diff.split("\n")[:-1]))
    else:
        click.echo(diff.encode(), nl=False)
