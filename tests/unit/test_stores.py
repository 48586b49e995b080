"""Inputs and outputs in stores, on fsspec's memory; a real S3 server: tests/external/test_s3.py."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tools.benchmarks.big import write_session

from iotrace import stores
from tests.support.runs import in_process, report_of


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where copies lie; the store is empty before and after."""
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "copies"))
    monkeypatch.setattr(stores, "_PAUSE_SECONDS", 0)
    MemoryFileSystem.store.clear()
    yield tmp_path / "copies"
    MemoryFileSystem.store.clear()


def put(session: Path) -> None:
    MemoryFileSystem().put(str(session), "/bucket/session", recursive=True)


def test_a_session_is_read_from_a_store_and_what_is_made_of_it_goes_there(
    tmp_path: Path, temporary: Path
) -> None:
    write_session(tmp_path / "s", 40, loaders=1, workers=1, ranks=2, calls=1)
    put(tmp_path / "s")
    read = report_of(tmp_path / "s")["ranks"]
    done = in_process("report", "memory://bucket/session", "--json", "--html", "memory://bucket/page.html")
    assert done.returncode == 0, done.stderr
    assert str([rank["data_wait"]["raw_ms"] for rank in read])[1:-1].split(", ")[0] in done.stdout
    words = ["memory://bucket/session", "-o", "memory://bucket/all.pftrace", "--per-rank"]
    merged = in_process("merge", *words)
    assert merged.returncode == 0, merged.stderr
    assert "iotrace: wrote memory://bucket/all-rank1.pftrace" in merged.stderr
    assert {"/bucket/page.html", "/bucket/all-rank0.pftrace"} <= set(MemoryFileSystem.store)
    assert list(temporary.iterdir()) == []


def test_a_range_that_fails_is_asked_for_again_from_where_the_copy_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytes(range(256)) * 40
    MemoryFileSystem().pipe_file("/bucket/a.bin", content)
    monkeypatch.setattr(stores, "_RANGE_BYTES", 4000)
    asked: list[int] = []
    real = MemoryFileSystem.cat_file

    def unsteady(self: Any, path: str, start: int, end: int) -> bytes:
        asked.append(start)
        if asked.count(start) == 1 and start:
            raise ConnectionError("reset by peer")
        found: bytes = real(self, path, start=start, end=end)
        return found

    monkeypatch.setattr(MemoryFileSystem, "cat_file", unsteady)
    assert stores.fetch("memory://bucket/a.bin", tmp_path).read_bytes() == content
    assert asked == [0, 4000, 4000, 8000, 8000]


def test_an_upload_that_breaks_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"result")
    tries: list[str] = []
    real = MemoryFileSystem.put_file

    def unsteady(self: Any, source: str, target: str) -> None:
        tries.append(target)
        if len(tries) < 3:
            raise ConnectionError("reset by peer")
        real(self, source, target)

    monkeypatch.setattr(MemoryFileSystem, "put_file", unsteady)
    stores.upload(tmp_path / "a", "memory://bucket/a")
    assert len(tries) == 3
    assert MemoryFileSystem().cat_file("/bucket/a") == b"result"


def test_a_result_that_cannot_be_uploaded_stays(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any, source: str, target: str) -> None:
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(MemoryFileSystem, "put_file", refuse)
    write_session(tmp_path / "s", 40, loaders=1, workers=1, calls=1)
    done = in_process("merge", str(tmp_path / "s"), "-o", "memory://bucket/all.json")
    (kept,) = temporary.rglob("all.json")
    assert done.returncode == 1
    assert "memory://bucket/all.json cannot be written: reset by peer" in done.stderr
    assert f"the result is in {kept}" in done.stderr


def test_what_matches_a_pattern_is_merged(tmp_path: Path) -> None:
    data = Path(__file__).parent.parent / "data"
    for rank in range(2):
        path = data / f"gloo_rank{rank}.json.gz"
        MemoryFileSystem().put_file(str(path), f"/bucket/traces/{path.name}")
    done = in_process("merge", "memory://bucket/traces/*.json.gz", "-o", str(tmp_path / "all.json"))
    assert (done.returncode, (tmp_path / "all.json").is_file()) == (0, True), done.stderr


def test_bad_inputs_have_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*words: str) -> tuple[int, str]:
        done = in_process(*words)
        return done.returncode, done.stderr

    assert said("report", "memory://bucket/none")[0] == 1
    assert "there is nothing at memory://bucket/none" in said("report", "memory://bucket/none")[1]
    code, text = said("report", "nosuch://bucket/none")
    assert (code, "cannot be understood" in text) == (2, True)
    code, text = said("run", "-o", "memory://bucket/s", "--", "true")
    assert (code, "this has to be a directory of this machine" in text) == (2, True)
    MemoryFileSystem.store["/bucket/s/../../evil"] = MemoryFileSystem.store["/bucket/s/good"] = None  # names
    monkeypatch.setattr(MemoryFileSystem, "find", lambda self, path: ["/bucket/s/../../evil"])
    monkeypatch.setattr(
        MemoryFileSystem, "info", lambda self, path: {"name": path, "type": "file", "size": 1}
    )
    code, text = said("report", "memory://bucket/s")
    assert (code, "leads out of it" in text) == (1, True)
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    code, text = said("report", "memory://bucket/s")
    assert (code, "set TMPDIR to a directory with room" in text) == (1, True)
