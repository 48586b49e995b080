"""Rasters that samples decode again: their size when decoded, the block of each, what a sample is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from iotrace.sources.paths import Paths
from iotrace.sources.records import RasterInfo
from iotrace.sources.session import Rank

_TIFF = "GTiff"


def rasters_of(rank: Rank, paths: Paths) -> dict[str, RasterInfo]:
    """The rasters that a rank's processes read, by path."""
    told = (info for process in rank.processes for info in process.of_type(RasterInfo))
    return {paths.shown(info.path): info for info in told}


def of_rasters(given: Iterable[tuple[str, float]], rasters: Mapping[str, RasterInfo]) -> dict[str, Any]:
    """What is known of files, by path, of which a sample is given so many bytes; nothing unless of all."""
    taken = [(rasters.get(path), each_bytes) for path, each_bytes in given]
    known = [info for info, _ in taken if info is not None]
    decoded_bytes = sum(info.decoded_bytes for info in known)
    if not known or len(known) < len(taken) or not decoded_bytes:
        return {}
    found: dict[str, Any] = {
        "decoded_bytes": decoded_bytes,
        "given_fraction": min(1.0, sum(each_bytes for _, each_bytes in taken) / decoded_bytes),
    }
    blocks = {(*info.block,) for info in known}
    # A strip is as wide as its image; of tiles, a window takes its own.
    in_strips = all(info.driver == _TIFF and info.block[1] >= info.shape[1] for info in known)
    if in_strips and len(blocks) == 1:
        compressions = {info.compression for info in known}
        found["block"] = [*blocks.pop()]
        found["compression"] = compressions.pop() if len(compressions) == 1 else ""
    return found
