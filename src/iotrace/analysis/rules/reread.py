"""Files that are opened or read again and again: keep them open, or keep what was read of them."""

from __future__ import annotations

from operator import attrgetter
from pathlib import PurePath

from iotrace.analysis.results import Change, Evidence, FileGroup, WholeReads
from iotrace.analysis.rules.causes import MOSTLY, Remedy, per_epoch
from iotrace.analysis.rules.chunks import CHUNKED, name_of, suffix_of
from iotrace.analysis.rules.facts.loader import FileFacts, LoaderFacts
from iotrace.analysis.wait.gain_bound import FILES, RESIZED
from iotrace.units import size

_MANY_SAMPLES, _MANY_FRAMES, _PASSES = 16, 8, 4  # of a file, each time that it is opened
_IN_A_ROW = 4  # samples that take the same file
_EACH = 0.9  # of the samples: a worker that left took some along
# To open one is to read its layout: the cause that this is.
_OPENED = {"transform": (CHUNKED - {".zarr"}) | {".zip", ".mdb"}, "decode": frozenset({".tar"})}
_METADATA = frozenset({"zarr.json", ".zarray", ".zgroup", ".zmetadata"})  # of stores of zarr


def frames_sought(
    facts: LoaderFacts, target: FileFacts | FileGroup | None, name: str, gone: str
) -> Remedy | None:
    """Of images of several frames that are read from their begin again and again to seek some of them."""
    group = next((each for each in facts.groups if target is not None and each.path == target.path), None)
    if group is None or group.whole_reads is None or group.pattern is None:
        return None
    frames, whole = facts.making.frames or 0.0, group.whole_reads
    passes = 1 / max(1e-6, 1 - (group.pattern.reread_fraction or 0.0)) * whole.files / whole.times
    if frames < _MANY_FRAMES or passes < _PASSES:
        return None
    short = f"store the frames singly, or take them in order: {frames:.0f} are decoded per opening"
    text = (
        f"store each frame of {name} on its own, or take those of a file in order: {frames:.0f} are decoded "
        f"each time that one is opened, which reads it {passes:.0f} times: to go back is to start again"
    )
    evidence: Evidence = {"frames": frames, "reads_of_whole": passes}
    return Remedy(short, text, gone, RESIZED, at_most=True, spares_work=True, evidence=evidence)


def kept(
    facts: LoaderFacts,
    target: FileFacts | FileGroup | None,
    name: str,
    gone: str,
    formats: set[str],
    decoded: Change | None,
) -> Remedy | None:
    """Of files that are read whole for each sample: map arrays; keep others, where memory holds them.

    Else keep the last one, where samples take it in a row; or map what is decoded once, as `decoded` does.
    """
    found = next((each.whole_reads for each in facts.groups if target and each.path == target.path), None)
    if found is None:
        return None
    one, each = (name, "it is") if found.files == 1 else (f"each file of {name}", "each file is")
    times = (
        f"{each} read whole {found.times_per_pass:.0f} times {per_epoch(facts.epochs, facts.epochs_ended)}"
    )
    evidence: Evidence = {
        "whole_reads": float(found.times),
        "predicted_reads": float(found.files * found.readers),
    }
    if formats == {".npy"}:
        text = f"map {one} (numpy.load(..., mmap_mode='r')), so that a sample reads its own part: {times}"
        return Remedy(
            f"map {name}: numpy.load(mmap_mode='r')", text, gone, spares_work=True, evidence=evidence
        )
    if not found.fits:
        last = _last_kept(name, gone, times, found, evidence)
        if last is not None or decoded is None:
            return last
        text = (
            f"store {name} decoded, as by numpy.save, and map it: a sample then reads its own part; {times}"
        )
        short = f"store {name} decoded, and map it"
        return Remedy(short, text, gone, RESIZED, spares_work=True, change=decoded, evidence=evidence)
    text = f"read {one} once and keep it (functools.cache, or in the dataset's __init__): {times}"
    if found.given_bytes is not None:
        text += f"; {size(found.given_bytes)} or more held in each process that reads"
    # What is kept may be what the transform made of it.
    short = f"read {one} once and keep it"
    # The first reads stay; a replay is of the measured steps, most of which come behind these.
    share = 1.0 if facts.gains_ms else max(0.0, 1 - found.files * found.readers / found.times)
    return Remedy(short, text, gone, RESIZED, spares_work=True, share=share, evidence=evidence)


def _last_kept(name: str, gone: str, times: str, found: WholeReads, evidence: Evidence) -> Remedy | None:
    """Of files that memory does not hold all at once, where one sample after the other takes the same one."""
    if found.in_turn is None or found.times < _IN_A_ROW * found.in_turn:
        return None
    row = found.times / found.in_turn
    return Remedy(
        f"keep the last file of {name}: lru_cache(maxsize=1)",
        f"keep the file of {name} that a process has read last (functools.lru_cache(maxsize=1)): {row:.0f} "
        f"samples in a row take the same one, and {times}",
        gone,
        RESIZED,
        spares_work=True,
        share=1 - found.in_turn / found.times,
        evidence={**evidence, "in_a_row": row},
    )


def opened_again(facts: LoaderFacts, cause: str) -> Remedy | None:
    """Of a file of chunks or members that is opened for every sample: its layout is read anew each time."""
    costs_ms = attrgetter(f"{cause}_ms")
    most = max(facts.files, key=costs_ms, default=None)
    if most is None or facts.samples is None or costs_ms(most) < MOSTLY * facts.causes_ms[cause]:
        return None
    made = facts.samples * facts.batches
    if suffix_of(most.path) not in _OPENED[cause] or made < _MANY_SAMPLES or most.opens < _EACH * made:
        return None
    name, gone = name_of(most.path), "" if cause == "transform" else f"{FILES}:{most.path}"
    text = f"{name} is opened {most.opens} times for {made:.0f} samples: open it once in each worker"
    evidence: Evidence = {"opens": float(most.opens)}
    keeps = Change(kept_open=[most.path]) if suffix_of(most.path) == ".tar" else None
    return Remedy(
        f"keep {name} open: each sample opens it", text, gone, RESIZED, change=keeps, evidence=evidence
    )


def stores_opened_again(facts: LoaderFacts) -> Remedy | None:
    """Of stores of zarr whose metadata each sample reads: it opens them, and zarr's own thread does that."""
    made = (facts.samples or 0.0) * facts.batches
    told = [each for each in facts.files if PurePath(each.path).name in _METADATA]
    again = [each for each in told if each.opens >= max(_EACH * made, _MANY_SAMPLES)]
    if not made or not again:
        return None
    store = min((PurePath(each.path).parent for each in again), key=lambda each: len(each.parts))
    name, opens = name_of(f"{store}"), sum(each.opens for each in again)
    text = (
        f"open {name} and its arrays once in each worker, and keep them: their metadata is opened {opens}"
        f" times for {made:.0f} samples"
    )
    short = f"open {name} once in each worker, with its arrays, and keep it"
    return Remedy(short, text, spares_work=True, evidence={"opens": float(opens)})
