"""Whether two sessions did the same work, and what differs where they did not."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from itertools import takewhile

from iotrace.analysis.compare.basis import Basis, Rank

# Of a few files each run reads all; of many each may draw others, from the same directories.
_FEW_FILES = 32
_LONGEST = 60  # characters of a command in a sentence
_SHOWN_BEFORE = 10  # of them, before the first that differs


def differences(one: Basis, other: Basis, ranks: tuple[Rank, Rank]) -> Iterator[str]:
    """Yield what makes the work of two sessions different: command, world size, batch size, data."""
    commands = _command(one.session.argv), _command(other.session.argv)
    if commands[0] != commands[1]:
        yield f"command: {' / '.join(_where_they_differ(*commands))}"
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


def _where_they_differ(one: list[str], other: list[str]) -> list[str]:
    """Show two commands; of long ones the words that differ, of long words their parts that do."""
    texts = [" ".join(shlex.join(argv).split()) for argv in (one, other)]
    if max(map(len, texts)) <= _LONGEST:
        return texts
    begin = _alike(one, other)
    end = _alike(one[begin:][::-1], other[begin:][::-1])
    differing = [shlex.join(argv[begin : len(argv) - end]) or "nothing" for argv in (one, other)]
    texts = [" ".join(text.split()) for text in differing]
    if max(map(len, texts)) > _LONGEST:
        alike = max(0, _alike(*texts) - _SHOWN_BEFORE)
        texts = [_cut(text[alike:], bool(alike)) for text in texts]
        begin = 0 if alike else begin
    return [f"{'... ' if begin else ''}{text}{' ...' if end else ''}" for text in texts]


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """Count the items with which both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _cut(text: str, begun: bool) -> str:
    """Mark that a text began before, and cut its end."""
    text = f"...{text}" if begun else text
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
