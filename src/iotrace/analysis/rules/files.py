"""Files that are slow to read or to decode: what to do by their format and by what was read of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from iotrace.analysis.results import (
    PARQUET,
    ROW_GROUPS,
    UNPACKED,
    Change,
    Evidence,
    FileGroup,
    RowGroups,
    cost_of_file_ms,
)
from iotrace.analysis.rules.arrow_rows import ARROW, made_lists, only_copied
from iotrace.analysis.rules.causes import (
    MOSTLY,
    Remedy,
    costliest,
    costly,
    ended_by,
    held_up_by,
    per_epoch,
)
from iotrace.analysis.rules.chunks import (
    CHUNKED,
    LOST,
    PICKED,
    SMALL_CHUNKS,
    WHOLE_AGAIN,
    cache_lost,
    chunks_now,
    fitting_chunks,
    larger_chunks,
    name_of,
    picked,
    read_in_part,
    suffix_of,
)
from iotrace.analysis.rules.facts.loader import FileFacts, LoaderFacts
from iotrace.analysis.rules.facts.making import Making
from iotrace.analysis.rules.images import (
    IMAGES,
    are_small,
    ended_resizing,
    have_their_size,
    with_resizing,
)
from iotrace.analysis.rules.mapped_arrays import mapped_reads, read_across, single_pages
from iotrace.analysis.rules.model import THE_CAUSE, Finding, fires, rule, silent
from iotrace.analysis.rules.reread import frames_sought, kept, opened_again
from iotrace.analysis.wait.gain_bound import FILES, RESIZED
from iotrace.units import counted, percent, size

_SMALL_READ = 64 << 10
_FROM_STORAGE = 0.5  # of the bytes read
_MOST_NAMED = 5
_PARQUET = frozenset({".parquet", ".pq"})
# Formats, what to call such files, how to store them instead, and that as a sentence.
_TABLES = ("the tables", "as Parquet", "store the table in a binary format, such as Parquet")
_STORE_AS = (
    (
        IMAGES,
        "the images",
        "resized for training, or decoded",
        "store the images at the size that training takes, or decode them once and keep the arrays",
    ),
    ({".npz"}, "the arrays", "uncompressed: numpy.save", "store the arrays uncompressed, as by numpy.save"),
    ({".csv"}, *_TABLES),
    ({".tsv"}, *_TABLES),
)
_UNPACKED = IMAGES | {".npz"}
_PICKLED = frozenset({".pt", ".pth", ".pkl", ".pickle"})
# The program chooses how much of these it reads in a call; of a zarr store the chunks do.
_ANY_PIECE = frozenset({"", ".npy", ".bin", ".dat", ".raw", ".idx", ".txt", ".jsonl", ".csv", ".tsv"})


def _target(facts: LoaderFacts, cause: str) -> FileFacts | FileGroup | None:
    """The file or group that costs most of a cause, if it costs most of that; of few files their group."""
    most = costliest(facts, cause)
    if most is not None:
        few = (each for each in facts.groups if each.few and most.path in each.few.paths)
        most = next((each for each in few if each.path != most.path), most)
    return most if most and cost_of_file_ms(most, cause) >= MOSTLY * facts.causes_ms[cause] else None


def _named(target: FileFacts | FileGroup | None, others: str) -> tuple[str, str]:
    """A target's name, or else `others`; what a change of it spares: of a group all files."""
    name = others if target is None else name_of(target.path)
    if isinstance(target, FileGroup) and target.few is not None:
        name = f"{len(target.few.paths)} of {counted(target.few.of, 'file')} in {name}"
    return name, f"{FILES}:{target.path}" if isinstance(target, FileFacts) else FILES


def _the_few(target: FileFacts | FileGroup | None) -> str:
    """The names of few files that dominate."""
    few = target.few if isinstance(target, FileGroup) else None
    if few is None:
        return ""
    more = len(few.paths) - _MOST_NAMED
    names = [PurePath(path).name for path in few.paths[:_MOST_NAMED]]
    return f" ({', '.join(names)}{f' and {more} more' if more > 0 else ''})"


def _formats(facts: LoaderFacts, cause: str) -> set[str]:
    """The formats that the cause is spent on, but for a small rest."""
    whole_ms = sum(cost_of_file_ms(file, cause) for file in facts.files)
    costs: dict[str, float] = {}
    for file in facts.files:
        suffix = suffix_of(file.path)
        costs[suffix] = costs.get(suffix, 0.0) + cost_of_file_ms(file, cause)
    return {suffix for suffix, cost in costs.items() if cost >= 0.1 * whole_ms > 0}


@rule("IO101", "slow-reads", "loader", id="read-bound", turn=THE_CAUSE)
@fires(
    {"cause": "read", "files": [{"path": "d/a.npy", "read_ms": 45.0, "reads": 1000, "read_bytes": 4 << 20}]},
    {
        "cause": "read",
        "files": [{"path": "d/a.jpg", "read_ms": 45.0, "read_bytes": 4 << 20}],
        "storage_bytes": 1e9,
    },
    {
        "cause": "read",
        "files": [{"path": "d/a.zarr", "read_ms": 45.0, "reads": 6000, "read_bytes": 6 << 20}],
    },
    {"cause": "read", "files": [{"path": "d/a.h5", "read_ms": 45.0, "arrays": [WHOLE_AGAIN]}]},
)
@silent(
    {
        "cause": "read",
        "files": [{"path": "d/a.h5", "read_ms": 45.0, "arrays": [{**WHOLE_AGAIN, "complete": 4}]}],
    },
    {
        "cause": "read",
        "files": [{"path": "d/a.zarr", "read_ms": 45.0, "reads": 6, "read_bytes": 6 << 20}],
    },
    {
        "cause": "read",
        "files": [{"path": "d/a.jpg", "read_ms": 45.0, "reads": 1000, "read_bytes": 4 << 20}],
    },
    {"cause": "read", "files": [{"path": "d/a.npy", "read_ms": 45.0, "reads": 4, "read_bytes": 4 << 20}]},
    {"cause": "read", "wait_ms": 4.0, "causes_ms": {"read": 4.0}},
)
def slow_reads(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop waits for reads from files.

    Many small reads cost more than few large ones, and storage has a limit of its own. iotrace counts the
    calls and page faults of those batches that the loop waited for.

    Remedy: read or store larger pieces where the format allows, keep files that each sample reads whole, or
    keep the data on faster storage. No remedy is named for formats whose pieces the program does not choose.
    """
    if held_up_by(facts, "read"):
        yield from ended_by(_faster_reads(facts), "read", facts)


def _faster_reads(facts: LoaderFacts) -> Remedy | None:
    """Small pieces are made larger where the format allows; storage is to blame where bytes came from it."""
    target, formats, found = _target(facts, "read"), _formats(facts, "read"), []
    name, gone = _named(target, "the data")
    most = costly(facts, "read")
    mapped = mapped_reads(facts, most.path) if target is not None and most is not None else None
    if (across := read_across(facts, "read")) is not None:
        return across
    if target is not None and mapped is not None and mapped.predicted_bytes:
        return single_pages(name, mapped)
    if most is not None and (part := read_in_part(most, gone)) is not None:
        return part if facts.causes_ms["read"] >= facts.causes_ms.get("decode", 0.0) else None
    if (again := _kept(facts, target, name, gone, formats)) is not None:
        return again if facts.causes_ms["read"] >= facts.causes_ms.get("decode", 0.0) else None
    if target is not None and target.reads and target.read_bytes:
        piece = target.read_bytes / target.reads
        if piece < _SMALL_READ and formats == {".zarr"}:
            larger = larger_chunks(facts, most, name, gone) if most is not None else None
            now = chunks_now(most) if most is not None else ""
            text = f"store it in larger chunks ({now or f'{size(piece)} a read now'})"
            found.append(larger or Remedy(f"store {name} in larger chunks", text, gone))
        elif piece < _SMALL_READ and formats and formats <= _ANY_PIECE:
            text = f"read it in larger pieces ({size(piece)} each now)"
            found.append(Remedy(f"read {name} in larger pieces", text, gone, RESIZED))
    read_bytes = sum(each.read_bytes or 0 for each in facts.files)
    per_step = read_bytes / facts.batches * facts.batches_per_step if facts.batches else 0.0
    if facts.storage_bytes and per_step and facts.storage_bytes >= _FROM_STORAGE * per_step:
        text = (
            f"keep the data on faster or local storage ({size(facts.storage_bytes)} a step come from storage)"
        )
        found.append(Remedy(f"stage {name} on faster storage", text))
    if len(found) < 2:
        return found[0] if found else None
    return Remedy(found[0].short, f"{found[0].text}, or {found[1].text}")


_CLIPS: dict[str, Any] = {
    "cause": "decode",
    "files": [{"path": "d/a.gif", "decode_ms": 9.0}],
    "groups": [
        {
            "path": "d/",
            "kind": "directory",
            "decode_ms": 50.0,
            "pattern": {"reread_fraction": 0.992},
            "whole_reads": {"files": 26, "times": 208, "times_per_pass": 8.0, "readers": 2},
        }
    ],
}


_SLIDES = {
    "path": "d/",
    "kind": "directory",
    "decode_ms": 50.0,
    "whole_reads": {"files": 40, "times": 3200, "times_per_pass": 80.0, "readers": 2, "in_turn": 80},
}
_RESULTS = {"path": "d/", "kind": "directory", "decode_ms": 50.0, "members": 1500}
_ROWS: dict[str, Any] = {"cause": "decode", "files": [{"path": "d/a.arrow", "decode_ms": 50.0}]}


@rule("IO102", "slow-decoding", "loader", id="decode-bound", turn=THE_CAUSE)
@fires(
    {"cause": "decode", "files": [{"path": "d/a.jpg", "decode_ms": 50.0}]},
    {
        "cause": "decode",
        "files": [{"path": "d/a.nc", "decode_ms": 50.0, "read_bytes": 4 << 20, "delivered_bytes": 1 << 20}],
    },
    {"cause": "decode", "files": [{"path": "d/a.zarr", "decode_ms": 50.0, "arrays": [SMALL_CHUNKS]}]},
    {"cause": "decode", "files": [{"path": "d/a.h5", "decode_ms": 50.0, "arrays": [WHOLE_AGAIN]}]},
    {"cause": "decode", "files": [{"path": "d/a.nwb", "decode_ms": 50.0, "arrays": [PICKED]}]},
    {"cause": "decode", "files": [{"path": "d/a.h5ad", "decode_ms": 50.0, "arrays": [LOST]}]},
    {**_CLIPS, "making": Making(frames=118.0)},
    {"cause": "decode", "files": [{"path": "d/a.png", "decode_ms": 9.0}], "groups": [_SLIDES]},
    {"cause": "decode", "files": [{"path": "d/a.pt", "decode_ms": 0.1}], "groups": [_RESULTS]},
    # Images in a dataset are decoded; lists are made of its columns.
    _ROWS,
    {**_ROWS, "making": Making(as_lists=0.9)},
)
@silent(
    {"cause": "decode", "files": [{"path": "d/a.npy", "decode_ms": 50.0}]},
    {**_ROWS, "making": Making(as_copied=0.9)},
    {"cause": "decode", "wait_ms": 4.0, "causes_ms": {"decode": 4.0}},
)
def slow_decoding(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop waits for a library to decode what it read: images, compressed chunks, tables.

    The time is what the library's calls took, without the reads in them. Where chunks or row groups do not
    fit what a sample reads, most decoded bytes are never used. A program that looks up an h5py dataset again
    at each access (`file["x"][i]`) loses HDF5's cache of decoded chunks each time. iotrace says so only if
    the cache has room for the chunks, and the bytes read show that they were read again.

    Rows of Hugging Face's datasets in the format "python" are made into Python's lists: their Arrow files
    hold nothing to decode.

    Remedy: depends on the format: other chunks or row groups, lighter compression, a smaller size; or decode
    once, ahead of training. Of many files of pickled results: fewer files, or memory. Of rows: features of a
    fixed shape, and `set_format`. None for arrays that need no decoding.
    """
    if held_up_by(facts, "decode"):
        yield from ended_by(_less_decoding(facts), "decode", facts)


def _less_decoding(facts: LoaderFacts) -> Remedy | None:
    """By format: chunks and compression where there are any, else decoding once."""
    formats, target, file = _formats(facts, "decode"), _target(facts, "decode"), costly(facts, "decode")
    name, gone = _named(target, "the files")
    if file is not None and (by_numpy := picked(file, name, gone)) is not None:
        return by_numpy
    if (lost := cache_lost(file, f"{FILES}:{file.path}" if file is not None else "")) is not None:
        return lost
    if (framed := frames_sought(facts, target, name, gone)) is not None:
        return framed
    if formats and formats <= CHUNKED and file is not None:
        return fitting_chunks(facts, file, name, gone)
    if formats and formats <= _PARQUET and file is not None:
        regrouped = _regrouped(_row_groups(facts, file.path), name, gone, facts)
        if regrouped is not None:
            return regrouped
    dear = None if file is None else next((each.few for each in facts.groups if each.path == file.path), None)
    # One that is far larger than the others is to be made smaller, before all of it is kept.
    larger = dear is not None and bool(formats) and formats <= IMAGES
    if not larger and (again := _kept(facts, target, name, gone, formats)) is not None:
        return again if facts.causes_ms["decode"] > facts.causes_ms.get("read", 0.0) else None
    if (opened := opened_again(facts, "decode")) is not None:
        return opened
    if file is not None and formats == ARROW and (listed := made_lists(facts, file.path)) is not None:
        return listed
    if formats == {".npy"} or (formats == ARROW and only_copied(facts)):
        return None  # nothing to decode: what this time is, is not known
    for known, what, how, text in _STORE_AS:
        if formats and formats <= known and not (known is IMAGES and are_small(facts)):
            spared = "" if formats == {".npz"} else gone  # an array that is not compressed is read, too
            change, stored = _unpacked(facts, target, formats), what if target is None else name
            if known is IMAGES and have_their_size(facts):
                text = "decode the images once, and keep the arrays: samples are no smaller than they are"
                return Remedy(f"store {stored} decoded", text + _the_few(target), gone, FILES, change=change)
            short = f"store {stored} {how}"
            # Nobody sees how much of the transform makes images smaller, or numbers of texts.
            resized = ended_resizing(facts) if known is IMAGES else 0.0
            if dear is not None:
                text += f" ({percent(dear.fraction)} of what {dear.of} files take)"
            share = 1.0
            if resized and gone == FILES:
                text += f"; stored resized they end most of {facts.hot_line}, too"
                spared, share = RESIZED, with_resizing(facts, resized)
            return Remedy(short, text + _the_few(target), spared, RESIZED, share=share, change=change)
    if formats and formats <= _PICKLED and isinstance(target, FileGroup) and target.members:
        return _in_fewer_files(facts, name, gone)
    text = "decode it once, ahead of training, and keep the result where there is room"
    return Remedy("decode once, ahead of training; keep the result", text, FILES, RESIZED)


def _in_fewer_files(facts: LoaderFacts, name: str, gone: str) -> Remedy:
    """Of many pickled files: these are results that somebody has stored ahead of training already."""
    where = f", in {facts.hot_function}" if facts.hot_function else ""
    text = (
        f"each of its files is unpickled on its own{where}: store many samples in one file, as arrays that "
        "are mapped (numpy.save, mmap_mode='r'), or load all once and keep them where there is room"
    )
    return Remedy(f"store {name} as few files of arrays, or keep all in memory", text, gone, RESIZED)


def _kept(
    facts: LoaderFacts, target: FileFacts | FileGroup | None, name: str, gone: str, formats: set[str]
) -> Remedy | None:
    decoded = _unpacked(facts, target, formats) if formats and formats <= _UNPACKED else None
    return kept(facts, target, name, gone, formats, decoded)


def _row_groups(facts: LoaderFacts, path: str) -> RowGroups | None:
    known = [each for group in facts.groups if group.amplification for each in group.amplification.row_groups]
    return next((each for each in known if each.path == path), None)


def _regrouped(found: RowGroups | None, name: str, gone: str, facts: LoaderFacts) -> Remedy | None:
    if found is None or found.predicted_bytes is None:
        return None
    per = per_epoch(facts.epochs, facts.epochs_ended)
    evidence: Evidence = {
        "decoded_bytes": float(found.decoded_bytes),
        "predicted_bytes": float(found.predicted_bytes),
    }
    if found.keep:
        each, times = found.predicted_bytes / found.readers, found.decoded_per_pass or 0.0
        text = (
            "read it once and keep it (functools.cache, or in the dataset's __init__): it is read whole "
            f"{times:.0f} times {per} ({size(found.decoded_bytes)} decoded; then "
            f"{size(found.predicted_bytes)}, {size(each)} held by each process that reads it)"
        )
        what = "them" if name == "the files" else "it"
        short = f"read {name} once and keep {what}"
        return Remedy(short, text, gone, RESIZED, spares_work=True, evidence=evidence)
    if found.suggested_rows is None:
        return None
    rows = counted(found.suggested_rows, "row")
    text = (
        f"store it in row groups of {rows}: each of {found.group_rows} is decoded"
        f" {found.decoded_per_pass or 0.0:.0f} times {per} ({size(found.decoded_bytes)} decoded;"
        f" then about {size(found.predicted_bytes)}, if samples share no rows)"
    )
    short, change = f"store {name} in row groups of {rows}", Change(stored=ROW_GROUPS, paths=[found.path])
    return Remedy(
        short, text, gone, spares_work=True, command=found.command, change=change, evidence=evidence
    )


def _unpacked(facts: LoaderFacts, target: FileFacts | FileGroup | None, formats: set[str]) -> Change | None:
    """Which files hold packed what they could hold as it is, or are tables that take long to parse."""
    if not formats <= _UNPACKED and formats != {".csv"}:
        return None
    if target is None:
        paths = [file.path for file in facts.files if suffix_of(file.path) in formats]
    else:
        few = target.few if isinstance(target, FileGroup) else None
        paths = [target.path] if few is None else few.paths
    return Change(stored=PARQUET if formats == {".csv"} else UNPACKED, paths=paths)
