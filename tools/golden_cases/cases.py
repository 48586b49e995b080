"""What is run: commands of iotrace on the recorded inputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.golden_cases.recording import Recorded


@dataclass(frozen=True)
class Case:
    """``iotrace ARGUMENTS`` in an empty directory; the files that match `kept` are results, too."""

    name: str
    arguments: tuple[str, ...]
    kept: tuple[str, ...] = ("*",)


def cases(recorded: Recorded) -> Iterator[Case]:
    """Every case, in order."""
    for session in recorded.of("sessions"):
        yield from _of_input("sessions", session)
    for trace in recorded.of("traces"):
        yield from _of_input("traces", trace)


def _of_input(kind: str, path: Path) -> Iterator[Case]:
    name, source = f"{kind}/{path.name.partition('.')[0]}", str(path)
    yield Case(f"{name}/report-json", ("report", source, "--json"))
    yield Case(f"{name}/report", ("report", source))
    one = ("--processes", "1", "--json")
    yield Case(f"{name}/merge-json", ("merge", source, "-o", "merged.json", *one))
    yield Case(f"{name}/merge-native", ("merge", source, "-o", "merged.pftrace", *one))
