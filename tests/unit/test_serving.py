"""`iotrace run` learns where a server of `iotrace ui` shows its session, and believes no stranger."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from iotrace.session import serving
from iotrace.session.serving import announced, find_key, prefixes, served_at, tunnel_to


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "iotrace"


def test_a_run_below_a_served_directory_has_an_address(tmp_path: Path, directory: Path) -> None:
    runs = tmp_path / "my runs"
    with announced("http://127.0.0.1:7333", [runs]):
        assert served_at(runs / "deep" / "a b") == "http://127.0.0.1:7333/run?of=deep/a%20b"
        assert served_at(tmp_path / "elsewhere") is None
        assert served_at(runs / ".hidden" / "run") is None
        file = next(directory.iterdir())
        assert (file.stat().st_mode & 0o777, directory.stat().st_mode & 0o777) == (0o600, 0o700)
        assert "token" not in file.read_text()
    assert list(directory.iterdir()) == []
    assert served_at(runs / "deep") is None


def test_of_several_directories_keys_begin_with_their_number(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    assert prefixes(roots) == ["1-a", "2-b"]
    assert find_key(tmp_path / "b", roots[1], "2-b") == "2-b"
    with announced("http://127.0.0.1:1", roots):
        assert served_at(tmp_path / "b" / "run") == "http://127.0.0.1:1/run?of=2-b/run"


@pytest.mark.parametrize("wrong", ["pid", "start_ticks", "boot_id", "pid_namespace"])
def test_a_stale_file_says_nothing(tmp_path: Path, directory: Path, wrong: str) -> None:
    with announced("http://127.0.0.1:7333", [tmp_path]):
        file = next(directory.iterdir())
        kept = json.loads(file.read_text())
        value = kept["process"][wrong]
        kept["process"][wrong] = value + "x" if isinstance(value, str) else value + (1 << 22)
        file.write_text(json.dumps(kept))
        assert served_at(tmp_path / "run") is None


def test_what_others_may_have_written_says_nothing(tmp_path: Path, directory: Path) -> None:
    with announced("http://127.0.0.1:7333", [tmp_path]):
        file = next(directory.iterdir())
        file.chmod(0o666)
        assert served_at(tmp_path / "run") is None
        file.chmod(0o600)
        directory.chmod(0o777)
        assert served_at(tmp_path / "run") is None
        directory.chmod(0o700)
        (directory / "a.json").write_text("{")
        (directory / "b.json").mkdir()
        os.mkfifo(directory / "c.json")
        assert served_at(tmp_path / "run") is not None


def test_a_server_that_can_write_nothing_serves_nevertheless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "iotrace").write_text("a file is in the way")
    with announced("http://127.0.0.1:7333", [tmp_path]):
        assert served_at(tmp_path / "run") is None
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    with announced("http://127.0.0.1:7333", [tmp_path]), pytest.raises(OSError, match="no home"):
        serving._directory()


def test_over_ssh_a_tunnel_leads_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert tunnel_to("http://127.0.0.1:7333/run?of=a") == ""
    monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")
    assert tunnel_to("http://127.0.0.1:7333").startswith("ssh -L 7333:127.0.0.1:7333 ")
    assert tunnel_to("http://node:7333") == ""
