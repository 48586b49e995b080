"""Find processes that compute without a step: on a CPU all the time, in one place of the program.

Such a process may be right: a step may be long. So it is called what it is, and never a hang.
"""

from __future__ import annotations

import re

from iotrace.launch.telemetry.hangs import blocked
from iotrace.launch.telemetry.hangs.progress import Progress
from iotrace.launch.telemetry.hangs.telling import function_of, is_foreign

LEAST_NS = 60_000_000_000  # without a batch
DUMPS = 3  # alike, one behind the other
MOST_DUMPS = 6  # of a process, in its life
_BUSY = 0.9  # of the time: on a CPU, or ready for one
# What takes as long as it likes: compilers, what writes checkpoints, and functions whose names say so.
_LONG = (
    *("/torch/_dynamo/", "/torch/_inductor/", "/torch/_functorch/", "/torch/export/", "/triton/"),
    *("/torch/serialization.py", "/torch/distributed/checkpoint/", "/safetensors/", "/pickle.py"),
)
_VALIDATES = ("val", "valid", "validate", "validation", "eval", "evaluate", "evaluation", "test", "predict")
_LONG_WORDS = frozenset({*_VALIDATES, "save", "checkpoint", "compile", "export"})
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


class Computing:
    """What the processes of a loop were in at each sample: `stacks` by pid, the dumps in order."""

    def __init__(self) -> None:
        self.stacks: dict[int, list[list[str]]] = {}
        self._used_ns: dict[int, int] = {}
        self._written = -1

    def busy(self, chain: list[int], passed_ns: int) -> set[int]:
        """Return the processes whose main thread has been on a CPU, or ready for one, since the last call."""
        used_ns = {pid: used for pid in chain if (used := blocked.wanted_cpu_ns(pid)) is not None}
        before, self._used_ns = self._used_ns, used_ns
        least_ns = _BUSY * passed_ns
        return {pid for pid, used in used_ns.items() if pid in before and used - before[pid] >= least_ns}

    def forget(self) -> None:
        """Forget the dumps: something else has happened."""
        self.stacks.clear()

    def judge(self, busy: set[int], known: dict[int, Progress]) -> bool:
        """Ask each busy process for its stack; say whether all were in one place three times."""
        written = sum(each.written() for each in known.values())
        if written != self._written or not busy <= known.keys():
            self._written = written  # a sample, a forward pass, a step: it gets on
            self.forget()
            return False
        if self.stacks.keys() - busy:
            self.forget()
        for pid in busy:
            stack = dump(known[pid])
            if not stack or takes_long(stack):
                self.forget()
                return False
            self.stacks.setdefault(pid, []).append(stack)
        return all(place(self.stacks[pid][-DUMPS:]) for pid in busy)


def dump(progress: Progress, most: int = MOST_DUMPS) -> list[str]:
    """Ask a process for its stack; empty where it was asked `most` times, or does not say."""
    if progress.stacks is None or progress.dumps >= most:
        return []
    progress.dumps += 1
    before = progress.dumped
    if not blocked.ask_for_stacks(progress.pid, progress.directory, progress.stacks, before):
        return []
    stack, progress.dumped = blocked.stack_of(progress.directory, before)
    return stack


def place(dumps: list[list[str]]) -> list[str]:
    """Return the program's frames that `DUMPS` dumps share, innermost first; empty where they are not alike.

    Alike: the same calls, each from the same line. Within the innermost function the line may differ.
    """
    if len(dumps) < DUMPS:
        return []
    stacks = [_own(stack)[::-1] for stack in dumps]
    depth = min(map(len, stacks))
    if not depth:
        return []
    calls = depth if len(set(map(len, stacks))) > 1 else depth - 1
    first = stacks[0]
    for other in stacks[1:]:
        if other[:calls] != first[:calls]:
            return []
        if _function(other[depth - 1]) != _function(first[depth - 1]):
            return []
    return stacks[-1][:depth][::-1]


def takes_long(stack: list[str]) -> bool:
    """Say whether a stack is that of a compiler, a checkpoint or a validation, as far as names tell."""
    for line in stack:
        words = {word.lower() for word in _WORD.findall(function_of(line))}
        if words & _LONG_WORDS or any(part in line for part in _LONG):
            return True
    return False


def _own(stack: list[str]) -> list[str]:
    frames = [line for line in stack if line.startswith("File ")]
    return [line for line in frames if not is_foreign(line)] or frames


def _function(line: str) -> tuple[str, str]:
    return line.partition(", line ")[0], function_of(line)
