"""`iotrace ui`: what the page of a run that goes on shows, and what looking at it may cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from iotrace.analysis import looks as looking
from iotrace.session.hangs import BlockedProcess, Hang, Status
from iotrace.ui.choosing import Query, chosen
from iotrace.ui.index import Index
from iotrace.ui.live import Look, _stacks
from iotrace.ui.running import Running, _strip
from tests.support.served import session
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
    look.state, look.hang = "hung", ["HUNG: no batch for 90 s", f"rank 1 waits in {NASTY}"]
    look.stacks = _stacks(Status(state="hung", hangs=[hang], text=[]))
    shown = page(look)
    assert "stack of rank 1 (pid 7)" in shown
    assert shown.index("HUNG") < shown.index('class="banner"')
    assert "<script>alert" not in shown
    assert "\u202e" not in shown


def test_the_list_says_what_a_run_hangs_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session(tmp_path / "live", exit_code=None)
    told = Status(state="hung", hangs=[], text=["HUNG: no batch for 90 s", "  rank 1 waits", "  rank 0 too"])
    monkeypatch.setattr("iotrace.ui.index.status_of", lambda _: told)
    (entry,) = chosen(Index([tmp_path]).entries(), Query(state="hung"))
    assert (entry.verdict, entry.headline.why) == ("HUNG: no batch for 90 s", "rank 1 waits; rank 0 too")
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

        def look(self) -> object:
            cost = next(self._costs, None)
            now.cpu += cost or 0.0
            now.mono += cost or 0.0
            return replace(top(), state="running" if cost else "ended")

    clock = SimpleNamespace(monotonic=lambda: now.mono, process_time=lambda: now.cpu, sleep=sleep)
    monkeypatch.setattr(looking, "time", clock)
    monkeypatch.setattr(looking, "Watch", Watched)
    monkeypatch.setattr(looking, "LiveSession", lambda path: path)
    found = list(looking.looks(Path("run"), 1.0, 0.01))
    assert [each.state for each in found] == ["running"] * 3 + ["ended"]
    assert slept == pytest.approx([0.999, 4.95, 4.95])
