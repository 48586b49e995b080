"""Hangs in words: on the first screen, and with -v."""

from __future__ import annotations

from collections.abc import Callable

from iotrace.analysis.results import HangInfo, SessionInfo
from iotrace.analysis.verdict.failed import last_hang


def last_hang_rows(session: SessionInfo, shown_path: Callable[[str], str]) -> list[tuple[str, str]]:
    """Say the hang that the run was in last, and where stacks of it lie; nothing where it went on."""
    hang = last_hang(session)
    if hang is None:
        return []
    found = [each.stacks for each in hang.processes if each.stacks]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    stacks = [("", f"Python stacks: {shown_path(found[0])}{more}")] if found else []
    return [("Hang", hang_text(hang)), *stacks]


def hang_rows(session: SessionInfo) -> list[tuple[str, str]]:
    """Say each hang of the run: its lines, and the file of each stack."""
    rows = []
    for hang in session.hangs:
        lines = [*hang.text, *["batches came again"] * hang.resumed]
        lines += [f"Python stacks of pid {each.pid}: {each.stacks}" for each in hang.processes if each.stacks]
        rows += [("" if number else "hang", text) for number, text in enumerate(lines)]
    return rows


def hang_text(hang: HangInfo) -> str:
    """Say a hang in one sentence: its first line, then who is in what; not who only waits for work."""
    first, *others = hang.text or [f"no batch for {hang.waited_seconds:.0f} s"]
    told = [line for line in others if not line.endswith("waits for work")]
    return f"{first}: {'; '.join(told)}" if told else first
