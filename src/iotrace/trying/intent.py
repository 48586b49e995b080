"""What a trial is about to do, in lines: said before anything is written or run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence

from iotrace.analysis.results import LIGHTER, UNPACKED
from iotrace.session.masks import masked
from iotrace.trying.copies import Job
from iotrace.trying.fixes import Choice
from iotrace.trying.program import Program
from iotrace.trying.proof import FEWEST_PAIRS
from iotrace.units import counted, size, time_span

_MOST_NAMED = 3


def intent_of(
    choice: Choice, jobs: Sequence[Job], program: Program, most_runs: int, steps: int | None
) -> list[str]:
    """Say what is tried, and what that does to the user's files."""
    found = [f"tries: {'; '.join(fix.text for fix in choice.fixes)}"]
    if jobs:
        copied = [os.path.relpath(job.source, program.working_directory) for job in jobs]
        what = copied[0] if len(copied) == 1 else counted(len(copied), "file")
        found.append(f"copies {what}, by {program.python}; the original stays as it is")
    took = f", recorded in {time_span(program.seconds)}" if program.seconds else ""
    ended = f", each ended after {steps} steps" if steps else ""
    least = 2 * FEWEST_PAIRS
    times = f"{least} times" if most_runs < least + 2 else f"{least} to {most_runs} times"
    found.append(f"runs {times}{took}{ended}: {shlex.join(masked(program.command))}")
    found += _needs(jobs, program.seconds, least, max(least, most_runs), bool(steps))
    return [*found, *_writes(jobs, program)]


def _needs(
    jobs: Sequence[Job], seconds: float | None, least: int, most: int, are_ended: bool
) -> Iterator[str]:
    """Say about how long it takes and how much disk, as far as that is known beforehand."""
    if seconds:
        spans = [time_span(count * seconds) for count in dict.fromkeys((least, most))]
        shorter = "; less where runs are ended before" if are_ended else ""
        yield f"takes about {' to '.join(spans)} where a run takes as long as the recorded one{shorter}"
    if jobs:
        held = size(sum(_bytes_at(job.source) for job in jobs))
        unpacks = any(job.how in (UNPACKED, LIGHTER) for job in jobs)
        larger = "; decoded, it may take several times as much" if unpacks else ""
        yield f"needs disk for the copy: the original has {held}{larger}"


def _bytes_at(path: str) -> int:
    if not os.path.isdir(path):
        return os.path.getsize(path)
    inside = (os.path.join(root, name) for root, _, names in os.walk(path) for name in names)
    return sum(os.lstat(each).st_size for each in inside)


def _writes(jobs: Sequence[Job], program: Program) -> list[str]:
    """Say what a run writes: what the recorded one wrote; data that it made is there now."""
    if program.wrote is None:
        return ["what a run writes is not known: the session recorded no calls"]
    sources = {job.source for job in jobs}
    made = [path for path in program.wrote if _place(path, program) in sources]
    others = [path for path in program.wrote if path not in made]
    found = []
    if made:
        what = made[0] if len(made) == 1 else counted(len(made), "file")
        found.append(f"the recorded run made its data, {what}: a run that makes it anew ends the trial")
    if others:
        left = len(others) - _MOST_NAMED
        more = f" and {left} more" if left > 0 else ""
        found.append(f"each run writes what the recorded one wrote: {', '.join(others[:_MOST_NAMED])}{more}")
    return found or ["the recorded run wrote no file that is still there"]


def _place(path: str, program: Program) -> str:
    return os.path.realpath(os.path.join(program.working_directory, path))
