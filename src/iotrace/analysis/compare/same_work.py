"""Whether two sessions did the same work, and what differs where they did not."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

from iotrace.analysis.compare.basis import Basis, Rank

# Of a few files each run reads all; of many each may draw others, from the same directories.
_FEW_FILES = 32
_LONGEST = 60  # characters of a command in a sentence


def differences(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> list[str]:
    """List what makes the work of two sessions different: command, world size, batch size, data."""
    return list(_differences(one, other, ranks))


def _differences(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> Iterator[str]:
    commands = _command(one.session.argv), _command(other.session.argv)
    if commands[0] != commands[1]:
        yield f"command: {_shown(commands[0])} / {_shown(commands[1])}"
    sizes = [rank.world_size or len(side.ranks) for rank, side in zip(ranks, (one, other), strict=True)]
    if sizes[0] != sizes[1]:
        yield f"world size: {sizes[0]} / {sizes[1]}"
    batches = [_samples_per_step(rank) for rank in ranks]
    if None not in batches and batches[0] != batches[1]:
        yield f"batch size: {batches[0]} / {batches[1]}"
    datasets = [rank.primary.dataset if rank.primary else "none" for rank in ranks]
    if datasets[0] != datasets[1]:
        yield f"dataset: {datasets[0]} / {datasets[1]}"
    yield from _data(*(_files(rank) for rank in ranks))


def _command(argv: list[str]) -> list[str]:
    """The command without the directory of its program: environments move."""
    return [os.path.basename(argv[0]), *argv[1:]] if argv else []


def _shown(argv: list[str]) -> str:
    text = " ".join(shlex.join(argv).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _samples_per_step(rank: Rank) -> int | None:
    primary = rank.primary
    if primary is not None and primary.batch_size is not None:
        return primary.batch_size
    steps = rank.steps
    if not steps.per_second or steps.samples_per_second is None:
        return None
    return round(steps.samples_per_second / steps.per_second)


def _files(rank: Rank) -> set[str]:
    return {file.path for file in rank.io.files if file.reads or file.maps} if rank.io else set()


def _data(one: set[str], other: set[str]) -> Iterator[str]:
    if not one or not other or one & other:
        return
    directories = [{os.path.dirname(path) for path in files} for files in (one, other)]
    few = min(len(one), len(other)) <= _FEW_FILES
    if few or not directories[0] & directories[1]:
        shown = [min(files) for files in (one, other)]
        yield f"data: no file was read in both ({shown[0]} / {shown[1]})"
