"""Code that holds the interpreter's lock keeps a worker from sending what it made."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iotrace.agent.dataloader import worker
from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.results import DataWait, HotLine, LoaderResult, RankReport, System
from iotrace.analysis.verdict.reason import reason_of
from iotrace.analysis.wait.sending import locked_ns, sends_behind_next
from iotrace.analysis.wait.waits import split_waits
from iotrace.session.names import LOCKED_ROW, SENDING_AT
from iotrace.sources.rows import DTYPES
from tests.support.results import unknown
from tests.support.tables import deliveries_of


@pytest.mark.parametrize(
    ("way_ns", "making_ns", "held"),
    [
        (100, 100, True),  # a batch comes when the next one is made
        (103, 100, True),
        (100, 5, False),  # the way is long for itself
        (160, 100, False),
        (60, 400, False),  # the worker sends while it makes the next one
        (0, 100, False),
    ],
)
def test_batches_that_come_when_the_next_are_made(way_ns: int, making_ns: int, held: bool) -> None:
    period = max(way_ns, making_ns) + 10
    own = deliveries_of(
        Delivery(
            loader=0,
            number=number,
            iterator=0,
            epoch=0,
            index=number,
            pid=7,
            worker=0,
            taken_ns=number * period,
            prepared_ns=number * period + making_ns,
            wait_start_ns=number * period + making_ns,
            delivered_ns=number * period + making_ns + 10 + way_ns,
        )
        for number in range(1, 12)
    )
    assert sends_behind_next(own, np.asarray(split_waits(own)[3])) is held


def told(texts: dict[int, str], *rows: tuple[int, int, int]) -> Any:
    """A worker's waits for the interpreter: begin, end, number of a text."""
    found = np.zeros(len(rows), DTYPES[LOCKED_ROW])
    for row, (start_ns, end_ns, text) in zip(found, rows, strict=True):
        row["start_ns"], row["end_ns"], row["waited_ns"], row["file"] = (
            start_ns,
            end_ns,
            end_ns - start_ns,
            text,
        )
    clock = SimpleNamespace(times_to_session_ns=np.asarray)
    return SimpleNamespace(pid=7, texts=texts, rows=lambda _: found, clock=clock)


def test_what_a_batch_under_way_waited_for_the_interpreter_lies_in_the_wait_for_it() -> None:
    batch = Delivery(
        loader=0, number=0, iterator=0, epoch=0, index=0, pid=7, worker=0,
        taken_ns=0, prepared_ns=100, wait_start_ns=150, delivered_ns=200,
    )  # fmt: skip
    own = deliveries_of([batch])
    way = np.array([50])
    texts = {3: SENDING_AT, 4: "data/a.h5"}
    # Of 100 to 180, what is before the loop waits costs it nothing.
    assert locked_ns(own, way, [told(texts, (100, 180, 3))]) == 30
    assert locked_ns(own, way, [told(texts, (160, 170, 3), (165, 180, 3))]) == 20
    assert locked_ns(own, way, [told(texts, (160, 180, 4), (160, 180, -1))]) is None
    assert locked_ns(own, np.array([0]), [told(texts, (160, 180, 3))]) == 0
    assert locked_ns(own, way, []) is None


@pytest.mark.parametrize(("locked_ms", "is_told"), [(4.0, True), (1.0, False), (None, False)])
def test_code_that_keeps_the_workers_interpreter_is_told_where_batches_wait_for_that(
    locked_ms: float | None, *, is_told: bool
) -> None:
    wait = unknown(
        DataWait,
        raw_ms=8.0,
        causes_ms={"transport": 5.0, "transform": 3.0},
        sending_locked_ms=locked_ms,
        files=[],
        by_loader=[],
    )
    hot = HotLine(line="p.py:41", function="tokenize", fraction=0.9, samples=90)
    loader = unknown(LoaderResult, id=0, primary=True, item="Rows.__iter__ (p.py:49)", item_hot=hot)
    system = unknown(System, gpus=[], processes=[])
    rank = unknown(
        RankReport, loaders=[loader], culprits=[], file_groups=[], pipeline=[], data_wait=wait, system=system
    )
    why = reason_of(rank)["why"]
    kept = "tokenize (p.py:41) keeps the worker's interpreter: batches wait 4.0 ms a step to be sent"
    assert (why == kept) is is_told


class Recorder:
    def __init__(self) -> None:
        self.over, self.records, self.errors = False, list[Any](), list[Exception]()

    def text(self, text: str) -> str:
        return text

    def absorb(self, error: Exception, _: str) -> None:
        self.errors.append(error)


def test_the_thread_that_sends_tells_how_long_it_waited_before_each_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits, sent = [0], list[bytes]()

    def send(buf: bytes) -> None:
        sent.append(buf)
        waits[0] += 7_000_000  # behind the writing: no batch is late for that

    monkeypatch.setattr(worker, "find_lock_waits", lambda: waits)
    recorder: Any = Recorder()
    data: Any = SimpleNamespace(_thread=None, _send_bytes=send)
    worker._watch_sending(data, recorder)
    for waited_ns in (0, 5_000_000, 10):
        waits[0] += waited_ns
        data._send_bytes(b"batch")
    assert len(sent) == 3
    ((kind, _, start_ns, end_ns, waited, text),) = recorder.records
    assert (kind, waited, end_ns - start_ns, text) == (LOCKED_ROW, 5_000_000, 5_000_000, SENDING_AT)
    recorder.text = None  # an error of ours
    waits[0] += 5_000_000
    data._send_bytes(b"batch")
    assert (len(sent), len(recorder.errors)) == (4, 1)


def test_a_queue_of_another_make_is_left_alone() -> None:
    recorder: Any = Recorder()
    plain: Any = queue.Queue()
    worker._watch_sending(plain, recorder)
    begun: Any = SimpleNamespace(_thread=object(), _send_bytes=print)
    worker._watch_sending(begun, recorder)
    assert begun._send_bytes is print
