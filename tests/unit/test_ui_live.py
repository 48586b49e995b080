"""`iotrace ui`: what the page of a run that goes on shows, and what looking at it may cost."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from iotrace.analysis import looks as looking
from iotrace.analysis.pulse import SECONDS, Pulse, RankPulse
from iotrace.analysis.results import FileGroup
from iotrace.analysis.results.top import TopProcess, TopVerdict
from iotrace.report.blocks import Field, Table
from iotrace.session.hangs import BlockedProcess, Hang, Status
from iotrace.ui.index import Index
from iotrace.ui.lists import Query, chosen
from iotrace.ui.live import Feeds, Look, _stacks, holds_up
from iotrace.ui.running import Running, _pulse_shown, _strip
from iotrace.ui.server import WORDS
from iotrace.ui.worker import _meanings
from tests.support.results import unknown
from tests.support.served import served, session
from tests.unit.test_metrics import rank, top
from tests.unit.test_ui import NASTY


def page(look: Look) -> str:
    assert look.top is not None
    return Running._shown(Running.__new__(Running), look, look.top)


@pytest.fixture
def look() -> Look:
    found = Look()
    found.top = top(replace(rank(0), last_steps_ms=[50.0, 100.0], last_waits_ms=[20.0, 80.0], host=NASTY))
    return found


def test_the_last_steps_are_drawn_with_their_waits(look: Look) -> None:
    shown = page(look)
    assert "The last 2 steps, 50.0\u00a0ms to 100.0\u00a0ms each" in shown
    assert look.top is not None
    strip = _strip(look.top.ranks[0])
    assert (strip["count"], strip["most_ms"], strip["known"]) == (2, 100.0, True)
    assert strip["wait"].startswith("M0 800h0.88v200")
    assert "the wait is unknown" in shown.replace("waits for data", "the wait is unknown")
    look.top = top(replace(rank(0), last_steps_ms=[50.0]))
    assert "the wait is unknown" in page(look)
    look.top = top(rank(0))
    assert "The last" not in page(look)


def test_a_hang_is_shown_with_its_stacks_and_before_all_else(look: Look) -> None:
    blocked = BlockedProcess(pid=7, role="rank 1", stack=[f'File "{NASTY}", line 3 in wait', "main"])
    hang = Hang(mono_ns=1, waited_ns=90, processes=[blocked, BlockedProcess(pid=8)])
    assert _stacks(Status(state="hung", hangs=[replace(hang, resumed=True)], text=[])) == []
    worker = BlockedProcess(pid=9, role="worker 0", of=7, stack=["main"])
    of_rank = replace(hang, processes=[blocked, worker])
    (_, (who, _)) = _stacks(Status(state="hung", hangs=[of_rank], text=[]))
    assert who == "worker 0 of rank 1 (pid 9)"
    look.state, look.hang = "hung", ["HUNG: no batch for 90 s", f"rank 1 waits in {NASTY}"]
    look.stacks = _stacks(Status(state="hung", hangs=[hang], text=[]))
    shown = page(look)
    assert "stack of rank 1 (pid 7)" in shown
    assert shown.index("HUNG") < shown.index('class="banner"')
    assert "<script>alert" not in shown
    assert "\u202e" not in shown
    look.state = "running"
    assert "It hung earlier" in page(look)
    assert 'class="hang"' not in page(look)


def test_of_a_hang_the_rank_that_the_others_wait_for_is_marked_and_figures_are_of_before(look: Look) -> None:
    waits = BlockedProcess(pid=6, role="rank 0", collective="backward", text="waits for other ranks")
    main = BlockedProcess(pid=7, role="rank 1", text="waits for its workers")
    stuck = BlockedProcess(pid=9, role="worker 0", of=7, text="is stuck")
    hang = Hang(mono_ns=1, waited_ns=90, processes=[waits, main, stuck])
    status = Status(state="hung", hangs=[hang], text=[])
    assert holds_up(status) == 1
    assert holds_up(replace(status, hangs=[replace(hang, processes=[waits, main])])) is None
    assert holds_up(replace(status, hangs=[replace(hang, resumed=True)])) is None
    worker = TopProcess(pid=9, role="worker 0", busy_fraction=0.97)
    look.top = replace(
        top(rank(0), replace(rank(1), processes=[worker])), verdict=TopVerdict(text="INPUT-BOUND", rank=0)
    )
    assert '<tr class="worst"><td class="n">0' in page(look)
    assert "<dt>Step</dt>" in page(look)
    assert "97\u00a0%" in page(look)
    look.state, look.hang, look.holds_up = (
        "hung",
        ["HUNG: no batch for 90 s", "worker 0 of rank 1 is stuck"],
        1,
    )
    assert '<tr class="worst"><td class="n">1 holds the others up' in page(look)
    assert "<b>Next</b>" in page(look)
    assert "Ranks, before that" in page(look)
    assert "<dt>Step</dt>" not in page(look)
    assert "97\u00a0%" not in page(look)
    look.holds_up = None
    assert 'class="worst"' not in page(look)


def test_the_seconds_of_each_rank_are_drawn_and_the_rank_of_the_verdict_first() -> None:
    nothing: list[None] = [None] * (SECONDS - 2)
    pulse = Pulse(
        [
            RankPulse(0, NASTY, [*nothing, 7, None], [*nothing, 0.25, None], 2.0),
            RankPulse(1, None, [None] * SECONDS, [None] * SECONDS, 90.0),
        ]
    )
    shown = _pulse_shown(pulse, None)
    assert shown.index("rank 1") < shown.index("rank 0")  # who has had none for longest
    assert "7 batches/s · waits 25\u00a0%" in shown
    assert 'class="bad">last batch 1 min 30 s ago' in shown
    assert f"M{SECONDS - 2} 750h0.88v250" in shown
    verdict = TopVerdict(text="INPUT-BOUND", rank=0)
    shown = _pulse_shown(pulse, replace(top(), verdict=verdict))
    assert shown.index("rank 0") < shown.index("rank 1")
    assert _pulse_shown(Pulse([]), None).strip() == ""
    assert len(_pulse_shown(pulse, None)) < 3000  # it is sent every second


@pytest.mark.anyio
async def test_between_looks_only_what_is_new_is_sent(look: Look, tmp_path: Path) -> None:
    feeds, look.number = Feeds(tmp_path), 1
    session(tmp_path / "live", exit_code=None)
    (entry,) = Index([tmp_path]).entries()
    events = Running(Index([tmp_path]), feeds)._events(entry)
    feeds._looks[entry.place.path] = look

    async def after(change: str, value: object) -> str:
        setattr(look, change, value)
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.05)
        await feeds._tell(look)
        return (await waiting).decode()

    assert (await anext(events)).startswith(b"event: look")
    pulse = Pulse([RankPulse(0, None, [1] * SECONDS, [0.0] * SECONDS, 1.0)])
    assert (await after("pulse", pulse)).startswith("event: pulse")
    assert (await after("state", "running")) == ":\n\n"
    assert (await after("number", 2)).startswith("event: look")
    del feeds._looks[entry.place.path]  # it ended: no other look begins
    assert await after("over", True) == "event: over\ndata: \n\n"
    assert [each async for each in events] == []
    assert feeds._looks == {}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_the_list_says_what_a_run_hangs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session(tmp_path / "live", exit_code=None)
    told = Status(state="hung", hangs=[], text=["HUNG: no batch for 90 s", "  rank 1 waits", "  rank 0 too"])
    monkeypatch.setattr("iotrace.ui.index.read_status", lambda _: told)
    (entry,) = chosen(Index([tmp_path]).entries(), Query(state="hung"))
    assert (entry.verdict, entry.headline.why) == ("HUNG: no batch for 90 s", "rank 1 waits")
    assert entry.is_live


def test_looks_take_no_more_of_a_core_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(mono=0.0, cpu=0.0)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now.mono += seconds

    class Watched:
        def __init__(self, *_: object) -> None:
            self._costs: Iterator[float] = iter([0.001, 0.05, 0.05])
            self.ended = False

        def look(self) -> object:
            cost = next(self._costs, None)
            now.cpu += cost or 0.0
            now.mono += cost or 0.0
            return replace(top(), state="running" if cost else "ended")

        def pulse(self) -> Pulse:
            return Pulse([])

        def may_have_ended(self) -> bool:
            return self.ended

    clock = SimpleNamespace(monotonic=lambda: now.mono, process_time=lambda: now.cpu, sleep=sleep)
    monkeypatch.setattr(looking, "time", clock)
    monkeypatch.setattr(looking, "Watch", Watched)
    monkeypatch.setattr(looking, "LiveSession", lambda path: path)
    found = list(looking.looks(Path("run"), 1.0, 0.01))
    assert [each.state for each in found] == ["running"] * 3 + ["ended"]
    assert slept == pytest.approx([0.999, 4.95, 4.95])
    slept.clear()
    seen = list(looking.looks_and_pulses(Path("run"), 0.01))
    kinds = ["pulse" if isinstance(each, Pulse) else each.state for each in seen]
    assert kinds == ["running", "running", *["pulse"] * 4, "running", *["pulse"] * 4, "ended"]
    assert slept == pytest.approx([0.999, 0.95, *[1.0] * 4, 0.95, *[1.0] * 4])


def test_words_and_columns_are_explained(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with served(tmp_path / "runs", own=tmp_path / "own") as client:
        assert 'href="/words"' in client.get("/").text
        shown = client.get("/words").text
    for _, words in WORDS:
        assert all(f"<dt>{html.escape(word)}</dt>" in shown for word in words)
    fields = [Field("path", "file"), Field("kind", "kind"), Field("else", "other")]
    named = _meanings(Table(title="a", rows=[unknown(FileGroup, path="a.h5")], fields=fields))
    assert named[0] == ("file", "the file, or the directory that it stands for")
    assert [heading for heading, _ in named] == ["file", "kind"]
    assert _meanings(Table(title="a", rows=[], fields=fields)) == []
