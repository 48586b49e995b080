"""A trial's result on a terminal."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console

from iotrace.report.blocks import Commands, Document, Head, Line, lines_of
from iotrace.report.layout import print_document
from iotrace.report.screen import shown_path
from iotrace.trying.results import FAILED, LOOP, PROVEN, RUN, SLOWER, Data, Setting, Trial
from iotrace.trying.summary import BANNERS, describe_result
from iotrace.units import counted, duration, size

_TONES = {PROVEN: "good", SLOWER: "bad", FAILED: "bad"}
_OF = {RUN: "command", LOOP: "step of the loop"}


def print_trial(trial: Trial, console: Console, is_patched: bool = False) -> None:
    """Print what came of it, what was tried, what was measured, and what to type next.

    `is_patched`: a patch of it was made, which may name the copy.
    """
    said = describe_result(trial)
    lines = [Line("Why", trial.why)] if trial.why and said != trial.why else []
    typed = trial.apply if trial.proven and not is_patched else []  # a patch may change another place
    lines += lines_of("Fix", typed or [trial.fix_text])
    lines += [Line("", _setting(each)) for each in (*trial.settings, *trial.variables)]
    lines += [Line("", f"in each worker, {_setting(each)}") for each in trial.in_workers]
    if trial.data:
        lines.append(Line("", _data(trial.data, trial.proven)))
    if trial.runs.before_ns:
        lines += _measured(trial)
    for left in trial.untried:
        where = f": {left.where}" if left.where else ""
        lines.append(Line("Left", f"{left.text}: {left.why}{where}"))
    lines += [Line("Note", text) for text in trial.warnings]
    head = Head(_TONES.get(trial.kind, "warn"), BANNERS[trial.kind], said, lines)
    print_document(Document(head, [[Commands(_next(trial, is_patched))]]), console)


def _setting(each: Setting) -> str:
    before = "unset" if each.before is None else each.before
    return f"{each.parameter}: {before} as it is, {each.after} as tried"


def _data(data: Sequence[Data], is_kept: bool) -> str:
    """How large the data is, as it is and as tried, how often a run opened the copy, and if that is gone."""
    what = shown_path(data[0].path) if len(data) == 1 else counted(len(data), "file")
    bytes_, new_bytes = sum(each.bytes for each in data), sum(each.new_bytes for each in data)
    opens = [each.opens for each in data if each.opens is not None]
    kept = next((each.original for each in data if each.original), None)
    if kept is not None:
        where = shown_path(kept if len(data) == 1 else os.path.dirname(kept))
        what = f"{what} is the copy now, the original is {where}"
    opened = f", opened {counted(sum(opens), 'time')} or more" if opens else ""
    gone = "" if is_kept else "; the copy is deleted"
    return f"{what}: {size(bytes_)} as it is, {size(new_bytes)} as tried{opened}{gone}"


def _measured(trial: Trial) -> list[Line]:
    each = _OF.get(trial.measured, "step")
    rows = [("as it is", trial.runs.before_ns), ("with it", trial.runs.after_ns)]
    texts = [f"{name}: {', '.join(map(duration, times))}" for name, times in rows]
    return [Line("Runs", f"a {each}, {'; '.join(texts)}")]


def _next(trial: Trial, is_patched: bool) -> list[tuple[str, str]]:
    if not trial.proven:
        return [(f"iotrace report {shown_path(trial.session)}", "what else it names")]
    if is_patched:
        return [(f"iotrace explain {trial.fix}", "what it means")]
    found = [(trial.command, "makes the change")] if trial.command else []
    if trial.settings or trial.in_workers or (trial.apply and not trial.data):
        found = [
            (f"iotrace patch {shown_path(trial.session)} --fix {trial.fix}", "a diff of your own source")
        ]
    if any(each.original for each in trial.data):
        found = [(f"rm -r {shown_path(trial.path)}", "the trial, with the original data")]
    elif trial.data:
        if len(trial.data) == 1 and not os.path.isdir(trial.data[0].path):
            (each,) = trial.data
            found = [(f"mv {shown_path(each.new_path)} {shown_path(each.path)}", "the copy takes its place")]
        found.append((f"rm -r {shown_path(trial.path)}", "the trial, with its copy of the data"))
    return found or [(f"iotrace explain {trial.fix}", "what it means")]
