"""Names that would steer a terminal are written out by all that prints; JSON holds them as they are."""

from __future__ import annotations

import ast
import contextlib
import gzip
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iotrace.cli import _main
from iotrace.report.printing import visible, visible_json
from iotrace.session import names
from tests.support.fuzz import make_session
from tests.support.mutate import KINETO
from tests.support.runs import PROJECT

# A title of the window, CSI of Latin-1, a mark that reverses what follows, a false line, markup of rich.
HOSTILE = "\x1b]0;evil\x07\x9b5m\u202egnp\u2066\r\nTrust  ok\x85[/bold][red]</script><img src=x>"
SHOWN = "\\x1b]0;evil\\x07\\x9b5m\\u202egnp"
# What rich itself sends: colours, and movements of the cursor.
_BY_RICH = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
# Words that readers compare: with another one there, nothing would be shown of what they name.
_KEYWORDS = frozenset(
    ("type", "role", "outcome", "event", "ph", "cat", "what", "start_method", "library", "value", "fhash")
)


class _Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def _planted(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _planted(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_planted(item, key) for item in value]
    keep = not isinstance(value, str) or key in _KEYWORDS or value in ("FH", "pread64", "ac2g")
    return value if keep else value + HOSTILE


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session by hand in which every name is hostile, and a failure's text."""
    path = make_session(tmp_path_factory.mktemp("hostile") / f"s{HOSTILE.replace('/', '')}", steps=40)
    failure = {
        "type": "failure",
        "mono_ns": 1_500_000_000,
        "error": "OSError",
        "text": "Traceback: no\nOSError: x",
    }
    region = {"type": "text", "id": 77, "text": "region"}
    for records in path.glob(f"{names.PROCESSES}/*/{names.RECORDS}"):
        lines = [json.loads(line) for line in records.read_text().splitlines()] + [failure, region]
        records.write_text("".join(json.dumps(_planted(line)) + "\n" for line in lines))
    for document in (path / names.MANIFEST, *path.glob(f"{names.PROCESSES}/*/{names.PROCESS}")):
        found = json.loads(document.read_text())
        if document.name == names.MANIFEST:
            found["not_captured"] = [{"what": "x", "why": "y", "remedy": "z"}]
            found["accelerators"] = ["/dev/nvidia0"]
        document.write_text(json.dumps(_planted(found)))
    for log in path.glob(f"{names.POSIX}/*.pfw"):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        log.write_text("".join(json.dumps(_planted(line)) + "\n" for line in lines))
    for trace in path.glob(f"{names.PROCESSES}/*/torch-*"):
        trace.write_bytes(gzip.compress(_trace()))
    (path / names.OUTCOME).write_text(json.dumps({"exit_code": 1, "ended_ns": 1, "duration_ns": 1}))
    return path


def _trace() -> bytes:
    return json.dumps(_planted({**json.loads(KINETO), "host_name": "h"})).encode()


def _printed(*words: str, terminal: bool) -> tuple[int, str, str]:
    kind = _Terminal if terminal else io.TextIOWrapper
    stdout, stderr = (kind(io.BytesIO(), encoding="utf-8", errors="replace") for _ in range(2))
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = _main(list(words))
    texts = []
    for stream in (stdout, stderr):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return code, texts[0], texts[1]


def _commands(session: Path, directory: Path) -> Iterator[list[str]]:
    own, trace, out = (
        str(session),
        directory / f"t{HOSTILE.replace('/', '')}.json",
        str(directory / f"o{HOSTILE[:9]}"),
    )
    trace.write_bytes(_trace())
    yield from (["report", own], ["report", own, "-v"], ["ls", str(session.parent)], ["ls", own])
    yield ["report", str(session / names.OUT / "rank0.json.gz")]
    yield ["report", own, "--html", f"{out}.html"]
    yield from (["report", own, "--format", "md"], ["compare", own, own, "--html", f"{out}2.html"])
    yield from (["report", own, "--html", f"{out}.html"], ["report", own, "--format", "md"])
    yield from (["compare", own, own], ["compare", own, own, "--anyway", "--format", "md"])
    yield from (["check", own, "--baseline", own], ["check", own, "--baseline", own, "--format", "md"])
    yield from (["check", own, "--fail-if", HOSTILE], ["top", own, "--count=1"])
    yield from (
        ["export", own, "--format", "dftracer", "-o", f"{out}.pfw"],
        ["merge", own, "-o", f"{out}.pftrace"],
    )
    yield from (["merge", own, str(trace), "-o", f"{out}.json"], ["merge", f"{HOSTILE}*"])
    yield from (["report", str(trace)], ["report", "--compat", "tb", str(trace)])
    yield ["report", "--compat", "hta", str(trace)]
    for name in (
        "report",
        "ls",
        "compare",
        "check",
        "top",
        "export",
        "merge",
        "sweep",
        "doctor",
        "run",
        "schema",
    ):
        yield [name, f"/nowhere{HOSTILE}", *([HOSTILE] if name in ("compare", "check") else [])]
        yield [name, f"--{HOSTILE}"]
        yield [name, "--json", "--interval", HOSTILE, "--format", HOSTILE, own]
    yield from ([HOSTILE], ["run", "-o", own, "--", HOSTILE], ["sweep", "-o", own, "--", HOSTILE])


@pytest.mark.parametrize("terminal", [False, True])
def test_no_name_reaches_the_terminal_raw(session: Path, tmp_path: Path, terminal: bool) -> None:
    (session / names.OUT).mkdir(exist_ok=True)
    (session / names.OUT / "rank0.json.gz").touch()
    seen = 0
    for words in _commands(session, tmp_path):
        _, stdout, stderr = _printed(*words, terminal=terminal)
        text = _BY_RICH.sub("", stdout + stderr)
        assert text, words
        assert visible(text, lines=True) == text, words
        assert "\nTrust  ok\\x85" not in text, words
        seen += SHOWN[:12] in re.sub(r"\s", "", text)
    assert seen > 20
    pages = list(tmp_path.glob("*.html"))
    assert pages
    for page in pages:
        assert "<img src=x>" not in page.read_text()


@pytest.mark.parametrize("command", ["report", "ls", "top"])
def test_json_holds_the_true_names(session: Path, command: str) -> None:
    _, stdout, _ = _printed(
        command, str(session), "--json", *(["--count=1"] if command == "top" else []), terminal=False
    )
    assert visible(stdout, lines=True) == stdout
    assert HOSTILE in json.dumps(json.loads(stdout), ensure_ascii=False).encode().decode(
        "unicode_escape"
    ) or (HOSTILE in _strings(json.loads(stdout)))


def _strings(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(map(_strings, value.values()))
    return "".join(map(_strings, value)) if isinstance(value, list) else str(value)


def test_text_stays_as_it_is_where_nothing_steers() -> None:
    text = "naïve · 数据/µs “x” 👩‍🚀"
    assert visible(text) == text
    assert visible_json(json.dumps(text, ensure_ascii=False).encode()).decode() == f'"{text}"'
    assert json.loads(visible_json('"\x7f\x9b\u202e"'.encode())) == "\x7f\x9b\u202e"
    assert visible(os.fsdecode(b"\xff\n")) == "\\xff\\n"


# What may print by itself, and why: click's own help and scripts; text that a console has set already.
_PRINTERS = {
    "cli/__init__.py": {"click.echo"},  # scripts of shell completion, which hold no foreign name
    "cli/parameters.py": {"click.echo"},  # bytes of `visible_json`
    "cli/patch.py": {"click.echo"},  # a diff into a file or a pipe, as it is
    "cli/top.py": {"sys.stdout.write"},
    "report/printing.py": {"print"},
    "report/layout.py": {"Console"},
    "trying/rewrite.py": {"print"},  # to the process that started it
}
_PRINTING = (
    "print",
    "click.echo",
    "click.secho",
    "sys.stdout.write",
    "sys.stderr.write",
    "Console",
    "os.write",
)


def test_nothing_prints_past_the_one_place() -> None:
    """The agent and the launcher's helpers write files and to processes of their own."""
    source = PROJECT / "src" / "iotrace"
    found: dict[str, set[str]] = {}
    for path in source.rglob("*.py"):
        where = str(path.relative_to(source))
        if where.startswith(("agent/", "launch/", "session/append_file")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in _PRINTING:
                found.setdefault(where, set()).add(ast.unparse(node.func))
    assert found == _PRINTERS
