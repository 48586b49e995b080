"""Arrays in chunks, of HDF5 and zarr: chunks that do not fit what a sample reads, and too small ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from operator import attrgetter
from pathlib import PurePath

from iotrace.analysis.results import CHUNKS, LIGHTER, Change, ChunkedArray, Evidence, FileGroup
from iotrace.analysis.rules.causes import Remedy, making_ms
from iotrace.analysis.rules.facts.loader import FileFacts, LoaderFacts
from iotrace.analysis.wait.gain_bound import FILES
from iotrace.units import digits, size

_ACROSS = 1.5  # chunks for each access of one chunk's size
_INFLATED, _READ_IN_VAIN = 1.2, 1.5  # delivered / read, and the other way round
_SPARES = 1.5  # decoded now, for each byte that other chunks would have decoded
_LOOKED_UP = 4096  # bytes a read: of what says where data lies, not of the data
_ONE_A_SAMPLE = 1.1  # accesses: a worker that left took some samples along
_LONGEST_NAME = 24
CHUNKED = frozenset(
    {".h5", ".hdf5", ".he5", ".nc", ".nc4", ".cdf", ".zarr"}
)  # such files hold arrays in chunks
_AGAIN, _ALIKE = 4, 0.5  # times what would do; of the accesses: such as ask for the whole array
_DECODED_BY_MS = 500e3  # bytes, about: zarr's calls that take longer do its own work for each access
_MOSTLY = 0.5  # of the time
_HELD_BYTES = 256 << 20  # in each worker
_NEARLY_ALL = 0.9  # of the decoding: what a change has to be of, to spare all of it
_IN_PIECES = 2  # chunks of an array, of which a part can be read without the others

# What rules share: a sample that reads 512 chunks of 1 KiB, as accesses ask for no other ones.
SMALL_CHUNKS = {
    "path": "d/a.zarr",
    "dataset": "",
    "shape": [48, 256, 256],
    "chunk": [1, 16, 16],
    "chunk_bytes": 1024,
    "access": [8, 128, 128],
    "accesses": 3200,
    "chunks_touched": 512 * 3200,
    "used_bytes": 3200 << 19,
    "decoded_at_least_bytes": 3200 << 19,
    "decoded_at_most_bytes": 3200 << 19,
}

# Samples that take rows by lists from an array that is one piece.
PICKED = {
    **SMALL_CHUNKS,
    "dataset": "/x",
    "chunk": [48, 256, 256],
    "access": None,
    "chunks_touched": 0,
    "used_bytes": 0,
    "filtered": False,
    "array_bytes": 12 << 20,
}

# Samples that read all of it, 1.6 MB for each, in 2 workers.
WHOLE_AGAIN = {
    "path": "d/a.h5",
    "dataset": "/x",
    "shape": [800, 1024],
    "chunk": [100, 1024],
    "chunk_bytes": 204800,
    "access": [800, 1024],
    "accesses": 160,
    "chunks_touched": 1280,
    "used_bytes": 160 * 1638400,
    "decoded_at_least_bytes": 160 * 1638400,
    "decoded_at_most_bytes": 160 * 1638400,
    "complete": 160,
    "complete_once": 2,
    "array_bytes": 1638400,
}


# Datasets of two columns, found in the file anew for each row: what the cache would hold is decoded again.
LOST = {
    "path": "d/a.h5ad",
    "dataset": "/X/data",
    "shape": [3000000],
    "chunk": [65536],
    "chunk_bytes": 262144,
    "accesses": 3200,
    "chunks_touched": 3220,
    "used_bytes": 3900000,
    "decoded_at_least_bytes": 0,
    "decoded_at_most_bytes": 860000000,
    "objects": 3200,
    "lost": 2500,
}


def name_of(path: str) -> str:
    """A short name: of what lies in a store with the store's."""
    parts = PurePath(path).parts
    store = next((place for place, part in enumerate(parts) if part.endswith(".zarr")), len(parts) - 1)
    name = "/".join(parts[store:]) + ("/" if path.endswith("/") else "")
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"


def suffix_of(path: str) -> str:
    """What names a file's format; of a part of a store that of the store."""
    if any(part.endswith(".zarr") for part in PurePath(path).parts):
        return ".zarr"
    return PurePath(path).suffix.lower()


def spares_decoding(array: ChunkedArray) -> bool:
    """Whether other chunks spare decoding for certain; larger ones than small ones may spare calls alone."""
    if not array.predicted_bytes:
        return False
    return not array.takes_small_chunks or array.decoded_at_least_bytes >= _SPARES * array.predicted_bytes


def most_small_chunks(arrays: Iterable[ChunkedArray]) -> ChunkedArray | None:
    """The array whose accesses take many small chunks, in all the most; None: there is none.

    A call for each chunk then takes longer than its bytes do, however they are compressed.
    """
    small = [each for each in arrays if each.takes_small_chunks]
    return max(small, key=attrgetter("chunks_touched"), default=None)


def decodes_small_chunks(groups: Iterable[FileGroup]) -> bool:
    """Whether most of the decoding that a loop waits for is of a store whose chunks are many and small."""
    most = max(groups, key=attrgetter("decode_ms"), default=None)
    known = None if most is None else most.amplification
    return known is not None and most_small_chunks(known.arrays) is not None


def cache_lost(file: FileFacts | None, gone: str) -> Remedy | None:
    """Keep h5py's Dataset objects: HDF5 forgets the chunks that it has decoded with the last of a dataset."""
    arrays = [each for each in file.arrays if each.lost] if file is not None else []
    if file is None or not arrays:
        return None
    touched, lost = sum(each.chunks_touched for each in arrays), sum(each.lost or 0 for each in arrays)
    if lost < _MOSTLY * touched:
        return None
    most = max(arrays, key=attrgetter("lost"))
    objects, accesses = (sum(map(attrgetter(name), arrays)) for name in ("objects", "accesses"))
    text = (
        f"open {most.dataset} of {name_of(file.path)} once in each worker, and keep the Dataset object: "
        f"{objects} were made for {accesses} accesses, and each time HDF5 forgets the chunks that it has "
        f"decoded: at least {lost} of {touched} were decoded again"
    )
    short = f"keep the Dataset object of {most.dataset}: each access loses HDF5's chunk cache"
    evidence: Evidence = {"chunks_lost": float(lost), "chunks_touched": float(touched)}
    return Remedy(short, text, gone, spares_work=True, share=lost / touched, evidence=evidence)


def chunks_now(file: FileFacts) -> str:
    """How many chunks an access takes, and how large they are, of the array that takes most of them."""
    most = max(file.arrays, key=attrgetter("chunks_touched"), default=None)
    if most is None or not most.accesses or not most.chunk_bytes:
        return ""
    each = most.chunks_touched / most.accesses
    return f"an access reads {each:.0f} chunks of {size(most.chunk_bytes)} now" if each >= 2 else ""


def larger_chunks(facts: LoaderFacts, file: FileFacts, name: str, gone: str) -> Remedy | None:
    """Larger chunks, where an access takes many small ones: as many bytes are decoded, in fewer calls."""
    array = most_small_chunks(file.arrays)
    if array is None:
        return None
    each, samples = array.chunks_touched / array.accesses, (facts.samples or 0.0) * facts.batches
    who = "a sample" if samples <= array.accesses <= _ONE_A_SAMPLE * samples else "an access"
    reads = f"{who} reads {each:.0f} chunks of {size(array.chunk_bytes)} ({_shown(array.chunk)})"
    of = f" of {array.dataset}" if array.dataset else ""
    larger = f"chunks of {_shown(array.suggested_chunk)}" if array.suggested_chunk else "larger chunks"
    evidence: Evidence = {"chunks": each, "chunk_bytes": float(array.chunk_bytes)}
    return Remedy(
        f"store {name} in {larger}",
        f"store it in {larger}{of}: {reads} now, and each takes a call",
        gone,
        spares_work=True,
        command=array.command,
        change=Change(stored=CHUNKS, paths=[array.path]) if array.suggested_chunk else None,
        evidence=evidence,
        said=_leading(facts, f"{reads} of {array.path}{f' {array.dataset}' if array.dataset else ''}"),
    )


def _shown(shape: Iterable[int]) -> str:
    return "x".join(map(str, shape))


def _leading(facts: LoaderFacts, said: str) -> str:
    """What a verdict names, where reading and decoding are most of the wait; else nothing."""
    most = max(facts.causes_ms, key=lambda cause: facts.causes_ms[cause], default="")
    return said if most in ("read", "decode") else ""


def read_whole_again(arrays: Iterable[ChunkedArray]) -> list[ChunkedArray]:
    """The arrays that accesses read whole again and again, the one that takes most first.

    A dataset of HDF5 counts with those of the same name in other files.
    """
    named: dict[str, list[ChunkedArray]] = {}
    for each in arrays:
        once = each.complete_once
        if once and each.complete >= max(_AGAIN * once, _ALIKE * each.accesses):
            named.setdefault(each.dataset or each.path, []).append(each)
    return max(named.values(), key=lambda own: sum(map(_read_bytes, own)), default=[])


def _read_bytes(array: ChunkedArray) -> int:
    return array.complete * array.array_bytes


def a_part_of(arrays: Sequence[ChunkedArray]) -> tuple[str, str]:
    """How to read of arrays what a sample uses, in short and as a sentence; or to keep them.

    What a sample uses of an array in memory leaves no trace.
    """
    first = max(arrays, key=attrgetter("array_bytes"))
    name = first.dataset.rpartition("/")[2] or name_of(first.path)
    whole = size(first.array_bytes)
    held = sum(each.array_bytes for each in arrays)
    keep = f"keep what is read: {size(held)} at most in each process"
    if first.filtered and prod(first.chunk) * _IN_PIECES > prod(first.shape):
        return f"read {name} once and keep it: each access decodes all {whole}", keep
    if first.field:
        part = (
            f"read only the rows of {name} that a sample uses, then their field: {name}[i:j][{first.field!r}]"
        )
        why = f"{name}[{first.field!r}] reads all {whole}"
    else:
        part = f"read only the part of {name} that a sample uses, as by {name}[i:j]"
        why = f"each access reads all {whole}"
    return f"{part}: {why}", f"{part}: {why}; or {keep}"


def picked(file: FileFacts, name: str, gone: str) -> Remedy | None:
    """To pick with NumPy, where accesses take rows by lists from arrays that need no decoding."""
    if not file.arrays or not all(each.is_picked for each in file.arrays):
        return None
    accesses, held = sum(each.accesses for each in file.arrays), sum(each.array_bytes for each in file.arrays)
    whole = f", or all of it ({size(held)} in each process that reads)" if held <= _HELD_BYTES else ""
    text = (
        f"read slices of {name}{whole}, and pick rows with NumPy: {accesses} accesses took them by a list or"
        " a mask, which h5py selects piece by piece; nothing of it is compressed"
    )
    short = f"read slices of {name}{', or all of it once,' if whole else ''} and pick rows with NumPy"
    return Remedy(short, text, gone, spares_work=True, evidence={"accesses": float(accesses)})


def read_in_part(file: FileFacts, gone: str) -> Remedy | None:
    """To read a part of an array or to keep it, where accesses read all of it again and again."""
    arrays = read_whole_again(file.arrays)
    if not arrays:
        return None
    short, text = a_part_of(arrays)
    evidence: Evidence = {
        "whole_reads": float(sum(each.complete for each in arrays)),
        "predicted_reads": float(sum(each.complete_once for each in arrays)),
    }
    return Remedy(short, text, gone, spares_work=True, evidence=evidence)


def fitting_chunks(facts: LoaderFacts, file: FileFacts, name: str, gone: str) -> Remedy | None:
    """What ends decoding of chunks: others, in place of those that do not fit; else lighter compression."""
    if (part := read_in_part(file, gone)) is not None:
        return part
    if (fewer := fewer_accesses(facts, file, name, gone)) is not None:
        return fewer
    array = max(file.arrays, key=_spared, default=None)
    if array is not None and spares_decoding(array):
        return _rechunked(facts, file, array, name, gone)
    if (crossing := next(filter(None, map(_crossed, file.arrays)), None)) is not None:
        each, chunk = crossing
        text = (
            f"a sample is no larger than a chunk ({chunk}), and crosses {digits(each, 2)} of them: let "
            "samples begin where chunks begin, or try smaller chunks"
        )
        short = f"begin samples where chunks of {name} do: each crosses {digits(each, 2)}; or smaller chunks"
        return Remedy(short, text, gone, gains=False, spares_work=True, evidence={"chunks": each})
    if (larger := larger_chunks(facts, file, name, gone)) is not None:
        return larger
    if file.arrays and not any(each.filtered for each in file.arrays):
        return None  # neither compressed nor decoded for more than is used
    taken, made = file.read_bytes or 0, file.delivered_bytes or 0
    short, spares_reading = f"store {name} with lighter compression", False
    if taken and made > _INFLATED * taken:
        text = f"store it with lighter compression, or none ({size(taken)} read give {size(made)})"
    elif made and taken > _READ_IN_VAIN * made and not file.arrays and taken < _LOOKED_UP * file.reads:
        # Small reads, and no chunk was seen: what it reads says where its datasets lie.
        opens = file.opens >= facts.batches > 0
        keep = "keep its files open, with their datasets" if opens else "keep its datasets"
        text = f"{keep}: {size(taken)} in {file.reads} reads give {size(made)}"
        short = f"{keep} ({name}): {'samples open them' if opens else 'each sample looks them up'} again"
        return Remedy(short, text, gone, gains=False)
    elif made and taken > _READ_IN_VAIN * made:
        text = (
            f"store it in chunks that match what one sample reads ({size(taken)} are read for {size(made)})"
        )
        short, spares_reading = f"re-chunk {name} to what a sample reads", True
    elif file.arrays and all(
        each.decoded_at_most_bytes <= _INFLATED * each.used_bytes for each in file.arrays
    ):
        text = "if it is compressed, store it with lighter compression (all that is decoded of it is used)"
    else:
        text = "if it is compressed, store it with lighter compression;"
        text += " if it is chunked, let a sample be a chunk"
        short, spares_reading = f"re-chunk or recompress {name}", True
    lighter = None if spares_reading else Change(stored=LIGHTER, paths=[file.path])
    return Remedy(short, text, gone if spares_reading else "", change=lighter)


def fewer_accesses(facts: LoaderFacts, file: FileFacts, name: str, gone: str) -> Remedy | None:
    """Of stores of zarr whose chunks are few and small: its own work for each access takes most of the time.

    What they hold is kept in memory where that is little; else samples are read several at once.
    """
    arrays = [each for one in facts.files if suffix_of(one.path) == ".zarr" for each in one.arrays]
    if suffix_of(file.path) != ".zarr" or most_small_chunks(arrays) is not None:
        return None
    share = _decoded_share(facts, sum(each.decoded_at_most_bytes for each in arrays))
    held = sum(each.array_bytes for each in arrays)
    if share is None or share >= _MOSTLY or not all(each.array_bytes for each in arrays):
        return None
    each = f"{size(sum(map(_an_access, arrays)) / max(1, len(arrays)))} decoded in each access"
    why = f"zarr's own work takes most of its time ({each})"
    evidence: Evidence = {"decoded_share": share, "held_bytes": float(held)}
    chunks = sum(each.array_bytes / max(1, each.chunk_bytes) for each in arrays)
    if held <= _HELD_BYTES and _IN_PIECES * chunks <= sum(each.chunks_touched for each in arrays):
        short = f"hold {name} in memory ({size(held)}): zarr's own work for each access takes most"
        text = f"read it once, in the dataset's __init__, and keep it ({size(held)}): {why}"
        return Remedy(short, text, gone, spares_work=True, evidence=evidence)
    short = f"try to read several samples of {name} at once: zarr's own work for each access takes most"
    text = f"try to read several samples in one access, as in __getitems__: {why}"
    return Remedy(short, text, gone, tries=True, spares_work=True, evidence=evidence)


def _an_access(array: ChunkedArray) -> float:
    return array.decoded_at_most_bytes / max(1, array.accesses)


def _decoded_share(facts: LoaderFacts, decoded_bytes: float) -> float | None:
    """How much of the decoding in the making of batches so many bytes take, about; None: unknown."""
    taken_ms = making_ms(facts, "decode")
    # In a store that is no directory, or where they sleep, zarr's calls may wait for a server.
    afar = any("://" in each.path for each in facts.files)
    sleeps = facts.core_free and facts.threaded and facts.threaded_cpu < _MOSTLY * facts.threaded
    if not taken_ms or not facts.batches or not decoded_bytes or afar or sleeps:
        return None
    return min(1.0, decoded_bytes / _DECODED_BY_MS / facts.batches * facts.batches_per_step / taken_ms)


def _rechunked(facts: LoaderFacts, file: FileFacts, array: ChunkedArray, name: str, gone: str) -> Remedy:
    """Other chunks: of all arrays that are slow to decode, or of the file alone that costs most."""
    chosen, arrays = [file], [array]
    if gone == FILES:
        chosen = [each for each in facts.files if any(map(spares_decoding, each.arrays))]
        arrays = [each for one in chosen for each in one.arrays if spares_decoding(each)]
        if sum(each.decode_ms for each in chosen) < _NEARLY_ALL * facts.causes_ms["decode"]:
            chosen, arrays, name, gone = [file], [array], name_of(file.path), f"{FILES}:{file.path}"
    least, most, used = (
        sum(getattr(each, field) or 0 for each in arrays)
        for field in ("decoded_at_least_bytes", "predicted_bytes", "used_bytes")
    )
    shapes = {_shown(each.suggested_chunk or ()) for each in arrays}
    chunk = f"chunks of {next(iter(shapes))}" if len(shapes) == 1 else "other chunks"
    what = f"its {len(arrays)} arrays" if len(arrays) > 1 else array.dataset or "it"
    text = (
        f"store {what} in {chunk}, as accesses ask for"
        f" ({size(least)} decoded for {size(used)} used; then {size(most)} at most)"
    )
    share = _decoded_share(facts, least - most) if suffix_of(file.path) == ".zarr" else None
    if share is not None and share < 1:
        text += "; zarr's own work for each access stays"
    commands = {each.command for each in arrays}
    return Remedy(
        f"re-chunk {name} to what a sample reads",
        text,
        gone,
        spares_work=True,
        share=1.0 if share is None else share,
        command=commands.pop() if len(commands) == 1 else "",  # one for each file says nothing of the others
        change=Change(stored=CHUNKS, paths=[each.path for each in chosen]),
        evidence={"decoded_bytes": float(least), "predicted_bytes": float(most)},
    )


def _crossed(array: ChunkedArray) -> tuple[float, str] | None:
    """How many chunks an access of one chunk's size takes, and the chunk; None where others fit better."""
    alike = array.access is not None and [*array.access] == [*array.chunk]
    if not alike or not array.accesses or array.chunks_touched < _ACROSS * array.accesses:
        return None
    return array.chunks_touched / array.accesses, _shown(array.chunk)


def _spared(array: ChunkedArray) -> int:
    """The bytes that other chunks would not decode, for certain."""
    return 0 if array.predicted_bytes is None else array.decoded_at_least_bytes - array.predicted_bytes
