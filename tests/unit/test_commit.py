"""A session knows which commit its working directory had checked out, by the repository's files alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from iotrace.launch.session_directory import read_commit


def git(directory: Path, *words: str) -> str:
    settings = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    line = ["git", *settings, *words]
    return subprocess.run(line, cwd=directory, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    (path / "deep" / "er").mkdir(parents=True)
    git(path, "init", "-q")
    git(path, "commit", "-q", "--allow-empty", "-m", "one")
    return path


def test_it_is_what_git_says(repository: Path, tmp_path: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")
    assert read_commit(repository) == read_commit(repository / "deep" / "er") == first
    git(repository, "pack-refs", "--all")
    assert read_commit(repository) == first
    git(repository, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    git(tmp_path / "side", "commit", "-q", "--allow-empty", "-m", "two")
    assert read_commit(tmp_path / "side") == git(tmp_path / "side", "rev-parse", "HEAD") != first
    git(repository, "checkout", "-q", "--detach")
    assert read_commit(repository) == first


@pytest.mark.parametrize(
    "head", ["", "ref: refs/heads/none\n", "ref: refs/../../secret\n", "no hash", "\xff\xfe"]
)
def test_what_is_damaged_is_not_known(repository: Path, head: str) -> None:
    (repository / ".git" / "HEAD").write_text(head, encoding="latin-1")
    assert read_commit(repository) == ""


def test_without_a_repository_nothing_is_known(tmp_path: Path) -> None:
    assert read_commit(tmp_path) == ""
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    assert read_commit(tmp_path) == ""
