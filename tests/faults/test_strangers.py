"""Files of strangers."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import iotrace_command
from iotrace.session import names
from tests.faults.rows import row
from tests.support.fuzz import make_session
from tests.support.mutate import DFTRACER

MAIN = "processes/1000-0-n1"
MOST_BYTES = 2 << 30  # of address space: numpy's and Python's libraries take a third of it
LIMIT_S = 120
ESCAPES = "\x1b]0;title\x07\x1b[31m\x9b2J\u202e\r\x08"


def told(session: Path) -> str:
    """What the commands that read a session print; each ends in order, within its memory and time."""
    shown = []
    for words in (
        ["report", "-v"],
        ["report", "--json"],
        ["ls"],
        ["top", "--count=1"],
        ["merge", "-o", f"{session}.json"],
    ):
        done = subprocess.run(
            [sys.executable, iotrace_command.__file__, words[0], str(session), *words[1:]],
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=LIMIT_S,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES)),
        )
        assert done.returncode in (0, 1, 3), done.stderr  # 3: merged what could be read
        assert "Traceback" not in done.stderr
        shown.append(done.stdout + done.stderr)
    return "".join(shown)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return make_session(tmp_path / "session")


@row(
    "names of files, datasets, hosts and processes hold escape sequences",
    kept="the terminal: no command writes a control character; the report",
    lost="nothing; such characters are shown as signs",
)
def test_escape_sequences(session: Path) -> None:
    hostile = json.dumps(ESCAPES)[1:-1].encode()
    changed = 0
    for path in [path for path in session.rglob("*") if path.suffix in (".json", ".jsonl", ".pfw")]:
        before = path.read_bytes()
        after = (
            before.replace(b"n1", b"n1" + hostile)
            .replace(b"data", b"data" + hostile)
            .replace(b"python", b"python" + hostile)
        )
        path.write_bytes(after)
        changed += after != before
    assert changed > 2
    shown = told(session)
    assert not [
        letter for letter in shown if (ord(letter) < 32 or 127 <= ord(letter) < 160) and letter != "\n"
    ]
    assert "\u202e" not in shown


@row(
    "a pipe, a link to /dev/zero or to a file elsewhere is in a session",
    kept="the commands end; what is sound is reported; nothing outside the session is read",
    lost="those files, reported",
)
@pytest.mark.parametrize("kind", ["pipe", "zeros", "link"])
def test_what_is_no_file(session: Path, kind: str) -> None:
    for name in (
        f"{MAIN}/{names.RECORDS}",
        f"{names.POSIX}/io-1000.pfw",
        f"{MAIN}/torch-1.json",
        names.OUTCOME,
    ):
        path = session / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero" if kind == "zeros" else "/etc/passwd")
    shown = told(session)
    assert "it was not read" in shown
    assert "root:" not in shown


@row(
    "10^6 brackets in records, logs, traces and documents of a session",
    kept="the commands end; what is sound is reported",
    lost="those lines, reported",
)
def test_a_million_brackets(session: Path) -> None:
    deep = b"[" * 10**6
    for name in (f"{MAIN}/{names.RECORDS}", f"{names.POSIX}/io-1000.pfw", f"{MAIN}/torch-1.json"):
        with (session / name).open("ab") as file:
            file.write(b'{"traceEvents":[' + deep if "torch" in name else deep + b"\n")
    shown = told(session)
    assert "could not be read" in shown or "unreadable" in shown
    shutil.copy(session / names.MANIFEST, session.parent / "manifest")
    (session / names.MANIFEST).write_bytes(deep)
    assert "Traceback" not in told(session)


@row(
    "a gzip file of 1.6 MB that holds 1.5 GiB of blanks",
    kept="the commands end within 2 GiB of address space; the calls before the blanks",
    lost="the data after the blanks, reported",
)
def test_a_gzip_bomb(session: Path) -> None:
    (session / names.POSIX).mkdir(exist_ok=True)
    blanks = gzip.compress(b" " * (1 << 20), 9)
    with (session / names.POSIX / "io-1000-bomb.pfw.gz").open("wb") as file:
        file.write(gzip.compress(DFTRACER))
        for _ in range(1536):
            file.write(blanks)
    assert "nothing but blanks" in told(session)
