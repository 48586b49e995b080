"""Arrays in memory maps: what a sample takes of them, and how the kernel reads it."""

from __future__ import annotations

from operator import attrgetter

from iotrace.analysis.results import Evidence, MappedReads
from iotrace.analysis.rules.causes import MOSTLY, Remedy
from iotrace.analysis.rules.chunks import name_of
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.wait.gain_bound import RESIZED
from iotrace.units import size


def read_across(facts: LoaderFacts, cause: str) -> Remedy | None:
    """Of a memory map whose samples are columns: their elements lie far from each other."""
    groups = (each for each in facts.groups if each.amplification and each.amplification.mapped)
    most = max(groups, key=attrgetter(f"{cause}_ms"), default=None)
    mapped = None if most is None or most.amplification is None else most.amplification.mapped
    if most is None or mapped is None or mapped.piece_bytes is None or mapped.gap_bytes is None:
        return None
    if (getattr(most, f"{cause}_ms") or 0.0) < MOSTLY * facts.causes_ms[cause]:
        return None
    if (mapped.apart_fraction or 0.0) < MOSTLY:
        return None
    name, evidence = name_of(most.path), {"apart_fraction": mapped.apart_fraction or 0.0}
    pieces = f"{size(mapped.piece_bytes)} every {size(mapped.gap_bytes)}"
    text = (
        f"a sample takes {pieces} of {name}, a column: store the array transposed, so that what a sample "
        "takes lies in one piece"
    )
    short = f"store {name} transposed: a sample takes {pieces} (a column)"
    return Remedy(short, text, most=RESIZED, evidence={**evidence})


def single_pages(name: str, mapped: MappedReads) -> Remedy:
    """Whether many small reads are faster than few large ones is the storage's; hence no gain is told."""
    predicted = mapped.predicted_bytes or 0
    text = (
        f"the kernel reads much more than the pages of {name} that are needed: try single pages "
        f"(data._mmap.madvise(mmap.MADV_RANDOM), then {size(predicted)} at most), and compare"
    )
    evidence: Evidence = {"predicted_bytes": float(predicted), "major_faults": float(mapped.major_faults)}
    short = f"try single pages of {name}: data._mmap.madvise(mmap.MADV_RANDOM)"
    return Remedy(short, text, gains=False, tries=True, spares_work=True, evidence=evidence)


def mapped_reads(facts: LoaderFacts, path: str) -> MappedReads | None:
    """What was read of a memory map; None where the file is none."""
    known = [group.amplification for group in facts.groups if group.path == path and group.amplification]
    return known[0].mapped if known else None
