"""The line of the program that most of some time is spent in, by samples of a thread's stack.

Definitions: docs/definitions.md, "loop_code".
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.analysis.intervals import Times
from iotrace.analysis.results import HotLine
from iotrace.sources.paths import Paths
from iotrace.sources.processes import Process
from iotrace.sources.records import LoopStacks

_FEWEST = 8  # samples
_MOST = 0.5  # of the samples
_LATE = 0.3  # of those at a line: fewer had no CPU, perhaps
_ALSO = 0.1  # of them: what another line that calls the same needs to be named
# What they compute in a step is the training, or a loss.
THAT_TRAIN = (
    *("torch", "torchvision", "torch_geometric", "transformers", "diffusers", "timm", "peft", "accelerate"),
    *(
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
        "deepspeed",
        "jax",
        "flax",
        "tensorflow",
        "keras",
    ),
)
_OURS = "timed_call"  # of the agent: it passes for a function of the library that it calls
_COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
_PACKAGES, _STDLIB = "-packages/", "/lib/python"
_WRAPPED = re.compile(r"(\w+)\._wrap_(\w+)\.<locals>\.\w+$")  # of a class: which method stands behind it
_NAMELESS = (
    "_call_impl",
    "_wrapped_call_impl",
    "decorate_context",
    "inner",
    "wrapper",
    "wrapped_func",
)  # as torch's modules


class Frame(NamedTuple):
    """A function on a stack, its first line, and the line that it is in: 0 of a library.

    `since`: where it may have been in a line before that one, the first of these; else 0.
    """

    file: str
    function: str
    first_line: int
    line: int
    since: int = 0

    def at(self, paths: Paths) -> str:
        """Its file and line, or lines."""
        first = f"{self.since}-" if self.since else ""
        return f"{paths.shown(self.file)}:{first}{self.line}"


class Stack(NamedTuple):
    """Where a stack leaves the path to where its thread works: the program's frame there, what it called."""

    left: Frame | None
    called: tuple[Frame, ...]
    held: bool = True  # a thread had the interpreter's lock then: it was in no call that releases that

    @property
    def own(self) -> Frame | None:
        """The program's function that is called there; None where the program's frame calls a library.

        A comprehension is no function that it calls.
        """
        lines = (frame for frame in self.called if frame.line)
        return next((frame for frame in lines if not frame.function.endswith(_COMPREHENSIONS)), None)

    def library_at(self, paths: Paths) -> str:
        """Name what the program's innermost function calls of a library, with the line; none that trains."""
        frames = [*(() if self.left is None else (self.left,)), *self.called]
        at = max((i for i, frame in enumerate(frames) if frame.line), default=len(frames))
        if at + 1 >= len(frames):
            return ""
        library, called = _folder_of(frames[at + 1]), _called(frames[at + 1])
        if not library or library in THAT_TRAIN:
            return ""
        wrapped = _WRAPPED.match(frames[at + 1].function)
        if wrapped is not None:  # as torchmetrics' classes: their own method is deeper
            called = f"{wrapped[1]}.{wrapped[2]}"
        is_nameless = wrapped is None and _library_of(frames[at + 1]) is None
        named = library if is_nameless else f"{library}'s {called}"
        return f"{named} ({frames[at].at(paths)})"


class StackSamples(msgspec.Struct, frozen=True):
    """Samples of a thread, in order: when, and which of `stacks` it was in.

    `asked`: it was sampled at any time; else a line that keeps the interpreter's lock has too few samples.
    """

    times: Times
    stacks: list[Stack]
    numbers: Times
    asked: bool = True

    def chosen(self, which: npt.NDArray[np.bool_]) -> StackSamples:
        """Take some of the samples."""
        return StackSamples(self.times[which], self.stacks, self.numbers[which], self.asked)

    @property
    def each(self) -> list[Stack]:
        """The stack of each sample."""
        return [self.stacks[number] for number in self.numbers.tolist()]


def stack_samples(process: Process, tid: int) -> StackSamples:
    """Read what was sampled of a thread."""
    times: list[int] = []
    numbers: list[int] = []
    stacks: dict[Stack, int] = {}
    asked = True
    for record in process.of_type(LoopStacks):
        if record.tid != tid or len(record.times_ns) != len(record.numbers):
            continue
        asked = asked and record.asked
        path = _frames(record.path, record)
        since = [*record.since, *[0] * len(record.stacks)]
        held = [*record.held, *[True] * len(record.stacks)]
        own = [
            _leaving(_frames(each, record, first), path, is_held)
            for each, first, is_held in zip(record.stacks, since, held, strict=False)
        ]
        known = [stacks.setdefault(each, len(stacks)) for each in own]
        valid = [*zip(record.times_ns, record.numbers, strict=True)]
        times += [at for at, number in valid if 0 <= number < len(known)]
        numbers += [known[number] for _, number in valid if 0 <= number < len(known)]
    at = np.array(process.clock.times_to_session_ns(times), np.int64)
    order = np.argsort(at, kind="stable")
    return StackSamples(at[order], [*stacks], np.array(numbers, np.int64)[order], asked)


def _frames(stack: Sequence[tuple[int, int]], record: LoopStacks, since: int = 0) -> list[Frame]:
    """Return the frames of a stack, the outermost first; `since` is of the innermost that has a line."""
    functions = record.functions
    known = [(functions[number], line) for number, line in stack if 0 <= number < len(functions)]
    found = [Frame(*each, line) for each, line in known if not each[1].endswith(_OURS)]
    at = next((i for i, frame in enumerate(found) if frame.line), None)
    if at is not None and since:
        found[at : at + 1] = [found[at]._replace(since=since)]
        del found[:at]  # what it has called had just begun
    return found[::-1]


def _leaving(stack: list[Frame], path: list[Frame], held: bool) -> Stack:
    alike = zip(stack, path, strict=False)
    common = sum(1 for _ in takewhile(lambda pair: pair[0][:3] == pair[1][:3], alike))
    left = next((frame for frame in reversed(stack[:common]) if frame.line), None)
    return Stack(left, tuple(stack[common:]), held)


def hot_line(
    stacks: Sequence[Stack], paths: Paths, *, of_called: bool, is_known: bool = True
) -> HotLine | None:
    """Find the innermost line that most of the samples are in, or in what it calls; None where none is.

    Where they are in several lines of one function that such a line calls, it is that function's first line.
    `of_called`: a line of what was called alone, not of the program's frame that called it. `is_known`: who
    asks knows the outermost function.
    """
    kept: list[list[Frame]] = []
    for stack in stacks:
        if of_called:
            kept.append([*stack.called[stack.called.index(stack.own) :]] if stack.own else [])
        else:
            kept.append([*(() if stack.left is None else (stack.left,)), *stack.called])
    whole, found = len(kept), None
    calls: Counter[Frame] = Counter()
    lines_of: Counter[tuple[Frame, Frame]] = Counter()  # a line, and what it calls
    if whole < _FEWEST:
        return None
    while True:
        at = [next((i for i, each in enumerate(frames) if each.line), -1) for frames in kept]
        joined = _joined(Counter(frames[i] for frames, i in zip(kept, at, strict=True) if i >= 0), whole)
        for frames, i in zip(kept, at, strict=True):
            frames[i : i + 1] = [joined.get(frame, frame) for frame in frames[i : i + 1]]
        lines = Counter(frames[i] for frames, i in zip(kept, at, strict=True) if i >= 0)
        most, count = lines.most_common(1)[0] if lines else (None, 0)
        is_line = count >= _MOST * whole
        if not is_line:
            most, count = _function_of_most(lines)
        if most is None or count < _MOST * whole:
            break
        of_it = {each for each in lines if each == most or (not is_line and each[:3] == most[:3])}
        inside = [(frames, i) for frames, i in zip(kept, at, strict=True) if i >= 0 and frames[i] in of_it]
        calls = Counter(frames[i + 1] for frames, i in inside if i + 1 < len(frames))
        lines_of = Counter(
            (frames[i], frames[i + 1])
            for frames, i in zip(kept, at, strict=True)
            if 0 <= i < len(frames) - 1 and frames[i][:3] == most[:3]
        )
        kept = [frames[i + 1 :] for frames, i in inside]
        if is_line or not is_known:
            found = most, count
        is_known = False
    if found is None:
        return None
    (line, count), callee = found, calls.most_common(1)
    named = callee[0][0] if callee and callee[0][1] >= _MOST * count else None
    library = None if named is None else _library_of(named)
    in_called = {own: times for (own, called), times in lines_of.items() if called == named}
    also = sorted(own for own, times in in_called.items() if own != line and times >= _ALSO * whole)
    in_lines = sum(in_called[own] for own in (line, *also) if own in in_called)
    is_named = named is not None and library is not None
    return HotLine(
        line=line.at(paths),
        function=own_name(line.function),
        # A function that stands in for another passes for it by its file, not by its name.
        calls=None if named is None or library is None else _called(named),
        library=library or None,
        fraction=count / whole,
        samples=whole,
        also=[own.at(paths) for own in also] if is_named else [],
        calls_fraction=in_lines / whole if is_named else None,
    )


def _function_of_most(lines: Counter[Frame]) -> tuple[Frame | None, int]:
    """Return the function that most samples are in, whatever the line, as its first line; and how many."""
    functions = Counter[tuple[str, str, int]]()
    for frame, count in lines.items():
        functions[frame[:3]] += count
    if not functions:
        return None, 0
    ((file, function, first_line), count), *_ = functions.most_common(1)
    return Frame(file, function, first_line, first_line), count


def own_name(function: str) -> str | None:
    """Name a function without those that it is defined in; a comprehension goes by the one that has it."""
    while function.endswith(_COMPREHENSIONS):
        function = function.rpartition(".<locals>.")[0]
    name = function.rpartition("<locals>.")[2]
    return None if not name or name.startswith("<") else name


def _joined(frames: Counter[Frame], whole: int) -> dict[Frame, Frame]:
    """Join lines of a function that many samples cannot tell apart; return what each frame becomes."""
    at_line = Counter[tuple[str, str, int, int]]()
    for frame, count in frames.items():
        at_line[frame[:4]] += count
    late = [
        frame
        for frame, count in frames.items()
        if frame.since and count >= max(_ALSO * whole, _LATE * at_line[frame[:4]])
    ]
    found = {frame: frame._replace(since=0) for frame in frames if frame.since and frame not in late}
    for each in sorted(late, key=lambda frame: frame.line):
        first, last = each.since, each.line
        for other in late:  # those before it have become one already
            if other[:3] == each[:3] and other.since <= last and first <= other.line:
                first, last = min(first, other.since), max(last, other.line)
        of_it = [frame for frame in frames if frame[:3] == each[:3] and first <= frame.line <= last]
        found |= dict.fromkeys(of_it, each._replace(line=last, since=first))
    return found


def _called(frame: Frame) -> str:
    """Name a function without those that it is defined in; a library's comprehension goes by what has it."""
    function = frame.function
    while function.endswith(_COMPREHENSIONS) and _folder_of(frame):
        function = function.rpartition(".<locals>.")[0]
    return function.rpartition("<locals>.")[2]


def _library_of(frame: Frame) -> str | None:
    """Return the library that a function is of: empty of the program's; None where its name tells nothing."""
    nameless = _called(frame).rpartition(".")[2] in ("", *_NAMELESS, *_COMPREHENSIONS)
    return None if nameless else _folder_of(frame)


def _folder_of(frame: Frame) -> str:
    """Return the library that a function's file is of; empty of the program's."""
    inside = ""
    if _PACKAGES in frame.file:
        inside = frame.file.rpartition(_PACKAGES)[2]
    elif _STDLIB in frame.file:  # behind the version's own folder
        inside = frame.file.rpartition(_STDLIB)[2].partition("/")[2]
    return os.path.splitext(inside.partition("/")[0])[0]
