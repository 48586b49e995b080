"""The documents agree with the code, and become a site without a broken link."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from iotrace.cli import app
from tests.support.runs import PROJECT

_DOCS = PROJECT / "docs"
_SETTINGS = PROJECT / "mkdocs.yml"
_TEXTS = [PROJECT / "README.md", *sorted(_DOCS.glob("*.md"))]
_MADE_BY_HOOK = {"index.md", "changelog.md"}  # tools/site_pages.py

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_CALL = re.compile(r"(?<![\w/.-])iotrace +(?P<command>[a-z]+)(?P<rest>(?:(?! -- )[^`#|])*)")
_SHELLS = ("console", "bash", "yaml")
_OPTION = re.compile(r"(?<=[ \[])--?[a-z][\w-]*")


def _tool(name: str) -> ModuleType:
    found = spec_from_file_location(name, PROJECT / "tools" / f"{name}.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_page_stands_in_one_section() -> None:
    listed = re.findall(r"([\w/.-]+\.md)", _SETTINGS.read_text().split("\nnav:\n")[1])
    pages = {str(path.relative_to(_DOCS)) for path in _DOCS.rglob("*.md")} | _MADE_BY_HOOK
    assert len(listed) == len(set(listed)), "a page stands twice in nav of mkdocs.yml"
    omitted = sorted(pages - set(listed))
    assert not omitted, f"in no section: {omitted}; add each to nav in mkdocs.yml, where readers look for it"
    gone = sorted(set(listed) - pages)
    assert not gone, f"nav of mkdocs.yml names {gone}, which docs/ does not hold"


def test_the_page_of_each_command_is_what_its_help_prints() -> None:
    code = (
        "import json, sys; sys.path[:0] = ['tools']; import command_pages as t; print(json.dumps(t.pages()))"
    )
    # In a process of its own: help is what it is as a command starts, whatever other tests did to ours.
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    made: dict[str, str] = json.loads(done.stdout)
    stale = sorted(
        name
        for name in made.keys() | {path.name for path in (_DOCS / "commands").iterdir()}
        if name not in made
        or not (_DOCS / "commands" / name).exists()
        or (_DOCS / "commands" / name).read_text() != made[name]
    )
    assert not stale, f"docs/commands/: not what --help prints: {stale}; run: tools/docs commands"


@pytest.mark.parametrize(
    ("page", "held"),
    [("definitions.md", "<!-- figures: Gpu -->"), ("session-format.md", "<!-- recorded: SystemRecord -->")],
)
def test_the_tables_of_fields_are_what_they_declare(page: str, held: str) -> None:
    text = (_DOCS / page).read_text()
    assert held in text
    assert text == _tool("figure_tables").page(text), f"docs/{page}: tables differ; run: tools/docs figures"


def test_the_page_of_the_rules_is_what_the_catalogue_says() -> None:
    stale = (_DOCS / "rules.md").read_text() != _tool("rule_pages").page()
    assert not stale, "docs/rules.md: not what the catalogue says; run: tools/docs rules"


@pytest.mark.parametrize("path", _TEXTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_paths_that_a_document_names_exist(path: Path) -> None:
    named = set(re.findall(r"(?<![\w/.-])((?:tests|tools|docs|workloads|src)/[\w./-]*\w)", path.read_text()))
    assert sorted(name for name in named if not (PROJECT / name).exists()) == []


def test_every_figure_of_the_report_is_defined() -> None:
    schema = json.loads(CliRunner().invoke(app, ["schema", "report"]).stdout)
    fields = {name for part in schema["$defs"].values() for name in part.get("properties", {})}
    text = (_DOCS / "definitions.md").read_text()
    missing = sorted(name for name in fields if not re.search(rf"\b{re.escape(name)}\b", text))
    assert not missing, f"not in docs/definitions.md: {missing}; say unit, formula and when it is null"


def _calls(text: str) -> Iterator[tuple[str, str]]:
    """Each call of iotrace in a text, as its command and what follows the command."""
    known = app.list_commands(click.Context(app))
    blocks = [line for block in _FENCED.findall(text) for line in block.replace("\\\n", " ").split("\n")]
    for code in [*blocks, *_CODE.findall(_FENCED.sub("", text))]:
        for call in _CALL.finditer(code):
            if call["command"] in known or code.startswith(
                ("$ iotrace", "iotrace")
            ):  # not a sentence of output
                yield call["command"], call["rest"]


@pytest.mark.parametrize("path", _TEXTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_commands_and_options_that_a_document_names_exist(path: Path) -> None:
    top = click.Context(app)
    unknown = []
    for name, rest in _calls(path.read_text()):
        command = app.get_command(top, name)
        if command is None:
            unknown.append(f"iotrace {name}")
            continue
        known = {"-h", "--help"}
        for parameter in command.params:
            known |= {*parameter.opts, *parameter.secondary_opts}
        unknown += [f"iotrace {name} {option}" for option in _OPTION.findall(rest) if option not in known]
    assert not unknown


def _lines(text: str) -> Iterator[list[str]]:
    """Yield the words of each command line of a shell or of a Kubernetes job, from `iotrace` on."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines() if language in _SHELLS else ():
            if language == "console" and not line.startswith("$ "):
                continue  # output
            job = re.search(r"command: \[(.*)\]", line)
            words = job[1].split(", ") if job else shlex.split(line.removeprefix("$ "), comments=True)
            if "iotrace" in words:
                yield words[words.index("iotrace") + 1 :]


@pytest.mark.parametrize("path", _TEXTS, ids=lambda path: str(path.relative_to(PROJECT)))
def test_command_lines_that_a_document_shows_are_parsed(path: Path) -> None:
    top, refused = click.Context(app), []
    for name, *words in _lines(path.read_text()):
        command = app.get_command(top, name)
        if command is not None and not name.startswith("-"):
            ends = [words.index(sign) for sign in ("|", ";", "&&", ">") if sign in words]
            context = click.Context(command, top, name)
            try:
                command.make_parser(context).parse_args(words[: min(ends, default=len(words))])
            except click.UsageError as error:
                refused.append(f"iotrace {name} {' '.join(words)}: {error.format_message()}")
    assert refused == []


def test_the_lines_of_recipes_are_found() -> None:
    found = list(_lines((_DOCS / "recipes.md").read_text()))
    assert ["run", "-o", "/sessions/train-traced", "--", "python", "train.py"] in found
    assert len(found) >= 20


def test_calls_are_found() -> None:
    text = "See `iotrace report S --json`.\n```\n$ iotrace run -q \\\n    -o run -- python t.py --lr 3\n```\n"
    assert [(name, _OPTION.findall(rest)) for name, rest in _calls(text)] == [
        ("run", ["-q", "-o"]),
        ("report", ["--json"]),
    ]


@pytest.mark.skipif(
    find_spec("material") is None, reason="the extra [docs] is missing: tools/test installs it"
)
def test_the_site_has_no_broken_link(tmp_path: Path) -> None:
    site = tmp_path / "site"
    built = subprocess.run(  # without --quiet: that hides the warnings from --strict, too
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=PROJECT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert (site / "index.html").exists()
