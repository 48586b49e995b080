"""``iotrace doctor --storage``: what is read, how much, from where, and what is kept of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from iotrace.cli import app
from iotrace.doctor import plain_reader
from iotrace.session import plain_reads


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for bound in (
        "MOST_SECONDS",
        "_WALK_SECONDS",
        "_PATIENCE_SECONDS",
    ):  # a busy machine must not cut it short
        monkeypatch.setattr(plain_reader, bound, 300.0)


def _data(path: Path) -> Path:
    path.mkdir()
    (path / "large").write_bytes(bytes(3 << 20))
    (path / "small").write_bytes(b"x")
    (path / "empty").write_bytes(b"")
    return path


def test_what_is_read_is_counted_and_kept(tmp_path: Path) -> None:
    data = _data(tmp_path / "data")
    result = CliRunner().invoke(app, ["doctor", "--storage", str(data), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    # Where one of both can be dropped from the page cache, that one alone is read.
    assert (found["files"], found["bytes"]) in ((2, (3 << 20) + 1), (1, 3 << 20), (1, 1))
    assert found["seconds"] > 0
    assert found["cold"] or found["why"]
    kept = plain_reads.load(os.uname().nodename, found["point"])
    assert kept is not None
    assert (kept.bytes_per_s, kept.cold) == (found["bytes_per_s"], found["cold"])
    assert plain_reads.load("another", found["point"]) is None


def test_it_ends_with_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_reader, "MOST_BYTES", (1 << 20) + 5)
    data = _data(tmp_path / "data")
    (data / "small").unlink()
    assert plain_reader.read_plainly(str(data)).bytes == (1 << 20) + 5


def test_a_home_that_cannot_be_written_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = plain_reader.read_plainly(str(_data(tmp_path / "data")))
    assert found.saved is None
    assert plain_reads.load(found.node, found.point) is None


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--storage", "absent"], 1), (["--storage", "empty"], 1), (["--storage", "empty", "--data", "x"], 2)],
)
def test_what_cannot_be_read_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    from iotrace.errors import IotraceError

    result = CliRunner().invoke(app, ["doctor", *arguments])
    if code == 1:
        assert isinstance(result.exception, IotraceError)
        assert result.exception.remedy
    else:
        assert result.exit_code == code
