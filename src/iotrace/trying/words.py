"""What is said of a trial, in a line."""

from __future__ import annotations

from iotrace.trying.results import FAILED, LOOP, NO_HELP, PROVEN, RUN, SLOWER, UNCLEAR, Gain, Told, Trial

BANNERS = {
    PROVEN: "PROVEN",
    NO_HELP: "DOES NOT HELP",
    SLOWER: "SLOWER WITH IT",
    UNCLEAR: "NOT PROVEN",
    FAILED: "NOT TRIED",
}
_OF = {RUN: ", the whole command", LOOP: ", the whole loop"}


def text_of(trial: Trial) -> str:
    """Return the first line: what came of it, the measured gain, and what was told."""
    return f"{BANNERS[trial.kind]} {said_of(trial)}"


def said_of(trial: Trial) -> str:
    """Return what stands behind the banner."""
    gain = trial.gain
    if trial.kind == FAILED or gain is None:
        return trial.why
    said, alone = f"{times(gain.median)} times as fast {_between(gain)}", trial.gain_unqueued
    if trial.kind == PROVEN:
        said = f"{times(gain.median)}x faster {_between(gain)}"
    if alone is not None:
        left = f"{times(alone.median)}x {_between(alone)} without queueing for CPUs"
        beside = f"{times(gain.median)}x {_between(gain)} as measured"
        said = f"faster: {left}, {beside}" if trial.kind == PROVEN else f"{said}, {left}"
    said += _OF.get(trial.measured, "")
    if trial.told is None:
        return said
    return f"{said}, told{' of a step' if trial.measured == RUN else ''}: {told_text(trial.told)}"


def _between(gain: Gain) -> str:
    return f"({times(gain.low)} to {times(gain.high)})"


def told_text(told: Told) -> str:
    """What the report told of the gain."""
    low, high = (None if each is None else f"{times(each)}x" for each in (told.low, told.high))
    if low is None:
        return f"at most {high}"
    if high is None:
        return f"about {low}, perhaps more"
    return f"about {low}, at most {high}" if told.about else f"{low.removesuffix('x')} to {high}"


def times(ratio: float) -> str:
    """Write how many times as fast something is, with two decimals where one says too little."""
    return f"{ratio:.2f}" if ratio < 1.2 else f"{ratio:.1f}"
