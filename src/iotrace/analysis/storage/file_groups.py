"""Files summed up by what a user thinks in: a store, a dataset, a directory; else the file itself.

A file that costs more than half of its directory stands alone, unless it is one of few that cost most of it.
Temporary files and those of Python and of
libraries belong to no group, unless batches were made of them.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import DataWait, FileCost, FileGroup, FileIo, Io, total
from iotrace.analysis.storage.directories import is_root, parents
from iotrace.analysis.storage.few_files import few_of_directories
from iotrace.session.names import KIND_MAPPED, KIND_READ_PATH
from iotrace.sources.paths import is_code

_FEWEST = 3  # of files: fewer of one directory are named
_MOSTLY = 0.5  # of the cost of a directory: what is more stands alone
_WORTH_NAMING = 0.01  # of all files' cost
_STORE = (".zarr", ".n5")
# What lies in a directory that is one thing to its user.
_STORE_PARTS = frozenset({"zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata"})
_DATASET_PARTS = frozenset({"data.mdb", "dataset_info.json", "_metadata"})
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip", ".7z")
_TEMPORARY = ("/tmp/", "/var/tmp/", "/dev/shm/")
# As `tempfile` names files and directories, and torch and multiprocessing their shared memory.
_TEMPORARY_NAME = re.compile(r"(tmp)?[a-z0-9_]{8}$")
_TEMPORARY_DIRECTORY = re.compile(r"tmp[a-z0-9_]{8}$")
_SHARED_MEMORY = re.compile(r"(/dev/shm/(torch|psm|sem|mp|pym)[-_.]|/pymp-|/torchinductor_)")
_RESOURCES = re.compile(r"/etc/|/usr/|(.*/)?\.(cache/(matplotlib|fontconfig|pip|torch)|config|triton)/")


class Used(msgspec.Struct, frozen=True):
    """The files of a rank as reports name them: those that batches were made of, those that libraries read.

    `prefixes` are the directories of its Python installations, `few` the files that with few others make up
    most of what their directory costs.
    """

    cwd: str
    in_batches: frozenset[str]
    by_libraries: frozenset[str]
    prefixes: frozenset[str] = frozenset()
    few: frozenset[str] = frozenset()


class _Unit(msgspec.Struct, frozen=True):
    """A file, or `files` that are summed up: `members` files or stores.

    `weights` are its cost of the wait and the bytes that calls read of it; a unit that stands `alone` is
    summed up no further.
    """

    path: str
    kind: str
    files: tuple[str, ...]
    members: int
    weights: tuple[float, int]
    written: bool = False
    alone: bool = False


def used_files(analysis: RankAnalysis) -> Used:
    """Find what the rank's batches were made of, in measured steps or not."""
    processes = analysis.rank.processes
    by_libraries = {file for process in processes for file in process.files_of(KIND_READ_PATH, KIND_MAPPED)}
    return Used(
        cwd=analysis.session.manifest.cwd,
        in_batches=frozenset(analysis.waits.files.totals()),
        by_libraries=frozenset(map(analysis.session.paths.shown, by_libraries)),
        prefixes=frozenset(prefix for process in processes for prefix in process.identity.prefixes),
        few=few_of_directories(analysis),
    )


def file_groups(wait: DataWait, io: Io | None, used: Used) -> tuple[list[FileGroup], Io | None]:
    """Sum up the files of a rank, each in one group, costliest first; `io` with the group of each file."""
    costs = {cost.path: cost for cost in wait.files}
    rows = {row.path: row for row in io.files if _moved(row)} if io is not None else {}
    units = []
    for path in {**costs, **rows}:
        row = rows.get(path)
        if not _left_out(path, row, used):
            kind = "archive" if path.endswith(_ARCHIVES) else "file"
            ms = costs[path].ms + costs[path].transform_ms if path in costs else 0.0
            read_bytes = row.read_bytes or 0 if row is not None else 0
            written = row is not None and row.writes > 0 and not row.reads
            units.append(_Unit(path, kind, (path,), 1, (ms, read_bytes), written))
    known = wait.raw_ms is not None
    pairs = [(_group(unit, costs, rows, known), unit.files) for unit in _summed_up(units, used)]
    pairs.sort(key=lambda pair: (-pair[0].cost_ms, -(pair[0].read_bytes or 0), pair[0].path))
    of_file = {path: group for group, files in pairs for path in files}
    if io is not None:
        io = replace(io, files=[_in_group(file, of_file.get(file.path)) for file in io.files])
    return [group for group, _ in pairs], io


def _in_group(file: FileIo, group: FileGroup | None) -> FileIo:
    if group is None:
        return file
    return replace(file, kind=group.kind, members=group.members, group=group.path)


def _moved(row: FileIo) -> bool:
    return bool(row.reads or row.writes or row.maps or row.read_bytes is None)


def _was_read(row: FileIo) -> bool:
    return bool(row.reads or row.maps or row.read_bytes is None)


def _left_out(path: str, row: FileIo | None, used: Used) -> bool:
    """Whether a file is no data: what batches are made of stays, wherever it lies."""
    absolute = os.path.join(used.cwd, path)
    if "://" in path or _SHARED_MEMORY.search(absolute):
        return "://" not in path
    written = row is not None and row.writes > 0
    read = row is not None and row.reads > 0
    named = bool(_TEMPORARY_NAME.match(os.path.basename(path)))
    if written and named:  # also of a library that tries out where it may write
        return not read or path not in used.in_batches
    if path in used.in_batches:
        return False
    if path == absolute and path.startswith(_TEMPORARY):
        # What a program wrote and then reads is its data, unless it lies where `tempfile` makes directories.
        passing = written and any(map(_TEMPORARY_DIRECTORY.match, absolute.split("/")[:-1]))
        if not read or passing:
            return path not in used.by_libraries
    return is_code(absolute, used.prefixes) or bool(_RESOURCES.match(absolute))


def _summed_up(units: Sequence[_Unit], used: Used) -> list[_Unit]:
    """Go up the tree of directories, from the deepest, and sum up what lies in each."""
    kinds = _holders(units, used)
    within: dict[str, list[_Unit]] = defaultdict(list)
    for unit in units:
        if unit.path in kinds:  # an array, of which a library knows more than calls show
            within[unit.path].append(replace(unit, members=0))
        else:
            within[_home(unit.path, kinds)].append(unit)
    worth = [_WORTH_NAMING * sum(unit.weights[measure] for unit in units) for measure in range(2)]
    directories = {*within, *(parent for directory in within for parent in parents(directory))}
    for directory in sorted(directories, key=len, reverse=True):
        if not is_root(directory):
            made = _sum_up(directory, within.pop(directory, []), kinds.get(directory), worth, used.few)
            within[_home(directory, kinds)] += made
    found = []
    for root, own in within.items():
        here = [unit for unit in own if os.path.dirname(unit.path) == root]
        found += [unit for unit in own if unit not in here] + _sum_up(root, here, None, worth, used.few)
    return found


def _home(path: str, kinds: dict[str, str]) -> str:
    """The directory that a path is summed up in: the nearest that is one thing, else its own."""
    return next((parent for parent in parents(path) if parent in kinds), os.path.dirname(path))


def _holders(units: Sequence[_Unit], used: Used) -> dict[str, str]:
    """Find the directories that are one thing to their user, and what they are."""
    kinds: dict[str, str] = {}
    for unit in units:
        directory, name = os.path.split(unit.path)
        if name in _STORE_PARTS:
            kinds[directory] = "store"
        elif name in _DATASET_PARTS:
            kinds.setdefault(directory, "dataset")
        for parent in parents(unit.path):
            if parent.endswith(_STORE):
                kinds[parent] = "store"
            elif parent in used.by_libraries:
                kinds.setdefault(parent, "dataset")
        if unit.path.endswith(_STORE):
            kinds[unit.path] = "store"
    stores = [directory for directory, kind in kinds.items() if kind == "store"]
    for path in used.by_libraries & {unit.path for unit in units}:
        if any(path.startswith(f"{store}/") for store in stores):
            kinds[path] = "store"  # an array, of which a library knows more than calls show
    return kinds


def _sum_up(
    directory: str, units: list[_Unit], kind: str | None, worth: list[float], few: frozenset[str]
) -> list[_Unit]:
    """Sum up the units in a directory, but for one that costs most of them."""
    rest = [unit for unit in units if not unit.alone]
    found = [unit for unit in units if unit.alone]
    if kind is None and not all(unit.written for unit in rest):
        found += [unit for unit in rest if unit.written]
        rest = [unit for unit in rest if not unit.written]
    most = _most(rest, worth)
    if (
        most is not None and most.path not in few and (kind is None or most.kind == kind)
    ):  # of a store an array alone
        found.append(replace(most, alone=True))
        rest.remove(most)
    if rest and (kind is not None or len(rest) >= _FEWEST):
        rest = [_joined(directory, rest, kind)]
    return found + rest


def _most(units: list[_Unit], worth: list[float]) -> _Unit | None:
    """Find the one of several that makes up most of their cost; where they cost nothing, of their bytes."""
    for measure in range(2):
        whole = sum(unit.weights[measure] for unit in units)
        if whole and len(units) > 1:
            most = max(units, key=lambda unit: unit.weights[measure])
            cost = most.weights[measure]
            return most if cost > _MOSTLY * whole and cost >= worth[measure] else None
    return None


def _joined(directory: str, units: list[_Unit], kind: str | None) -> _Unit:
    return _Unit(
        path=directory if kind is not None else f"{directory}/" if directory else "./",
        kind=kind or "directory",
        files=tuple(path for unit in units for path in unit.files),
        members=sum(unit.members if kind or unit.kind == "directory" else 1 for unit in units),
        weights=(sum(unit.weights[0] for unit in units), sum(unit.weights[1] for unit in units)),
        written=all(unit.written for unit in units),
    )


def _group(unit: _Unit, costs: dict[str, FileCost], rows: dict[str, FileIo], wait_known: bool) -> FileGroup:
    charged = [costs[path] for path in unit.files if path in costs]
    read = [rows[path] for path in unit.files if path in rows]
    sizes = [row.read_bytes for row in read]
    # Page faults of a memory map read what no call tells.
    known = bool(read) and None not in sizes and not any(row.maps for row in read)
    members = None if unit.kind in ("file", "archive") else unit.members or None
    return FileGroup(
        path=unit.path,
        kind=unit.kind,
        members=members,
        members_read=None if members is None or not read else sum(_was_read(row) for row in read),
        ms=sum(cost.ms for cost in charged) if wait_known else None,
        read_ms=sum(cost.read_ms for cost in charged) if wait_known else None,
        decode_ms=sum(cost.decode_ms for cost in charged) if wait_known else None,
        transform_ms=sum(cost.transform_ms for cost in charged) if wait_known else None,
        reads=sum(row.reads for row in read) if rows else None,
        read_bytes=sum(filter(None, sizes)) if known else None,
        read_ms_total=total(row.read_ms_total for row in read) if read else None,
        write_bytes=sum(row.write_bytes for row in read) if rows else None,
    )
