"""What samples do again and again with files, where once would do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from iotrace.analysis.results import (
    ASKING,
    DATABASES,
    DECODING,
    LISTING,
    OPENING,
    READING_AGAIN,
    ChunkedArray,
    Evidence,
    RepeatedWork,
    SampleCall,
)
from iotrace.analysis.rules.chunks import CHUNKED, WHOLE_AGAIN, a_part_of, read_whole_again, suffix_of
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.units import counted, percent, size

_NAMED = 2  # files that a sentence names; of more their directory
_MOST = 0.5  # of a sample's time with the files
_MUCH = 0.25  # of a file
_SOUND = (".wav", ".flac", ".w64", ".rf64", ".aiff", ".aif", ".au", ".caf", ".ogg")
# By library: files that it can seek in, and how it reads a part of one, in short and with more.
_PARTS = {
    "soundfile": (_SOUND, "sf.read(path, start=, stop=)", " (librosa.load: offset=, duration=)"),
    "torchaudio": (_SOUND, "load(path, frame_offset=...)", ", with num_frames="),
    "rasterio": ((".tif", ".tiff"), "read(window=Window(...))", ""),
    "nibabel": ((".nii",), "image.dataobj[..., i:j]", ""),
}
_FIRST = "IO300"  # before who takes CPUs: what is not done needs none
_VIDEOS = (".avi", ".mp4", ".mkv", ".mov", ".webm", ".mpg", ".mpeg", ".m4v", ".wmv", ".ts")
_EACH_FRAME = ("av.InputContainer.decode", "cv2.VideoCapture.read")  # one call for each frame
_MANY_FRAMES = 2
_LISTED_ARCHIVE = ".zip"  # which names its members at its end; read when it is opened
# A window lies across four tiles of its own size; tiles are worth it where they spare most of the decoding.
_CROSSED, _SPARED = 4, 0.5
_LOSSLESS = ("deflate", "lzw", "zstd", "lzma", "packbits")  # which a copy may be compressed with again
_TIFF = (".tif", ".tiff")
_PACKED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".lz4", ".7z")
_LISTED = {
    "kind": LISTING,
    "paths": ["d/imgs", "d/masks"],
    "files": 2,
    "entries": 6000,
    "samples_fraction": 1.0,
    "ms_per_sample": 14.0,
    "of_ms_per_sample": 16.0,
    "wait_ms": 50.0,
    "gain_ms": 52.0,
}
_FILE = {**_LISTED, "paths": ["d/a.csv"], "files": 1, "entries": None}
_STRIPS = {
    **_FILE,
    "kind": DECODING,
    "paths": ["d/a.tif"],
    "read_fraction": 1.0,
    "decoded_bytes": 32 << 20,
    "given_fraction": 0.016,
    "block": [2048, 2048],
}
_PLAUSIBLE = 0.25  # of the wait for decoding: what reading and decoding have of it at least
_MANY = [f"d/{number}.h5" for number in range(20)]


@rule("IO407", "repeated-work", "rank")
@fires(
    {"repeated": [_LISTED]},
    {"repeated": [{**_FILE, "kind": READING_AGAIN}]},
    {"repeated": [{**_FILE, "kind": READING_AGAIN, "read_fraction": 0.5}]},
    {"repeated": [{**_FILE, "kind": READING_AGAIN, "paths": ["d/a.zip"], "read_fraction": 0.05}]},
    {"repeated": [{**_FILE, "kind": DECODING, "paths": ["d/a.mp4"], "read_fraction": 0.5}]},
    {"repeated": [{**_FILE, "kind": DECODING, "paths": ["d/a.sqlite"]}]},
    {"repeated": [_STRIPS]},
    {
        "repeated": [{**_FILE, "kind": DECODING, "paths": ["d/a.h5"]}],
        "file_groups": [{"path": "d/a.h5", "amplification": {"arrays": [WHOLE_AGAIN]}}],
    },
    {"repeated": [{**_FILE, "kind": DECODING, "paths": ["d/a.nc"]}]},
    {"repeated": [{**_FILE, "kind": OPENING, "paths": _MANY, "files": 20}]},
    {"repeated": [{**_FILE, "kind": ASKING, "paths": ["d"]}]},
)
@silent(
    {"repeated": [{**_LISTED, "wait_ms": 4.0}]},
    {"repeated": [{**_LISTED, "samples_fraction": 0.1}]},
    {
        "repeated": [{**_FILE, "kind": DECODING, "paths": ["d/a.h5"]}],
        "file_groups": [
            {
                "path": "d/a.h5",
                "amplification": {"arrays": [{**WHOLE_AGAIN, "suggested_chunk": [1, 1024]}]},
            }
        ],
    },
    {"repeated": [{**_FILE, "kind": DECODING}], "causes_ms": {"transform": 58.0, "decode": 1.0}},
)
def repeated_work(
    facts: RankFacts, *, least_samples: float = 0.5, most_of_sample: float = 0.5
) -> Iterator[Finding]:
    """Samples do again and again with files what once would do.

    They list the same directories, read the same index, or read a file from its start to their own part,
    decode the same video or compressed archive for one part of it, open the same file and read its layout, or
    ask whether files exist. The time is that of the calls, and of what the sample does after them until it
    turns to another file, such as parsing rows. From half of a sample's time on, this is a main cause.

    Remedy: make the list or read the index once, in the dataset's `__init__`; read only the part of a sound
    or an image that is used, where its library can; unpack archives and videos ahead of training, or seek in
    videos whose keyframes lie close; give a database an index of what is asked for; open files once in each
    worker, and keep them open, and what was read of their layout.
    """
    causes_ms = facts.report.data_wait.causes_ms
    decoding_ms = causes_ms.get("decode", 0.0) + causes_ms.get("read", 0.0)
    for work in facts.report.repeated:
        # A map of a file lies in memory while the sample computes: that is no decoding.
        if work.kind == DECODING and decoding_ms < _PLAUSIBLE * work.wait_ms:
            continue
        arrays = _arrays(work, facts)
        if any(each.suggested_chunk for each in arrays):
            continue  # other chunks spare it, of which IO102 tells
        if work.samples_fraction >= least_samples and facts.is_significant(work.wait_ms):
            whole = read_whole_again(arrays)
            remedy, how = a_part_of(whole) if whole else _REMEDIES[work.kind](work)
            if not whole and work.kind == DECODING:
                remedy, how = _read_a_part(work, facts, remedy, how)
            is_main_cause = work.ms_per_sample >= most_of_sample * work.of_ms_per_sample
            yield Finding(
                text=_text(work, facts),
                remedy=remedy,
                how=how,
                evidence=_evidence(work),
                cost_ms=work.wait_ms,
                gain_ms=None if work.gain_ms is None else _spared(work) * work.gain_ms,
                most_ms=work.most_ms,
                spares=work.spares_fraction,
                is_main_cause=is_main_cause,
                spares_work=True,
                silences=("IO101", "IO102", "IO103") if work.kind == DECODING else ("IO101", "IO103"),
                place=_FIRST if is_main_cause else "",
            )


def _arrays(work: RepeatedWork, facts: RankFacts) -> list[ChunkedArray]:
    """The arrays of files that samples decode again, as far as accesses to them were seen."""
    if work.kind != DECODING:
        return []
    known = (group.amplification for group in facts.report.file_groups)
    return [each for own in known if own for each in own.arrays if each.path in work.paths]


def _text(work: RepeatedWork, facts: RankFacts) -> str:
    primary = facts.report.primary
    who = (primary.item if primary is not None else None) or "the dataset"
    names = _named(work)
    does = {
        LISTING: f"listing {names}",
        READING_AGAIN: f"reading {_share(work)} {names} again",
        DECODING: _decoding(work, names, facts.report.sample_calls),
        OPENING: f"opening {names} again, before it reads data",
        ASKING: f"asking for files in {names} that it does not open",
    }[work.kind]
    if work.entries:
        does += f" ({work.entries} entries{' each' if work.files > 1 else ''})"
    rare = "" if work.samples_fraction >= 0.9 else f", in {percent(work.samples_fraction)} of the samples"
    of = f"{work.ms_per_sample:.1f} of the {work.of_ms_per_sample:.1f} ms of a sample"
    name, _, line = (work.site or "").partition(" (")
    where = f"at {line[:-1]}" if who.startswith(f"{name} (") else f"in {work.site}"
    return f"{who} spends {of} {does}{rare}{_blocks(work)}{f', most of it {where}' if work.site else ''}"


def _decoding(work: RepeatedWork, names: str, calls: Iterable[SampleCall]) -> str:
    """Say what it decodes; how much of a file it reads for that is seen, not how much of it is decoded."""
    verb = "scanning" if _is_database(work) else "decoding"
    if _reads_all(work):
        return f"{verb} {_share(work)} {names} again{_frames(work, calls)}"
    return f"{verb} {names} (it reads {percent(work.read_fraction or 0.0)} of that){_frames(work, calls)}"


def _frames(work: RepeatedWork, calls: Iterable[SampleCall]) -> str:
    """How many frames of a video its library gives for each sample, as far as each is a call."""
    if not work.paths[0].endswith(_VIDEOS):
        return ""
    frames = max((each.per_sample for each in calls if each.name in _EACH_FRAME), default=0.0)
    return f", about {frames:.0f} frames" if frames >= _MANY_FRAMES else ""


def _is_tiled_better(work: RepeatedWork) -> bool:
    """Whether samples decode much more of rasters in one block, or in strips, than they are given."""
    if work.block is None or work.given_fraction is None:
        return False
    return _CROSSED * work.given_fraction <= _SPARED * (work.read_fraction or 0.0)


def _spared(work: RepeatedWork) -> float:
    """How much of it a remedy spares, about: tiles leave those that a window lies across."""
    left = _CROSSED * (work.given_fraction or 0.0) / (work.read_fraction or 1.0)
    return 1 - left if _is_tiled_better(work) else 1.0


def _blocks(work: RepeatedWork) -> str:
    """Say why windows of rasters take so long."""
    if work.block is None or not _is_tiled_better(work):
        return ""
    block = "x".join(map(str, work.block))
    whole_bytes = (work.decoded_bytes or 0) / work.files
    decoded = size((work.read_fraction or 1.0) * whole_bytes)
    used = size((work.given_fraction or 0.0) * whole_bytes)
    return f": in blocks of {block}, {decoded} decoded for {used}"


def _is_database(work: RepeatedWork) -> bool:
    return work.paths[0].endswith(DATABASES)


def _share(work: RepeatedWork) -> str:
    """What a sample reads of a file."""
    return "the whole of" if _reads_all(work) else f"{percent(work.read_fraction or 0.0)} of"


def _reads_all(work: RepeatedWork) -> bool:
    return work.read_fraction is None or work.read_fraction >= 0.9


def _named(work: RepeatedWork) -> str:
    """The files' paths; of many their directory."""
    end = "/" if work.kind in (LISTING, ASKING) else ""
    if len(work.paths) <= _NAMED:
        return " and ".join(f"{path.rstrip('/')}{end}" for path in work.paths)
    within = os.path.commonpath(work.paths) if not _is_mixed(work.paths) else ""
    what = counted(work.files, "directory" if end else "file", "directories" if end else "files")
    if not within:
        return what
    return f"{what} in {within}/" if end else f"one of {work.files} files in {within}/"


def _is_mixed(paths: list[str]) -> bool:
    """Whether some are relative, and some are not: these have no common directory."""
    return len({os.path.isabs(path) for path in paths}) > 1


def _what(work: RepeatedWork, many: str) -> str:
    """A short name for what a remedy changes."""
    return os.path.basename(work.paths[0].rstrip("/")) if len(work.paths) == 1 else many


def _list_once(work: RepeatedWork) -> tuple[str, str]:
    what = f"{_what(work, 'the directories')}/" if len(work.paths) == 1 else "the directories"
    return (
        f"list {what} once, in __init__",
        f"list {what} once, in the dataset's __init__, and keep the names",
    )


def _read_once(work: RepeatedWork) -> tuple[str, str]:
    what, it = _what(work, "the files"), "it" if len(work.paths) == 1 else "them"
    if work.paths[0].endswith(_LISTED_ARCHIVE):
        keep = f"keep {what} open: each sample opens {it} and reads the list of members"
        return keep, f"{keep}; open {it} once in each worker, at the first sample"
    return (
        f"read {what} once, in __init__, and keep what is made of {it}",
        f"read {what} once, in the dataset's __init__, and keep what was made of {it}",
    )


def _room(work: RepeatedWork) -> str:
    """Say what it takes to keep files decoded, as far as their headers or what was given tell."""
    if work.decoded_bytes is not None:
        return f": {size(work.decoded_bytes)} in each process"
    if work.kept_bytes is None:
        return ""
    if work.stored_bytes is None or work.kept_bytes > work.stored_bytes:
        return f": {size(work.kept_bytes)} or more in each process"
    return f": {size(work.kept_bytes)} as stored, decoded more"


def _decode_once(work: RepeatedWork) -> tuple[str, str]:
    what = _what(work, "the files")
    if work.paths[0].endswith(_VIDEOS):
        return (
            "store frames as images; near keyframes gain less",
            f"store the frames of {what} as images; or, for less gain, seek to those that a sample uses "
            "(PyAV's seek, decord, torchcodec) in videos whose keyframes lie close (ffmpeg -i IN -g 8 OUT): "
            "to seek is to decode all from the keyframe before",
        )
    if _is_database(work):
        return (
            f"create an index on the columns of {what} by which samples ask",
            f"make an index (CREATE INDEX) on the columns of {what} by which samples ask, or ask by its key: "
            "without one a query scans its table",
        )
    if work.paths[0].endswith(_PACKED):
        return f"unpack {what} once, ahead of training", f"unpack {what} once, ahead of training"
    it, room = "it" if len(work.paths) == 1 else "them", _room(work)
    if _is_tiled_better(work):
        compress = f" -co COMPRESS={work.compression.upper()}" if work.compression in _LOSSLESS else ""
        return (
            f"store {what} in tiles: gdal_translate -co TILED=YES",
            f"store {what} in tiles (gdal_translate -co TILED=YES{compress} FROM TO): a window then decodes "
            f"its own tiles; or decode {it} once and keep {it}{room}",
        )
    if suffix_of(work.paths[0]) in CHUNKED:
        part = f"open {what} once in each worker, and read only the part that a sample uses"
        return part, f"{part}, or decode {it} once and keep {it}{room}"
    part = ""
    if suffix_of(work.paths[0]) in _TIFF:
        part = (
            f"; where a sample uses a part, store {it} in tiles and read that (rasterio's window=, tifffile's"
        )
        part += " aszarr=True)"
    return (
        f"decode {what} once and keep {it}{room}",
        f"decode {what} once, ahead of training, and keep what is used of {it}{room}{part}",
    )


def _read_a_part(work: RepeatedWork, facts: RankFacts, keep: str, how: str) -> tuple[str, str]:
    """Read no more than is used, where the library that reads these files can; else keep them.

    Workers that end with each epoch lose what they keep.
    """
    primary = facts.report.primary
    if primary is not None and primary.workers and primary.persistent_workers is False and "keep" in keep:
        how += ", in workers that stay (persistent_workers=True)"
        keep = keep.replace(" and keep", ", with persistent_workers=True, and keep")
    call, more = _call_for_a_part(work, facts)
    if not call or _uses_all(work, facts):
        return keep, how
    part = f"read only what is used: {call}"
    return f"{part}; or keep all decoded", f"{part}{more}, not the whole file; or, if all is used, {how}"


def _call_for_a_part(work: RepeatedWork, facts: RankFacts) -> tuple[str, str]:
    """How the library that most of it is in reads a part of such a file; empty: not known."""
    for call in sorted(facts.report.sample_calls, key=lambda each: -each.per_sample * each.ms_each):
        formats, part, more = _PARTS.get(call.name.partition(".")[0], ((), "", ""))
        is_most = call.depth and call.per_sample * call.ms_each >= _MOST * work.ms_per_sample
        if is_most and suffix_of(work.paths[0]) in formats:
            return part, more
    return "", ""


def _uses_all(work: RepeatedWork, facts: RankFacts) -> bool:
    """Whether a sample is as large as much of a file: then it may be all of that."""
    primary = facts.report.primary
    if primary is None or not primary.batch_bytes_mean or not primary.batch_size or not work.kept_bytes:
        return False
    return primary.batch_bytes_mean / primary.batch_size >= _MUCH * work.kept_bytes / work.files


def _keep_open(work: RepeatedWork) -> tuple[str, str]:
    what, it = _what(work, "the files"), "it" if len(work.paths) == 1 else "each"
    return (
        f"keep {what} open, with its keys: each sample opens {it}",
        f"open {what} once in each worker, at the first sample, and keep the handle and the list of keys",
    )


def _ask_once(work: RepeatedWork) -> tuple[str, str]:
    return (
        "look for files once, in __init__",
        "look for files once, in the dataset's __init__, and keep the list of those that are there",
    )


_REMEDIES = {
    LISTING: _list_once,
    READING_AGAIN: _read_once,
    DECODING: _decode_once,
    OPENING: _keep_open,
    ASKING: _ask_once,
}


def _evidence(work: RepeatedWork) -> Evidence:
    found = {"ms_per_sample": work.ms_per_sample, "of_ms_per_sample": work.of_ms_per_sample}
    return {**found, "files": float(work.files), "samples_fraction": work.samples_fraction}
