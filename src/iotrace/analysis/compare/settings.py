"""What else differs between two sessions: settings of the loader, versions, CPUs, hosts."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.compare.basis import Basis, Rank
from iotrace.analysis.compare.results import Differing

_SETTINGS = {
    "workers": "num_workers",
    "prefetch_factor": "prefetch_factor",
    "persistent_workers": "persistent_workers",
    "pin_memory": "pin_memory",
    "in_order": "in_order",
    "start_method": "start_method",
    "library": "library",
}


def settings_of(ranks: tuple[Rank, Rank]) -> list[Differing]:
    """List the settings of the loop's loader that differ, under their names in DataLoader."""
    one, other = (rank.primary for rank in ranks)
    if one is None or other is None:
        return []
    pairs = ((shown, getattr(one, name), getattr(other, name)) for name, shown in _SETTINGS.items())
    return [
        Differing(what=shown, values=[_text(before), _text(after)])
        for shown, before, after in pairs
        if before != after
    ]


def environment_of(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> Iterator[Differing]:
    """Yield what differs around the program."""
    sides = (one, other)
    versions = [
        {name: text for process in side.processes for name, text in process.versions.items()}
        for side in sides
    ]
    for what, values in (
        ("Python", [_all(process.python for process in side.processes) for side in sides]),
        *((name, [each.get(name, "") for each in versions]) for name in {**versions[0], **versions[1]}),
        ("iotrace", [side.session.iotrace_version or "" for side in sides]),
        ("host", [_all(rank.host or "" for rank in side.ranks) for side in sides]),
        ("CPUs", [_text(rank.system.cpus) for rank in ranks]),
        ("accelerators", [_all(gpu.name for gpu in rank.system.gpus) for rank in ranks]),
    ):
        if values[0] != values[1]:
            yield Differing(what=what, values=[value or "unknown" for value in values])


def _all(values: Iterator[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _text(value: object) -> str:
    return "unknown" if value is None else str(value)
