"""Apply a patch to a clean git tree, and to no other."""

from __future__ import annotations

import subprocess
from pathlib import Path

from iotrace.errors import IotraceError
from iotrace.patching.patch import Patch

_PATIENCE_S = 60
# Nothing of the user's settings may run a program or change what ends a line.
_PLAIN = ["-c", "core.fsmonitor=false", "-c", "core.autocrlf=false", "-c", "apply.whitespace=nowarn"]


def apply(patch: Patch) -> None:
    """Apply a patch where its files are.

    Raises:
        IotraceError: they are in no git tree, the tree has changes that are not committed, or git refuses.
    """
    root = check(patch)
    assert patch.diff is not None
    done = _git(root, ["apply", "-p1", "-"], patch.diff)
    if done.returncode:
        raise IotraceError(f"git did not apply the patch: {_last(done.stderr)}")


def check(patch: Patch) -> Path:
    """Return the root of the git tree that a patch can be applied to.

    Raises:
        IotraceError: there is no patch, its files are in no git tree, or the tree has changes.
    """
    if patch.diff is None or patch.root is None:
        raise IotraceError(f"there is no patch: {patch.why_not}")
    root = Path(patch.root)
    if not (root / ".git").exists():
        raise IotraceError(
            f"{root} is not in a git tree: the patch is not applied",
            "write it to a file, and apply it yourself: patch -p1 < FILE",
        )
    for file in dict.fromkeys(file for file, _ in patch.lines):
        if not _is_tracked(root, Path(file)):
            raise IotraceError(
                f"git does not track {file}: the patch is not applied", "git add it and commit first"
            )
    _check(root, "the patch is not applied")
    return root


def check_clean(data: Path) -> None:
    """Refuse to replace data that git tracks in a tree with changes; of other data git knows nothing.

    Raises:
        IotraceError: the tree has changes that are not committed.
    """
    real = data.resolve()
    root = next((folder for folder in real.parents if (folder / ".git").exists()), None)
    if root is not None and _is_tracked(root, real):
        _check(root, f"{data} stays as it is")


def _is_tracked(root: Path, file: Path) -> bool:
    return not _git(root, ["ls-files", "--error-unmatch", "--", str(file.resolve())]).returncode


def _check(root: Path, so: str) -> None:
    status = _git(root, ["status", "--porcelain", "--untracked-files=no"])
    if status.returncode:
        raise IotraceError(f"git cannot read {root}: {_last(status.stderr)}")
    if status.stdout.strip():
        changed = status.stdout.splitlines()[0][3:]
        raise IotraceError(
            f"the git tree {root} has changes that are not committed ({changed}): {so}",
            "commit or stash them first",
        )


def _git(root: Path, arguments: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            ["git", *_PLAIN, "-C", str(root), *arguments],
            input=text.encode(),
            capture_output=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise IotraceError("git is not installed: the patch is not applied") from error
    except subprocess.TimeoutExpired as error:
        raise IotraceError(f"git did not answer in {_PATIENCE_S} s: the patch is not applied") from error
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it says nothing"
