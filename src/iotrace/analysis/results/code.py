"""What code takes the loop's time: lines and functions, by samples of its thread's stack."""

from __future__ import annotations

from typing import Annotated

import msgspec

from iotrace.analysis.results.base import ReportPart, figure

FEWEST_SAMPLES, MOST_CODE = 8, 8  # of the loop's code: of a function that is named; functions


class HotLine(ReportPart, frozen=True, kw_only=True):
    """The innermost line of the program that most of some time is in, or in what it calls: by samples of the stack."""

    line: Annotated[str, figure("its file and number")]
    function: Annotated[str | None, figure("the function that holds it", null="none: the line of a module or of a comprehension")] = None
    calls: Annotated[str | None, figure("the function that it is mostly in there", null="none, or one that tells nothing")] = None
    library: Annotated[str | None, figure("the library that `calls` is of", null="it is the program's, or null")] = None
    fraction: Annotated[float, figure("its share of the samples")]
    samples: Annotated[int, figure("so many there are")]
    also: Annotated[list[str], figure("other lines of that function that are in `calls`, for a tenth of the samples or more")] = msgspec.field(
        default_factory=list
    )
    calls_fraction: Annotated[float | None, figure("the share of the samples that are in `calls`, at `line` and `also`", null="`calls` is")] = None
    held_fraction: Annotated[
        float | None, figure("of an item, the share of the samples at `line` in which the interpreter's lock was held", null="of other code")
    ] = None
    passes_fraction: Annotated[
        float | None,
        figure("of an item, the share of all of its time, reading and decoding too, that passes at `line`", null="of other code, or of several lines"),
    ] = None

    @property
    def lines(self) -> str:
        """Name the lines that are in `calls`."""
        *others, last = [self.line, *(line.rpartition(":")[2] for line in self.also)]
        return f"{', '.join(others)} and {last}" if others else last

    @property
    def said(self) -> str:
        """Name the line, and what it calls."""
        return self.line + self._in

    def in_callee_of(self, function: str | None) -> str | None:
        """Name the function that holds the line, where that is another one that `function` calls."""
        named = (function or "").partition(" (")[0].rpartition("<locals>.")[2]
        return None if self.function is None or self.function == named else self.function

    def placed(self, function: str | None) -> str:
        """Name the line, with its own function where that is not `function`."""
        inner = self.in_callee_of(function)
        return self.line if inner is None else f"{inner} ({self.line})"

    def said_in(self, function: str | None) -> str:
        """The same, and what it calls."""
        return self.placed(function) + self._in

    def beside(self, function: str, most: str = "most of it") -> str:
        """Name the line behind a function of the program, which may name it by itself."""
        if function == self.line or function.endswith(f"({self.line})"):
            return self._in
        return f", {most} {'at' if self.in_callee_of(function) is None else 'in'} {self.said_in(function)}"

    @property
    def _in(self) -> str:
        whose = "" if self.library is None else f"{self.library}'s "
        return "" if self.calls is None else f", in {whose}{self.calls}"


class LoopCode(ReportPart, frozen=True, kw_only=True):
    """A function that the loop calls, or a line of its own: its time outside of all that has another name.

    By samples of the training thread's stack, over the whole loop; without waits, collectives,
    forward, backward, optimizer, evaluations, checkpoints, writing and the making of iterators.
    """

    function: Annotated[str, figure("what the loop calls where it does not train, with its file and first line; or the loop's own line")]
    seconds: Annotated[float, figure("its share of the samples, of that time")]
    samples: Annotated[int, figure("in so many samples")]
    ms_per_step: Annotated[float, figure("`seconds` over all steps", "ms per step")]
    loop_fraction: Annotated[float, figure("the share of the loop's time, as in the account")]
    count: Annotated[int | None, figure("in how many steps, where nearly all of it lies in few", null="it lies in many steps")] = None
    every_steps: Annotated[float | None, figure("steps from one to the next, their median", null="`count` is null, or 1, or they differ much")] = None
    hot: Annotated[HotLine | None, figure("the line that most of it is in", null="no line is")] = None
    least: Annotated[bool, figure("whether its time is the least that it may be, as some samples have no place: `--io off`")] = False
    held_fraction: Annotated[
        float | None,
        figure(
            "the share of its samples in which the interpreter's lock was not free: else it is in calls that release that, as torch's do", null="not recorded"
        ),
    ] = None
    before_fraction: Annotated[
        float | None,
        figure(
            "the share of its samples that lie between the delivery of a batch and the forward pass behind it",
            null="no loader feeds the loop, or its steps have no forward pass",
        ),
    ] = None
    inside_seconds: Annotated[float, figure("writing and collecting garbage that is mostly in it: on top of `seconds`, it takes as much at most")] = 0.0
    within: Annotated[bool, figure("whether it lies in forward, backward or optimizer, where the program calls a library that does not train")] = False
    builds: Annotated[
        str | None, figure("the dataset whose `__init__` most of it is in, empty where Lightning asks it for a loader: it builds data anew", null="neither")
    ] = None
    grows_ms: Annotated[
        list[float] | None,
        figure("in the first and the last quarter of each epoch, or of the run", "ms per step", null="it does not grow threefold there"),
    ] = None
    grows_in_run: Annotated[bool, figure("whether that is of the run: it does not begin anew with each of two epochs or more")] = False

    @property
    def growing(self) -> str:
        """Say that it grows; empty where it does not."""
        if self.grows_ms is None:
            return ""
        first_ms, last_ms = self.grows_ms
        through = "the run" if self.grows_in_run else "each epoch"
        return f", and takes longer at each step: {first_ms:.1f} ms in the first quarter of {through}, {last_ms:.1f} in the last"

    @property
    def grows_by_ms(self) -> float:
        """How much longer it takes in the last quarter than in the first; 0 where it does not grow."""
        return 0.0 if self.grows_ms is None else self.grows_ms[1] - self.grows_ms[0]

    @property
    def recurs(self) -> bool:
        """Whether the loop does it now and then, and not in each step."""
        return (self.count or 0) > 1

    @property
    def what(self) -> str:
        """Name it."""
        return self.function

    @property
    def most_fraction(self) -> float:
        """The share of the loop's time that it takes at most, with what it writes and collects."""
        return min(1.0, self.loop_fraction * (1 + self.inside_seconds / self.seconds)) if self.seconds else self.loop_fraction

    def advice(self, how: str) -> str:
        """Say to do it `how`: a line of the loop itself is not called."""
        if self.hot is not None and self.is_line:
            return f"do {how} what the loop does at {self.hot.lines}"
        return f"call {self.function} {how}"

    @property
    def is_line(self) -> bool:
        """Whether it is known to be a line of the loop itself, not a function that the loop calls."""
        if self.hot is None:
            return False
        return self.function in (self.hot.lines, f"{self._owner} ({self.hot.lines})")

    @property
    def _owner(self) -> str:
        return self.function.partition(" (")[0] if self.function.endswith(")") else ""

    @property
    def does(self) -> tuple[str, ...] | None:
        """What a line of the loop's own has in common with others that do the same in all steps; None: nothing."""
        if self.hot is None or self.hot.calls is None or not self.is_line or self.count is not None:
            return None
        return self._owner, self.hot.line.rpartition(":")[0], self.hot.library or "", self.hot.calls

    def with_line(self, other: LoopCode) -> LoopCode:
        """Join a line of the loop with another one that does the same, and takes less."""
        if self.hot is None or other.hot is None:
            return self
        samples = self.hot.samples + other.hot.samples
        shares = [each.hot.samples / samples for each in (self, other) if each.hot is not None]
        hot = msgspec.structs.replace(
            self.hot,
            also=sorted({*self.hot.also, other.hot.line, *other.hot.also}),
            fraction=shares[0] * self.hot.fraction + shares[1] * other.hot.fraction,
            calls_fraction=shares[0] * (self.hot.calls_fraction or 0.0) + shares[1] * (other.hot.calls_fraction or 0.0),
            samples=samples,
        )
        held = None
        if self.held_fraction is not None and other.held_fraction is not None:
            held = shares[0] * self.held_fraction + shares[1] * other.held_fraction
        return msgspec.structs.replace(
            self,
            function=f"{self._owner} ({hot.lines})" if self._owner else hot.lines,
            seconds=self.seconds + other.seconds,
            samples=self.samples + other.samples,
            ms_per_step=self.ms_per_step + other.ms_per_step,
            loop_fraction=min(1.0, self.loop_fraction + other.loop_fraction),
            grows_ms=None,
            hot=hot,
            held_fraction=held,
        )

    @property
    def said(self) -> str:
        """Say what it took of the loop, and how often."""
        loop_seconds = self.seconds / self.loop_fraction if self.loop_fraction else 0.0
        every = f", every {self.every_steps:.3g} steps" if self.every_steps is not None else ""
        least = "at least " if self.least else ""
        at = "" if self.hot is None else self.hot.beside(self.function)
        anew = "" if self.builds is None else f" builds {self.builds or 'its data'} anew, which"
        took = f"{self.function}{anew} took {least}{self.seconds:.1f} of the loop's {loop_seconds:.1f} s"
        if self.inside_seconds:  # which hides some of its calls
            return f"{took}{at}; up to {self.seconds + self.inside_seconds:.1f} s with the writing and garbage collection in it"
        return f"{took}: {least}{self.count} times{every}{at}"


class Feeding(ReportPart, frozen=True, kw_only=True):
    """What a loop that no loader feeds does before the forward pass of its steps: a wait for data lies there."""

    before_ms: Annotated[float, figure("the time before forward passes, without evaluations and checkpoints", "ms per step")]
    before_fraction: Annotated[float, figure("the same / the steps' lengths")]
    function: Annotated[
        str | None, figure("what the thread is in for most of it, by samples: a function with its first line, or a line", null="too few samples")
    ] = None
    function_ms: Annotated[float | None, figure("its share of the samples, of that time", "ms per step", null="`function` is")] = None
    hot: Annotated[HotLine | None, figure("the line of it that most of that is in", null="no line is")] = None
    least: Annotated[bool, figure("whether `function_ms` is the least that it may be, as some samples have no place: `--io off`")] = False
    asleep: Annotated[str | None, figure("where the loop sleeps, and nothing was seen to be handed over", null="it is not known to")] = None
    waits: Annotated[
        str | None, figure("what `function` waits for most of its time: `pipe at`, `socket at`, `child process at` or `sleep at` a line", null="not known")
    ] = None
    beside: Annotated[str | None, figure("the read path that one other thread is in for much of that time", null="none is, or several threads are")] = None
    beside_fraction: Annotated[float | None, figure("for which share of it", null="`beside` is")] = None
