"""A checkout whose commands are run: its interpreter, its environment, a server of its commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SERVER = Path(__file__).with_name("server.py")
# What changes a command's output; all else of the caller's environment stays.
_SET = {
    "COLUMNS": "80",
    "LC_ALL": "C.UTF-8",
    "NO_COLOR": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TERM": "dumb",
    "TZ": "UTC",
}
_UNSET = ("IOTRACE_AGENT", "IOTRACE_HOST", "IOTRACE_JOB", "IOTRACE_POINT", "LD_PRELOAD", "RANK", "WORLD_SIZE")


@dataclass(frozen=True)
class Checkout:
    """The tree at `path`, run by `python`."""

    path: Path
    python: str

    @classmethod
    def at(cls, path: Path, python: str | None = None) -> Checkout:
        """The checkout at `path`; its own .venv-test runs it, else this interpreter. Raises SystemExit."""
        path = path.resolve()
        if not (path / "src" / "iotrace" / "__init__.py").exists():
            raise SystemExit(f"golden: {path} is no checkout of iotrace: it has no src/iotrace")
        built = max((file.stat().st_mtime for file in path.glob("src/**/_compiled.*")), default=0.0)
        if built < max(file.stat().st_mtime for file in path.glob("src/**/*.c")):
            print(
                f"golden: the compiled library of {path} is missing or older than its source", file=sys.stderr
            )
        own = path / ".venv-test" / "bin" / "python"
        return cls(path, python or (str(own) if own.exists() else sys.executable))

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a command of this checkout."""
        kept = {key: value for key, value in os.environ.items() if key not in _UNSET}
        return {**kept, **_SET, "PYTHONPATH": str(self.path / "src"), **more}

    def command(self, *arguments: str) -> list[str]:
        """The command line of ``iotrace ARGUMENTS``."""
        return [self.python, "-m", "iotrace", *arguments]

    def run(self, arguments: Sequence[str], cwd: Path, stdout: Path, stderr: Path) -> int:
        """Run ``iotrace ARGUMENTS`` by an interpreter of its own; returns its exit code."""
        with stdout.open("wb") as output, stderr.open("wb") as errors:
            return subprocess.run(
                self.command(*arguments),
                cwd=cwd,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
            ).returncode


class Server:
    """Runs commands of a checkout one after another, each in a fork (see server.py)."""

    def __init__(self, checkout: Checkout) -> None:
        self._process = subprocess.Popen(
            [checkout.python, str(_SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=checkout.environment(),
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(
        self, arguments: Sequence[str], cwd: Path, stdout: Path, stderr: Path, preload: bool = False
    ) -> int:
        """Run ``iotrace ARGUMENTS``; returns its exit code, -N where signal N ended it.

        With `preload` the server imports what the command imports, for the commands after it.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "arguments": list(arguments),
            "cwd": str(cwd),
            "stdout": str(stdout),
            "stderr": str(stderr),
            "preload": preload,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("golden: the server of commands has ended")
        return int(answer)
