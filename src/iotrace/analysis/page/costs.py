"""The data wait cut up by cause and file, and I/O by directory: what a page draws as areas and as a tree."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from iotrace.analysis.results import DataWait, FileIo, RankReport, total

OUTSIDE = "not in a file"
_PARTS = ("read", "decode", "transform")
_NAMED = 0.02  # of the wait: the area of a file that costs less holds no name
_LEAST = 0.002  # of the wait: what a directory's files cost less is summed up with others


class Cost(msgspec.Struct, frozen=True):
    """A part of the mean data wait of a step: by `cause`, in `path` (None: in no file) of `group`."""

    group: str
    path: str | None
    cause: str
    ms: float


def costs_of(rank: RankReport) -> list[Cost]:
    """Cut the rank's data wait into costs that sum to it, largest first; empty where it is unknown.

    Files that cost little are summed up, by directory and cause, under the name of how many they are.
    """
    wait = rank.data_wait
    if not wait.raw_ms:
        return []
    costs = [
        Cost(_group_of(file.path, rank), file.path, part, getattr(file, f"{part}_ms"))
        for file in wait.files
        for part in _PARTS
        if getattr(file, f"{part}_ms") > 0
    ]
    found: list[Cost] = []
    small: dict[tuple[str, str], list[Cost]] = defaultdict(list)
    for cost in costs:
        (found if cost.ms >= _NAMED * wait.raw_ms else small[cost.group, cost.cause]).append(cost)
    rest: dict[str, list[Cost]] = defaultdict(list)
    for (group, cause), own in small.items():
        if sum(cost.ms for cost in own) < _LEAST * wait.raw_ms:
            rest[cause] += own
        else:
            found.append(_joined_costs(group, own))
    found += [_joined_costs("other files", own) for own in rest.values()]
    found += _outside(wait)
    return sorted(found, key=lambda cost: -cost.ms)


def _joined_costs(group: str, own: Sequence[Cost]) -> Cost:
    """Sum up costs of one cause: in the one directory of all of them, else in `group`."""
    groups = {cost.group for cost in own}
    name = own[0].path if len(own) == 1 else f"{len(own)} files"
    return Cost(groups.pop() if len(groups) == 1 else group, name, own[0].cause, sum(cost.ms for cost in own))


def _outside(wait: DataWait) -> list[Cost]:
    """What of each cause lies in no file."""
    charged = {part: sum(getattr(file, f"{part}_ms") for file in wait.files) for part in _PARTS}
    rest = {cause: ms - charged.get(cause, 0.0) for cause, ms in wait.causes_ms.items()}
    least = 1e-6 * (wait.raw_ms or 0.0)  # what rounding leaves
    return [Cost(OUTSIDE, None, cause, ms) for cause, ms in rest.items() if ms > least]


def _group_of(path: str, rank: RankReport) -> str:
    """The group that the file belongs to, or else its directory."""
    known = [group.path for group in rank.file_groups if _holds(group.path, path)]
    return max(known, key=len, default=os.path.dirname(path) or "./")


def _holds(group: str, path: str) -> bool:
    directory = "" if group == "./" else f"{group.rstrip('/')}/"
    return path == group or path.startswith(directory)


class IoNode(msgspec.Struct, frozen=True):
    """A directory or a file with the I/O on all below it; None: not known of one of them."""

    name: str
    files: int
    opens: int
    reads: int
    read_bytes: int | None
    read_ms: float | None
    written_bytes: int
    within: list[IoNode]


def io_tree(files: Sequence[FileIo], most: int = 40) -> IoNode:
    """Sum up `files` by directory; of a directory's entries the costliest `most`, the rest as one.

    A directory that holds nothing but one directory is one with it.
    """
    return _node("", [(file.path.split("/"), file) for file in files], most)


def _node(name: str, entries: list[tuple[list[str], FileIo]], most: int) -> IoNode:
    by_name: dict[str, list[tuple[list[str], FileIo]]] = {}
    leaves = []
    for parts, file in entries:
        if len(parts) == 1:
            leaves.append((_sums(parts[0] or "/", [file], []), [file]))
        else:
            by_name.setdefault(parts[0], []).append((parts[1:], file))
    below = [
        (_node(f"{each}/", own, most), [file for _, file in own]) for each, own in by_name.items()
    ] + leaves
    below.sort(key=lambda pair: (-(pair[0].read_ms or 0.0), -(pair[0].read_bytes or 0), pair[0].name))
    within = [node for node, _ in below[:most]]
    if rest := [file for _, files in below[most:] for file in files]:
        within.append(_sums(f"{len(rest)} more files", rest, []))
    if len(within) == 1 and within[0].within:
        return msgspec.structs.replace(within[0], name=name + within[0].name)
    return _sums(name, [file for _, file in entries], within)


def _sums(name: str, files: Sequence[FileIo], within: list[IoNode]) -> IoNode:
    return IoNode(
        name=name,
        files=len(files),
        opens=sum(file.opens for file in files),
        reads=sum(file.reads for file in files),
        # A memory map reads what no call tells.
        read_bytes=total(None if file.maps else file.read_bytes for file in files),
        read_ms=total(file.read_ms_total for file in files),
        written_bytes=sum(file.write_bytes for file in files),
        within=within,
    )
