"""Files that are read and decoded whole for each sample or batch: how often, and whether memory holds them.

A call that gives all of a file tells by its name. Who keeps what it gave calls once in each process; who
calls again for each sample, where the file holds many, repeats the same work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from iotrace.analysis.rank import RankAnalysis
from iotrace.analysis.results import FileGroup, FileIo, Io, System, WholeReads, total
from iotrace.analysis.storage.row_groups import passes_lived, passes_of
from iotrace.session.names import KIND_READ_PATH
from iotrace.sources.paths import Paths
from iotrace.sources.processes import Process

# Of PIL `open`: an image may be loaded several times. Not `pickle.load`: a file may hold many objects.
# Parquet files are told by their row groups.
_WHOLE = frozenset(
    {
        *("numpy.load", "torch.load", "json.load", "safetensors.torch.load_file"),
        *("safetensors.numpy.load_file", "tifffile.imread", "PIL.Image.open", "cv2.imread"),
        *("torchvision.io.read_image", "torchvision.io.decode_image"),
        *(f"pandas.read_{kind}" for kind in ("csv", "table", "fwf", "feather", "orc")),
        *(f"pandas.read_{kind}" for kind in ("pickle", "json", "hdf", "excel")),
        *(f"polars.read_{kind}" for kind in ("csv", "ipc", "ndjson", "json")),
        *("pyarrow.csv.read_csv", "pyarrow.json.read_json", "pyarrow.orc.read_table"),
        *("pyarrow.feather.read_feather", "pyarrow.feather.read_table"),
    }
)
_WORTH = 1.5  # calls / those that are needed
_AGAIN = 4  # times a pass: fewer may be one sample's, of a file that holds no other
_EACH_BATCH = 0.9  # of the batches have a call: a worker that left took some along
_OF_MEMORY = 0.5  # of what was available at least: what kept files may take
_DECODED_AT_MOST = 16  # bytes in memory for one of the file, where no call tells


class _File(msgspec.Struct):
    """What was read of a file: calls by each pid; the most bytes that one gave (-1: unknown)."""

    calls: dict[int, int] = msgspec.field(default_factory=dict)
    given_bytes: int = -1


def with_whole_reads(
    groups: Sequence[FileGroup], io: Io | None, analysis: RankAnalysis, system: System
) -> list[FileGroup]:
    """Add to each group how often its files were read whole, where once in each process would have done."""
    processes, passes = analysis.rank.processes, passes_of(analysis.loaders)
    files = _whole_files(processes, analysis.session.paths) if passes else {}
    if not files or not passes:
        return list(groups)
    by_worker = passes_lived(analysis.loaders, passes) or 0
    needed = {process.pid: passes if process.worker is None else by_worker for process in processes}
    batches = sum(len(loader.deliveries) for loader in analysis.loaders if not loader.description.wrapped)
    rows = {} if io is None else {row.path: row for row in io.files}
    room_bytes = None if system.host is None else system.host.memory_available_bytes_min
    found = []
    for group in groups:
        own = {path: file for path, file in files.items() if _in(path, group)}
        calls = sum(sum(file.calls.values()) for file in own.values())
        once = sum(sum(needed[pid] for pid in file.calls) for file in own.values())
        if own and calls >= max(_WORTH * once, _AGAIN * passes * len(own), _EACH_BATCH * batches):
            group = replace(group, whole_reads=_whole_reads(own, rows, passes, room_bytes))
        found.append(group)
    return found


def _whole_reads(
    files: Mapping[str, _File], rows: Mapping[str, FileIo], passes: int, room_bytes: int | None
) -> WholeReads:
    calls = sum(sum(file.calls.values()) for file in files.values())
    readers = max(len(file.calls) for file in files.values())
    given_bytes = total(None if file.given_bytes < 0 else file.given_bytes for file in files.values())
    read_bytes = total(_read_bytes(rows.get(path)) for path in files)
    held_bytes = given_bytes or (read_bytes and _DECODED_AT_MOST * read_bytes)
    fits = (
        held_bytes is not None and room_bytes is not None and readers * held_bytes <= _OF_MEMORY * room_bytes
    )
    return WholeReads(
        files=len(files),
        calls=calls,
        calls_per_pass=calls / len(files) / passes,
        readers=readers,
        given_bytes=given_bytes,
        fits=fits,
    )


def _read_bytes(row: FileIo | None) -> float | None:
    """The bytes that were read of a file each time that it was opened."""
    return row.read_bytes / row.opens if row is not None and row.read_bytes and row.opens else None


def _in(path: str, group: FileGroup) -> bool:
    return path == group.path or (group.path.endswith("/") and path.startswith(group.path))


def _whole_files(processes: Sequence[Process], paths: Paths) -> dict[str, _File]:
    """The files that calls gave whole, by path; of calls within calls the most frequent count."""
    found: dict[str, _File] = {}
    for process in processes:
        names = [number for number, text in process.texts.items() if text in _WHOLE]
        spans = process.spans[process.spans["kind"] == KIND_READ_PATH]
        whole = np.isin(spans["name"], names)
        for number in np.unique(spans["file"][whole]).tolist():
            if number not in process.texts:
                continue
            of_file = spans["file"] == number
            file = found.setdefault(paths.shown(process.texts[number]), _File())
            file.calls[process.pid] = int(
                np.unique(spans["name"][of_file & whole], return_counts=True)[1].max()
            )
            file.given_bytes = max(file.given_bytes, int(spans["bytes"][of_file].max()))
    return found
