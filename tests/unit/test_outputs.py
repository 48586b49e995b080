"""Files that a command writes: what was there stays until the new one is whole."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from iotrace.errors import IotraceError, replacing

_FULL = "No space left on device"


def _write_half(path: Path) -> None:
    path.write_text("ha")
    raise OSError(28, _FULL)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("good")
    with pytest.raises(IotraceError) as refused, replacing(kept, "choose another") as file:
        _write_half(file)
    assert (str(refused.value), refused.value.remedy) == (f"cannot write {kept}: {_FULL}", "choose another")
    assert kept.read_text() == "good"
    with pytest.raises(IotraceError), replacing(tmp_path / "new.json", "choose another") as file:
        _write_half(file)
    assert os.listdir(tmp_path) == ["kept.json"]


def test_a_link_and_the_mode_stay(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept.json", tmp_path / "link.json"
    kept.write_text("good")
    kept.chmod(0o640)
    link.symlink_to(kept.name)
    with replacing(link, "choose another") as file:
        file.write_text("better")
    assert (link.is_symlink(), kept.read_text()) == (True, "better")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == ["kept.json", "link.json"]


def test_what_is_no_file_is_written_as_it_is(tmp_path: Path) -> None:
    with replacing(Path("/dev/null"), "choose another") as file:
        file.write_text("away")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    with (
        pytest.raises(IotraceError, match="Is a directory"),
        replacing(tmp_path, "choose another") as file,
    ):
        file.write_text("away")
    with (
        pytest.raises(IotraceError, match="No such file"),
        replacing(tmp_path / "none" / "kept.json", "choose another") as file,
    ):
        file.write_text("away")
