"""The log that the agent takes for dftracer's: the one that is mapped."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from iotrace.agent.dftracer_compat import flush


@pytest.fixture(autouse=True)
def _nothing_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "_found", (0, ""))


def test_a_log_that_is_mapped_is_the_programs(tmp_path: Path) -> None:
    for name in ("a log.pfw", "another.pfw", "data.bin"):
        (tmp_path / name).write_bytes(b"x" * 10)
    with (
        (tmp_path / "data.bin").open("r+b") as data,
        (tmp_path / "a log.pfw").open("r+b") as log,
        mmap.mmap(data.fileno(), 0),
        mmap.mmap(log.fileno(), 0),
    ):
        assert flush.find_log(str(tmp_path)) == f"/{tmp_path}/a log.pfw"


def test_a_link_to_the_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real" / "1.pfw").write_bytes(b"x")
    with (tmp_path / "real" / "1.pfw").open("r+b") as log, mmap.mmap(log.fileno(), 0):
        assert flush.find_log(str(tmp_path / "link")) == f"/{tmp_path}/real/1.pfw"


def test_no_log_is_none(tmp_path: Path) -> None:
    (tmp_path / "1.pfw").write_bytes(b"x")
    assert flush.find_log(str(tmp_path)) == ""
    assert flush.flush(str(tmp_path)) is False
