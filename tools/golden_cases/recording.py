"""Record what both checkouts read: sessions, sweeps and traces, and damaged copies of them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.golden_cases.checkout import Checkout

PROGRAMS = Path(__file__).parent / "programs"
_LIMIT_SECONDS = 240


@dataclass(frozen=True)
class Recorded:
    """The folder of all inputs. What is there is kept."""

    path: Path

    @property
    def work(self) -> Path:
        """Where the programs ran: their data is below it."""
        return self.path / "work"

    def of(self, kind: str) -> list[Path]:
        """The inputs of a `kind` (``sessions``, ``traces`` and so on), by name."""
        directory = self.path / kind
        return sorted(directory.iterdir()) if directory.is_dir() else []


@dataclass(frozen=True)
class Recorder:
    """Runs programs under `checkout`, in the working directory of `recorded`."""

    recorded: Recorded
    checkout: Checkout

    def run(self, name: str, line: Sequence[str], code: int = 0, **variables: str) -> None:
        """Run a command line to its end; SystemExit where its exit code is not `code`."""
        process = self.start(name, line, **variables)
        self.expect(name, process.wait(_LIMIT_SECONDS), code)

    def start(self, name: str, line: Sequence[str], **variables: str) -> subprocess.Popen[bytes]:
        """Start a command line; what it prints goes to the log of `name`."""
        with self._log(name).open("ab") as output:
            return subprocess.Popen(
                line,
                cwd=self.recorded.work,
                env=self.checkout.environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def expect(self, name: str, code: int, expected: int) -> None:
        """SystemExit where `code` is not as expected."""
        if code != expected:
            raise SystemExit(f"golden: recording {name} failed with exit code {code}: {self._log(name)}")

    def _log(self, name: str) -> Path:
        return self.recorded.path / "logs" / f"{name}.log"

    def traced(self, session: Path, *command: str, options: Sequence[str] = ()) -> list[str]:
        """The command line that runs ``python COMMAND`` traced into `session`."""
        return self.checkout.command(
            "run", "-o", str(session), *options, "--", self.checkout.python, *map(str, command)
        )


Make = Callable[[Recorder, Path], None]


def record_all(recorder: Recorder, kind: str, makers: dict[str, Make], say: Callable[[str], None]) -> None:
    """Make the inputs of a `kind` that are not there; one whose making fails is removed."""
    directory = recorder.recorded.path / kind
    for path in (directory, recorder.recorded.work, recorder.recorded.path / "logs"):
        path.mkdir(parents=True, exist_ok=True)
    for name, make in makers.items():
        path = directory / name
        if path.exists():
            continue
        say(f"recording {kind}/{name}")
        try:
            make(recorder, path)
        except BaseException:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            raise
