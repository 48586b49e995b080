"""The list of everything that is served: what was kept of each report is read, nothing is analysed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from iotrace.analysis.compare.same_work import command_of
from iotrace.errors import IotraceError
from iotrace.session import names
from iotrace.session.hangs import COMPUTING, HUNG, read_status
from iotrace.session.listing import Headline, listed
from iotrace.session.liveness import ENDED, KILLED, RUNNING, UNKNOWN
from iotrace.session.masks import masked
from iotrace.session.reading import read_whole
from iotrace.sweeps.plan import kept
from iotrace.ui.places import BASELINE, CLOSED, SESSION, SWEEP, TRACE, TUNE, Place, Places

FAILED, DAMAGED = "failed", "damaged"
_FRESH_SECONDS = 1.0  # a list that is not older is shown again
_AGAIN_SECONDS = 30.0  # of what may change without a file's time changing
HANGS = (HUNG, COMPUTING)
_LIVE = (RUNNING, *HANGS)
_SIGNS = ("", names.MANIFEST, names.OUTCOME, f"{names.OUT}/{names.VERDICT}", names.LAUNCHES, names.PROCESSES)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the list; `problem` says why nothing can be shown of it. None is what is not known.

    `work` is the program without ports, seeds and where it writes: alike in runs that are compared.
    """

    place: Place
    program: str = ""
    work: str = ""
    verdict: str | None = None
    headline: Headline = Headline()
    state: str | None = None
    started_ns: int | None = None
    seconds: float | None = None
    host: str | None = None
    bytes: int | None = None
    commit: str | None = None
    problem: str | None = None

    @property
    def key(self) -> str:
        """What addresses call it."""
        return self.place.key

    @property
    def is_live(self) -> bool:
        """Whether its run goes on."""
        return self.state in _LIVE


_Known = tuple[tuple[int, ...], float, Entry]  # the signature of its files, when it was read, what was read


class Index:
    """Reads each place again only when its files have changed. Several threads may ask."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._places = Places(roots)
        self._known: dict[Path, _Known] = {}
        self._told: dict[Path, tuple[tuple[int, ...], Entry]] = {}
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._looked = 0.0
        self.standings: dict[
            Path, str
        ] = {}  # how runs compare with those before them, where that was looked at

    def entries(self) -> list[Entry]:
        """List what is there."""
        with self._lock:
            if time.monotonic() - self._looked > _FRESH_SECONDS or not self._looked:
                self._entries = {place.key: self._entry(place) for place in self._places.walk()}
                self._looked = time.monotonic()
            return list(self._entries.values())

    def get(self, key: str) -> Entry | None:
        """Return what addresses call `key`, as it is now; None where there is nothing of that name."""
        if all(each.key != key for each in self.entries()):  # it may have begun since
            self.forget()
            self.entries()
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or not entry.place.path.exists():
                return None
            entry = self._entries[key] = self._entry(entry.place)
            return entry

    def has_baseline(self, work: str) -> bool:
        """Whether the list holds a baseline of the same work."""
        known = self._entries.values()
        return any(each.work == work and each.state == BASELINE and not each.problem for each in known)

    def find_root(self, path: Path) -> Path | None:
        """Return the served directory that `path` lies below; None where it is that itself."""
        return next((root for root in self._places.roots if root in path.parents), None)

    def learn(self, entry: Entry, verdict: str, headline: Headline) -> None:
        """Show in the list what an analysis has found, as long as the files are the same."""
        known = msgspec.structs.replace(entry, verdict=verdict, headline=headline)
        with self._lock:
            self._told[entry.place.path] = _signature(entry.place), known
            self._looked = 0.0

    def forget(self) -> None:
        """Look again at the next question."""
        with self._lock:
            self._looked = 0.0

    def _entry(self, place: Place) -> Entry:
        signature, now = _signature(place), time.monotonic()
        known = self._known.get(place.path)
        if known is None or known[0] != signature or known[2].place != place or _is_old(known, now):
            known = signature, now, _read(place)
            self._known[place.path] = known
        entry, told = known[2], self._told.get(place.path)
        if told is not None and told[0] == signature and entry.headline.verdict_class is None:
            return msgspec.structs.replace(entry, verdict=told[1].verdict, headline=told[1].headline)
        return entry


def _is_old(known: _Known, now: float) -> bool:
    """Whether it may be otherwise now, although no file's time says so."""
    _, then, entry = known
    if entry.state in (ENDED, FAILED, KILLED, DAMAGED, BASELINE, None):
        return False
    return entry.is_live or now - then > _AGAIN_SECONDS


def _signature(place: Place) -> tuple[int, ...]:
    signs: tuple[str, ...] = _SIGNS if place.kind == SESSION else ("",)
    if place.kind in (SWEEP, TUNE):
        signs = (names.SWEEP_RESULT, names.TUNE_RESULT)
    times = []
    for sign in signs:
        try:
            times.append(os.lstat(os.path.join(place.path, sign) if sign else place.path).st_mtime_ns)
        except OSError:
            times.append(0)
    return tuple(times)


def _read(place: Place) -> Entry:
    try:
        if place.kind == SESSION:
            return _session(place)
        if place.kind in (SWEEP, TUNE):
            return _sweep(place)
        if place.kind == BASELINE:
            return _baseline(place)
        if place.kind == TRACE:
            return Entry(place=place, program="a trace of torch.profiler", bytes=place.path.stat().st_size)
    except (OSError, IotraceError) as error:
        what = error.strerror if isinstance(error, OSError) else str(error)
        return Entry(place=place, state=DAMAGED, problem=f"cannot be read: {what}")
    assert place.kind == CLOSED
    return Entry(place=place, state=DAMAGED, problem="cannot be read: its directory is closed to you")


def _session(place: Place) -> Entry:
    session = listed(place.path, place.key)
    if session.problem is not None:
        return Entry(place=place, state=DAMAGED, problem=session.problem)
    state = session.state
    if state == ENDED and session.exit_code:
        state = FAILED
    verdict, headline = session.verdict, session.headline or Headline()
    if state == RUNNING:
        with suppress(IotraceError):
            status = read_status(place.path)
            state = status.state
            if state in HANGS and status.text:
                why = status.text[1].strip() if status.text[1:] else None  # who holds the others up is first
                verdict, headline = status.text[0], Headline(why=why)
    return Entry(
        place=place,
        program=_program(session.argv),
        work=_work(session.argv),
        verdict=verdict,
        headline=headline,
        state=state,
        started_ns=session.started_ns,
        seconds=session.seconds,
        host=session.host,
        bytes=session.bytes,
        commit=session.commit,
    )


class _Verdict(msgspec.Struct):
    text: str
    kind: str | None = msgspec.field(name="class", default=None)


class _Ran(msgspec.Struct):
    argv: list[str] = []
    host: str | None = None
    started_ns: int | None = None
    commit: str | None = None


class _Kept(msgspec.Struct):
    """What the list shows of a report that was kept."""

    session: _Ran
    verdict: _Verdict


def _baseline(place: Place) -> Entry:
    try:
        report = msgspec.json.decode(read_whole(place.path), type=_Kept)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Entry(place=place, state=DAMAGED, problem="is no report that this iotrace reads")
    return Entry(
        place=place,
        program=_program(report.session.argv),
        work=_work(report.session.argv),
        verdict=report.verdict.text,
        headline=Headline(verdict_class=report.verdict.kind),
        state=BASELINE,
        started_ns=report.session.started_ns,
        host=report.session.host,
        bytes=place.path.stat().st_size,
        commit=report.session.commit,
    )


def _sweep(place: Place) -> Entry:
    result = kept(place.path)
    if result is None:
        return Entry(place=place, state=DAMAGED, problem="its result is damaged")
    return Entry(
        place=place,
        program=_program(result.argv),
        work=_work(result.argv),
        verdict=result.verdict.text,
        headline=Headline(verdict_class=place.kind),
        state=ENDED if result.complete else UNKNOWN,
    )


def _program(argv: Sequence[str]) -> str:
    """Where the interpreter lies says little of a run."""
    return " ".join([Path(word).name if place == 0 else word for place, word in enumerate(masked(argv))])


def _work(argv: Sequence[str]) -> str:
    return " ".join(command_of(masked(argv)))
