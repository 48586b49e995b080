"""Write docs/commands: a page for each command, made of what its ``--help`` prints.

tools/docs commands
"""

from __future__ import annotations

from pathlib import Path

import click

from iotrace.cli import app

PAGES = Path(__file__).parents[1] / "docs" / "commands"
_COLUMNS = 78  # what click uses of 80
_GUIDES = {  # what says more than the help
    "run": "[the tutorial](../tutorial.md), [recipes](../recipes.md)",
    "top": "[while a run goes on](../top.md)",
    "ui": "[all runs in the browser](../ui.md)",
    "report": "[how to read a report](../report.md), [the page](../page.md), [figures](../definitions.md)",
    "open": "[the timeline](../timeline.md)",
    "compare": "[the tutorial](../tutorial.md)",
    "check": "[iotrace in CI](../ci.md)",
    "sweep": "[how many workers](../sweep.md)",
    "doctor": "[the checks](../doctor.md)",
    "merge": "[many files, one timeline](../merge.md)",
    "export": "[the files of a session](../session-format.md)",
    "schema": "[what every figure means](../definitions.md)",
    "rules": "[all rules](../rules.md)",
    "explain": "[all rules](../rules.md)",
}
_MADE = "<!-- Made by: tools/docs commands. Change the command's help instead. -->\n"


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    top = click.Context(app, info_name="iotrace", terminal_width=_COLUMNS, **app.context_settings)
    found = {}
    rows = []
    for name in app.list_commands(top):
        command = app.get_command(top, name)
        assert command is not None
        printed = click.Context(command, parent=top, info_name=name, terminal_width=_COLUMNS).get_help()
        more = f"More: {_GUIDES[name]}.\n\n" if name in _GUIDES else ""
        block = _block(f"iotrace {name} --help", printed)
        found[f"{name}.md"] = f"# iotrace {name}\n\n{_MADE}\n{more}{block}"
        rows.append(f"| [`iotrace {name}`]({name}.md) | {command.get_short_help_str(limit=200)} |\n")
    table = "| command | what it does |\n|---|---|\n" + "".join(rows)
    found["index.md"] = f"# Commands\n\n{_MADE}\n{table}\n{_block('iotrace --help', top.get_help())}"
    return found


def _block(asked: str, printed: str) -> str:
    return f"```console\n$ {asked}\n{printed}\n```\n"


def main() -> None:
    """Write the pages, and remove those of commands that are gone."""
    PAGES.mkdir(exist_ok=True)
    made = pages()
    for path in PAGES.glob("*.md"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (PAGES / name).write_text(text)


if __name__ == "__main__":
    main()
