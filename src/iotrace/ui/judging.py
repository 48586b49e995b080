"""Runs of one program judged: each by those before it, or one by the baselines that were kept."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from iotrace.analysis.compare.basis import basis_of, parse_report
from iotrace.analysis.compare.check import check
from iotrace.analysis.compare.history import standings
from iotrace.analysis.rank import SessionAnalysis
from iotrace.analysis.report import analyse
from iotrace.analysis.verdict.headline import headline_of
from iotrace.errors import IotraceError
from iotrace.report.blocks import Grid, Line
from iotrace.report.comparison import check_document
from iotrace.report.printing import encode_json
from iotrace.session import names
from iotrace.session.listing import Headline
from iotrace.session.manifest import write_atomically
from iotrace.session.reading import read_whole
from iotrace.sources.session import open_session
from iotrace.ui.tasks import Done, Judged, Said, Shown, Task, encoded, hash_content

_WORSE_BY_PCT = 5.0


class _Analysed(msgspec.Struct):
    """What is kept of a session's analysis, for all histories and checks that it is in."""

    report: Any
    verdict: str
    headline: Headline


def _analysed(path: Path, directory: Path) -> _Analysed:
    """Return the report of a session as plain data; it is made once for the same content."""
    kept = directory.parent / "reports" / f"{hash_content([path]).hex()}.json"
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(kept.read_bytes(), type=_Analysed)
    report = analyse(SessionAnalysis(open_session(path)))
    plain = json.loads(encode_json(report))
    analysed = _Analysed(plain, report.verdict.text, headline_of(report))
    with suppress(OSError):
        kept.parent.mkdir(names.DIRECTORY_MODE, exist_ok=True)
        write_atomically(kept, encoded(analysed))
    return analysed


def history(task: Task, directory: Path) -> Done:
    """Analyse sessions of one program, the oldest first, and judge each by those before it."""
    runs = []
    for path in task.paths:
        with suppress(IotraceError, OSError):  # deleted meanwhile, damaged: the list says so
            runs.append((path, _analysed(Path(path), directory)))
    judged = [
        Judged(path=path, verdict=each.verdict, headline=each.headline, standing=standing)
        for (path, each), standing in zip(runs, standings([each.report for _, each in runs]), strict=True)
    ]
    return Done(judged=judged)


def check_against(task: Task, directory: Path) -> Done:
    """Check a session against baselines, as `iotrace check` does."""
    baselines = [basis_of(parse_report(read_whole(path), path), path) for path in map(Path, task.baselines)]
    result = check([_analysed(Path(task.paths[0]), directory).report], baselines, [], _WORSE_BY_PCT)
    document = check_document(result)
    lines = [*document.head.lines]
    tables = []
    for part in document.parts:
        if isinstance(part, Grid):
            rows = [list(row) for row in part.rows]
            texts = [number in part.texts for number in range(len(part.headings))]
            tables.append(Shown(title=part.title, headings=list(part.headings), texts=texts, rows=rows))
        elif not hasattr(part, "fields"):
            lines += [line for line in part if isinstance(line, Line)]
    said = Said(
        tone=document.head.tone,
        text=document.head.text,
        lines=[(line.label, line.text) for line in lines],
        tables=tables,
        command=document.command,
    )
    return Done(said=said)
