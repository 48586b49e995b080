"""Where the recorder maps its files: beside the session where that lies on a network file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotrace.launch import capture_directory
from iotrace.launch.capture_directory import begin, collect, find_file_system


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that seems to lie on NFS. (Mounting one needs a server.)"""
    found = tmp_path / "server"
    found.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def of(path: Path) -> str:
        return "nfs4" if str(path).startswith(str(found)) else find_file_system(path)

    monkeypatch.setattr(capture_directory, "find_file_system", of)
    return found


def test_the_type_of_a_file_system_is_the_mounts(tmp_path: Path) -> None:
    assert find_file_system(Path("/proc/self")) == "proc"
    assert find_file_system(tmp_path) not in ("", "proc")


def test_on_a_local_disk_it_is_the_session(tmp_path: Path) -> None:
    assert begin(tmp_path) == tmp_path
    collect(tmp_path, tmp_path)
    assert tmp_path.is_dir()


def test_on_a_server_it_is_beside_it_and_moved_at_the_end(server: Path, tmp_path: Path) -> None:
    local = begin(server)
    assert local.parent == tmp_path
    assert local.stat().st_mode & 0o777 == 0o700
    (local / "1-2-node.io").write_bytes(b"calls")
    collect(local, server)
    assert (server / "1-2-node.io").read_bytes() == b"calls"
    assert not local.exists()


def test_what_is_not_the_recorders_stays(server: Path) -> None:
    local = begin(server)
    (local / "else").touch()
    collect(local, server)
    assert [path.name for path in local.iterdir()] == ["else"]
    assert not list(server.iterdir())


def test_where_all_is_on_a_server_the_session_has_to_do(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_directory, "find_file_system", lambda _: "lustre")
    assert begin(server) == server
