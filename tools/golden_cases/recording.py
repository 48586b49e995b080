"""Record what both checkouts read: sessions of every workload, and the traces at hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.workloads import WORKLOADS, make_data
from tools.golden_cases.checkout import Checkout
from tools.make_trace import write as make_trace

_ROOT = Path(__file__).parent.parent.parent
_LIMIT_SECONDS = 180
_STEPS = "24"  # ten of them before and in the window of torch.profiler


@dataclass(frozen=True)
class Recorded:
    """The folder of all inputs. Sessions and traces that are there are kept."""

    path: Path

    @property
    def work(self) -> Path:
        """Where the programs ran: their data is below it."""
        return self.path / "work"

    def of(self, kind: str) -> list[Path]:
        """The inputs of a `kind` (``sessions``, ``traces`` and so on), by name."""
        return sorted((self.path / kind).iterdir()) if (self.path / kind).is_dir() else []


def record(recorded: Recorded, checkout: Checkout, say: Callable[[str], None]) -> None:
    """Record with `checkout` what is not there yet."""
    for name in ("work", "sessions", "traces", "logs"):
        (recorded.path / name).mkdir(parents=True, exist_ok=True)
    for name, make in _sessions().items():
        if not (recorded.path / "sessions" / name).exists():
            say(f"recording the session {name}")
            make(recorded, checkout, name)
    _traces(recorded)


def _sessions() -> dict[str, Callable[[Recorded, Checkout, str], None]]:
    return dict.fromkeys(WORKLOADS, _workload)


def _workload(recorded: Recorded, checkout: Checkout, name: str) -> None:
    workload = WORKLOADS[name]
    make_data(workload, recorded.work)
    command = workload.command()
    command[command.index("--steps") + 1] = _STEPS
    _run(recorded, checkout, name, command)


def _run(
    recorded: Recorded, checkout: Checkout, name: str, command: Sequence[str], options: Sequence[str] = ()
) -> None:
    """Run ``python COMMAND`` traced into the session `name`; it is kept only if the command succeeded."""
    session = recorded.path / "sessions" / name
    log = recorded.path / "logs" / f"{name}.log"
    line = checkout.command("run", "-o", str(session), *options, "--", checkout.python, *command)
    with log.open("wb") as output:
        done = subprocess.run(
            line,
            cwd=recorded.work,
            env=checkout.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_SECONDS,
        )
    if done.returncode:
        shutil.rmtree(session, ignore_errors=True)
        raise SystemExit(f"golden: recording {name} failed with {done.returncode}: {log}")


def _traces(recorded: Recorded) -> None:
    """Copy the traces at hand, and make some."""
    target = recorded.path / "traces"
    shared = _ROOT.parent / "shared" / "traces"
    for path in [*sorted(shared.glob("*.json.gz")), *sorted((_ROOT / "tests" / "data").glob("*.json.gz"))]:
        if not (target / path.name).exists():
            shutil.copyfile(path, target / path.name)
    for rank in range(2):
        made = target / f"made_rank{rank}.json"
        if not made.exists():
            partial = made.with_suffix(f".{os.getpid()}")
            make_trace(partial, 4, rank)
            partial.rename(made)
