"""Runs of one program over time: which got worse, by run, commit or day; baselines seen, set and checked."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from http import HTTPStatus
from pathlib import Path
from statistics import fmean, geometric_mean

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from iotrace.analysis.compare.history import FASTER, OTHER_WORK, UNCLEAR, WORSE
from iotrace.session import names
from iotrace.session.liveness import ENDED
from iotrace.session.manifest import write_atomically
from iotrace.ui.answers import PATIENCE_S, RefusedError, find_entry, html, read_form, report_task, unfinished
from iotrace.ui.index import Entry, Index
from iotrace.ui.jobs import Jobs
from iotrace.ui.lists import histories
from iotrace.ui.pages import address
from iotrace.ui.places import BASELINE, SESSION
from iotrace.ui.tasks import CHECK, HISTORY, REPORT_JSON, Judged, Task
from iotrace.ui.trend import draw_lines

BASELINES = "baselines"  # the directory of a served one that baselines are set in
_GROUPS = ("run", "commit", "day")
_TOLD, _TOLD_OF_GROUPS = (WORSE, FASTER, UNCLEAR, OTHER_WORK), (WORSE, FASTER)
_MOST_JUDGED = 40
_PLAIN = re.compile(r"[^A-Za-z0-9._=-]+")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one commit or day, or a single run: means of what is known, and the most frequent cause."""

    label: str
    runs: list[Entry]
    per_second: float | None
    wait_fraction: float | None
    why: str | None
    judged: list[Judged]


class History:
    """What became of a program from run to run."""

    def __init__(self, index: Index, jobs: Jobs, read_only: bool) -> None:
        self._index, self._jobs, self._read_only = index, jobs, read_only

    async def show(self, request: Request) -> Response:
        """Show the runs of a program by run, commit or day; without a program all that have several runs."""
        program, by = request.query_params.get("program", ""), request.query_params.get("by", "run")
        entries = await asyncio.to_thread(self._index.entries)
        known = histories(entries)
        if not program:
            return self._programs(known)
        if program not in known or by not in _GROUPS:
            raise RefusedError("No run of this program has ended, as far as the list shows.")
        runs = known[program][-_MOST_JUDGED:]
        job = await self._jobs.get(
            Task(kind=HISTORY, paths=[str(each.place.path) for each in runs]), PATIENCE_S
        )
        judged: dict[str, Judged] = {}
        if job.done is not None and not job.done.problem:
            judged = {each.path: each for each in job.done.judged}
            runs = [self._learned(each, judged.get(str(each.place.path))) for each in runs]
        return html(
            "history.html",
            title=f"History of {program}",
            program=program,
            by=by,
            groups=_GROUPS,
            count=len(known[program]),
            rows=list(reversed(_rows(runs, by, judged))),
            lines=draw_lines(runs, self._index.standings, 1000.0, 120.0),
            waiting=job.done is None,
            problem="" if job.done is None else job.done.problem,
            keys={str(each.place.path): each.key for each in runs},
            baselines=_baselines(entries, program),
            sets=not self._read_only,
        )

    def _programs(self, known: dict[str, list[Entry]]) -> Response:
        several = [(program, runs) for program, runs in known.items() if len(runs) > 1]
        several.sort(key=lambda pair: pair[1][-1].started_ns or 0, reverse=True)
        standings = self._index.standings
        shown = [
            (
                program,
                runs[-1],
                len(runs),
                draw_lines(runs, standings, 220.0, 40.0),
                all(each.place.path in standings for each in runs[-_MOST_JUDGED:]),
            )
            for program, runs in several
        ]
        return html("programs.html", title="History", programs=shown)

    def _learned(self, entry: Entry, judged: Judged | None) -> Entry:
        """What the analysis found is shown in the list, too."""
        if judged is None:
            return entry
        self._index.standings[entry.place.path] = judged.standing.kind
        if entry.headline.verdict_class is not None:
            return entry
        self._index.learn(entry, judged.verdict, judged.headline)
        return msgspec.structs.replace(entry, verdict=judged.verdict, headline=judged.headline)

    async def check(self, request: Request) -> Response:
        """Check a session against the baselines of its program."""
        entry = await find_entry(self._index, request.query_params.get("of", ""))
        baselines = _baselines(await asyncio.to_thread(self._index.entries), entry.work)
        if entry.place.kind != SESSION or entry.is_live or not baselines:
            what = "A session that has ended can be checked, and its program needs a baseline."
            raise RefusedError(what, HTTPStatus.OK, "Not checked")
        paths = [str(each.place.path) for each in baselines]
        job = await self._jobs.get(
            Task(kind=CHECK, paths=[str(entry.place.path)], baselines=paths), PATIENCE_S
        )
        if (waiting := unfinished(job, f"{entry.key} is being checked")) is not None:
            return waiting
        assert job.done is not None
        return html(
            "check.html", title=f"Check of {entry.key}", entry=entry, said=job.done.said, baselines=baselines
        )

    async def set_baseline(self, request: Request) -> Response:
        """Keep a session's report as a baseline, in a directory of its own below what is served."""
        entry = await find_entry(self._index, (await read_form(request)).get("of", ""))
        if entry.place.kind != SESSION or entry.state != ENDED:
            what = "Only a session whose command ended with exit code 0 can be a baseline."
            raise RefusedError(what, HTTPStatus.OK, "No baseline")
        job = await self._jobs.get(report_task(entry), 600.0)
        assert job.done is not None
        if job.done.problem or job.done.headline.step_ms is None:
            what = job.done.problem or "The session has no measured steps: it cannot be a baseline."
            raise RefusedError(what, HTTPStatus.OK, "No baseline")
        root = self._index.find_root(entry.place.path)
        if root is None:
            what = "The served directory is the session itself. Serve the one above it to keep baselines."
            raise RefusedError(what, HTTPStatus.OK, "No baseline")
        try:
            await asyncio.to_thread(_keep, root / BASELINES, entry, job.directory / REPORT_JSON)
        except OSError as error:
            raise RefusedError(
                f"It cannot be kept: {error.strerror}", HTTPStatus.OK, "No baseline"
            ) from error
        self._index.forget()
        return RedirectResponse(address("/history", program=entry.work), HTTPStatus.SEE_OTHER)


def _keep(directory: Path, entry: Entry, report: Path) -> None:
    """Write a baseline next to the others, never through a link."""
    directory.mkdir(names.DIRECTORY_MODE, exist_ok=True)
    if os.path.islink(directory):
        raise OSError(0, f"{directory.name} is a link")
    began = datetime.fromtimestamp((entry.started_ns or 0) // 10**9, timezone.utc)
    name = _PLAIN.sub("-", entry.key).strip("-.") or "run"
    write_atomically(directory / f"{began:%Y%m%dT%H%M%SZ}-{name[-80:]}.json", report.read_bytes())


def _baselines(entries: Iterable[Entry], work: str) -> list[Entry]:
    baselines = [each for each in entries if each.place.kind == BASELINE and not each.problem]
    own = [each for each in baselines if each.work == work and each.place.path.exists()]
    return sorted(own, key=lambda each: each.started_ns or 0)


def _rows(runs: Sequence[Entry], by: str, judged: dict[str, Judged]) -> list[Row]:
    """Group runs; the groups keep the order of their first runs."""
    groups: dict[str, list[Entry]] = {}
    for each in runs:
        groups.setdefault(_group(each, by), []).append(each)
    told = _TOLD if by == _GROUPS[0] else _TOLD_OF_GROUPS
    return [_row(label, own, judged, told) for label, own in groups.items()]


def _group(entry: Entry, by: str) -> str:
    if by == "commit":
        return (entry.commit or "")[:12] or "no commit known"
    if by == "day":
        return f"{datetime.fromtimestamp((entry.started_ns or 0) / 1e9):%Y-%m-%d}"
    return entry.key


def _row(label: str, runs: list[Entry], judged: dict[str, Judged], told: Sequence[str]) -> Row:
    heads = [each.headline for each in runs]
    causes = [each.why for each in heads if each.why]
    own = [judged.get(str(each.place.path)) for each in runs]
    return Row(
        label=label,
        runs=runs,
        per_second=_mean(geometric_mean, (each.steps_per_second for each in heads)),  # as steps are compared
        wait_fraction=_mean(fmean, (each.wait_fraction for each in heads)),
        why=max(causes, key=causes.count) if causes else None,
        judged=[each for each in own if each is not None and each.standing.kind in told],
    )


def _mean(mean: Callable[[list[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and value > 0]
    return mean(known) if known else None
