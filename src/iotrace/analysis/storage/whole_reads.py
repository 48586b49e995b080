"""Files that are read and decoded whole for each sample or batch: how often, and whether memory holds them.

Who keeps what a call gave calls once in each process; who calls again for each sample, where the file holds
many, repeats the same work. Many calls may give a part, too: what counts is how often the same bytes were
read. Where no read call was seen (numpy reads past dftracer), names of calls tell that have no parts to give.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.intervals import grouped
from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import FileGroup, System, WholeReads, total
from iotrace.analysis.storage.directories import group_of
from iotrace.analysis.storage.passes import passes_by_process, passes_of
from iotrace.analysis.storage.read_pattern import FileCalls
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.columns import Columns
from iotrace.sources.paths import Paths
from iotrace.sources.processes import Process
from iotrace.sources.records import RowGroupsRead

_MEMBER = "numpy.NpzFile.__getitem__"
_NUMPY = "numpy.load"  # of a map it tells no bytes
_ALWAYS = frozenset(
    {
        *(_NUMPY, "torch.load", "json.load"),
        *("safetensors.torch.load_file", "safetensors.numpy.load_file"),
    }
)
# Of PIL `open`: an image may be loaded several times. Parquet files are told by their row groups.
_MOSTLY = frozenset(
    {
        *(_MEMBER, "tifffile.imread", "PIL.Image.open", "cv2.imread"),
        *("torchvision.io.read_image", "torchvision.io.decode_image", "pickle.load"),
        *(f"pandas.read_{kind}" for kind in ("csv", "table", "fwf", "feather", "orc")),
        *(f"pandas.read_{kind}" for kind in ("pickle", "json", "hdf", "excel")),
        *(f"polars.read_{kind}" for kind in ("csv", "ipc", "ndjson", "json")),
        *("pyarrow.csv.read_csv", "pyarrow.json.read_json", "pyarrow.orc.read_table"),
        *("pyarrow.feather.read_feather", "pyarrow.feather.read_table"),
    }
)
# A filter that chooses rows of a file of one row group decodes it whole.
_CHOOSING = frozenset(f"pyarrow.dataset.Dataset.{name}" for name in ("to_table", "to_batches"))
_WORTH = 1.5  # calls / those that are needed
_AGAIN = 4  # times a pass: fewer may be one sample's, of a file that holds no other
_EACH_BATCH = 0.9  # of the batches have a call: a worker that left took some along
_PLACED = 0.9  # of the bytes read lie at places that are known
_OF_COST = 0.5
_OF_MEMORY = 0.5  # of what was available at least: what kept files may take
_DECODED_AT_MOST = 16  # bytes in memory for one of the file, where no call tells


class _File(msgspec.Struct):
    """Calls that read the file at `path`, by pid; those without parts to give; the most bytes that one gave.

    -1: no call tells.
    """

    path: str
    calls: dict[int, int] = msgspec.field(default_factory=dict)
    always: int = 0
    given_bytes: int = -1
    times: float = 0.0
    held_bytes: float | None = None

    def sum_up(self, reads: FileCalls | None) -> None:
        """Set how often the file was read whole, and what its content takes of memory at most."""
        self.times, given_bytes = self.always, self.given_bytes
        self.held_bytes = None if given_bytes < 0 else given_bytes
        if reads is not None and reads.distinct_bytes and reads.ranged_bytes >= _PLACED * reads.read_bytes:
            again = reads.ranged_bytes / reads.distinct_bytes
            self.times = min(sum(self.calls.values()), again)
            unpacked_bytes = reads.distinct_bytes * (_DECODED_AT_MOST if given_bytes < 0 else 1)
            self.held_bytes = max(given_bytes, unpacked_bytes)


def with_whole_reads(
    groups: Sequence[FileGroup],
    calls: Mapping[str, FileCalls],
    analysis: RankAnalysis,
    system: System,
    files_ms: Mapping[str, float],
) -> list[FileGroup]:
    """Add to each group how often its files were read whole, where once in each process would have done.

    `files_ms` is what each file costs of a step's wait: of a directory of videos and their small labels,
    the labels that are read whole are not what it costs.
    """
    processes, passes = analysis.rank.processes, passes_of(analysis.loaders)
    files = _files(processes, analysis.session.paths) if passes else {}
    if not files or not passes:
        return list(groups)
    for path, file in files.items():
        file.sum_up(calls.get(path))
    needed = passes_by_process(analysis.loaders, analysis.rank)
    batches = sum(len(loader.deliveries) for loader in analysis.loaders if not loader.description.wrapped)
    room_bytes = None if system.host is None else system.host.memory_available_bytes_min
    found, by_group = [], _by_group(files, groups)
    for group in groups:
        own = by_group.get(group.path, [])
        times = sum(file.times for file in own)
        once = sum(sum(needed[pid] for pid in file.calls) for file in own)
        if not _cost_most(own, group, files_ms):
            own = []
        if own and times >= max(_WORTH * once, _AGAIN * passes * len(own), _EACH_BATCH * batches):
            whole = _whole_reads(own, passes, room_bytes)
            if not whole.fits:
                numbers = {file.path for file in own}
                whole = replace(whole, in_turn=_in_turn(processes, analysis.session.paths, numbers))
            group = replace(group, whole_reads=whole)
        found.append(group)
    return found


def _cost_most(files: Sequence[_File], group: FileGroup, files_ms: Mapping[str, float]) -> bool:
    """Whether most of what the group costs is these files'; where it costs nothing that is not asked."""
    return sum(files_ms.get(file.path, 0.0) for file in files) >= _OF_COST * group.cost_ms


def _whole_reads(files: Sequence[_File], passes: int, room_bytes: int | None) -> WholeReads:
    times = sum(file.times for file in files)
    readers = max(len(file.calls) for file in files)
    held_bytes = total(file.held_bytes for file in files)
    return WholeReads(
        files=len(files),
        times=round(times),
        times_per_pass=times / len(files) / passes,
        readers=readers,
        given_bytes=total(None if file.given_bytes < 0 else file.given_bytes for file in files),
        fits=None not in (held_bytes, room_bytes)
        and readers * (held_bytes or 0) <= _OF_MEMORY * (room_bytes or 0),
    )


def _in_turn(processes: Sequence[Process], paths: Paths, files: set[str]) -> int:
    """How often a process turned from one of these files to another: its samples may share the last one."""
    turns = 0
    for process in processes:
        known = _ALWAYS | _MOSTLY | _CHOOSING
        kinds = [number for number, text in process.texts.items() if text in known]
        own = [number for number, text in process.texts.items() if paths.shown(text) in files]
        spans = process.spans[process.spans["kind"] == KIND_READ_PATH]
        spans = spans[np.isin(spans["name"], kinds) & np.isin(spans["file"], own)]
        file = spans["file"][np.argsort(spans["start_ns"], kind="stable")]
        turns += int((file[1:] != file[:-1]).sum()) + bool(len(file))
    return turns


def _by_group(files: Mapping[str, _File], groups: Sequence[FileGroup]) -> dict[str, list[_File]]:
    """The files of each group, by its path: itself, or a directory that they lie in."""
    paths, found = {group.path for group in groups}, defaultdict(list)
    for path, file in files.items():
        own = group_of(path, paths)
        if own is not None:
            found[own].append(file)
    return found


def _files(processes: Sequence[Process], paths: Paths) -> dict[str, _File]:
    """The files that such calls read, by path; of calls within calls the most frequent count."""
    found: dict[str, _File] = {}
    for process in processes:
        known = _ALWAYS | _MOSTLY | _CHOOSING
        kinds = {number: text for number, text in process.texts.items() if text in known}
        chosen = {record.path for record in process.of_type(RowGroupsRead) if _decodes_all(record)}
        spans = process.spans[process.spans["kind"] == KIND_READ_PATH]
        of_map = (spans["bytes"] < 0) & np.isin(
            spans["name"], [each for each in kinds if kinds[each] == _NUMPY]
        )
        calls = spans[np.isin(spans["name"], [*kinds]) & ~of_map]
        largest = {**_largest(spans), **_of_members(spans, process.texts)}
        for (number, kind), count in zip(*_counted(calls), strict=True):
            if kinds[kind] in _CHOOSING and process.texts.get(number) not in chosen:
                continue  # told by its row groups
            if number in process.texts:
                path = paths.shown(process.texts[number])
                file = found.setdefault(path, _File(path))
                file.calls[process.pid] = max(count, file.calls.get(process.pid, 0))
                file.always += count if kinds[kind] in _ALWAYS else 0
                file.given_bytes = max(file.given_bytes, largest[number])
    return found


def _decodes_all(record: RowGroupsRead) -> bool:
    return record.is_filtered and record.groups == 1 and record.columns is None


def _counted(calls: Columns) -> tuple[list[tuple[int, int]], list[int]]:
    """Each pair of a file and a name, and how often it is there."""
    pairs, counts = np.unique(calls["file"].astype(np.int64) << 32 | calls["name"], return_counts=True)
    return [(pair >> 32, pair & 0xFFFFFFFF) for pair in pairs.tolist()], counts.tolist()


def _of_members(spans: Columns, texts: Mapping[int, str]) -> dict[int, int]:
    """The bytes of an archive's arrays that were read, or less: those of one size may be one, read again."""
    members = spans[np.isin(spans["name"], [number for number, text in texts.items() if text == _MEMBER])]
    if not len(members) or (members["bytes"] < 0).any():
        return {}
    sizes = np.unique(np.stack((members["file"].astype(np.int64), members["bytes"])), axis=1)
    files, _, of = grouped(sizes[0])
    return dict(zip(files.tolist(), np.bincount(of, sizes[1]).astype(np.int64).tolist(), strict=True))


def _largest(spans: Columns) -> dict[int, int]:
    """The most bytes that a call gave of each file."""
    files, first, of = grouped(spans["file"])
    most = spans["bytes"][first]
    np.maximum.at(most, of, spans["bytes"])
    return dict(zip(files.tolist(), most.tolist(), strict=True))
