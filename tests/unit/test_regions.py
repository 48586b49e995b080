"""Regions: what they record, what they leave alone, and what they cost where nothing is recorded."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import iotrace
from iotrace.agent.dataloader.wrapped_source import recorded
from iotrace.agent.recording import regions
from iotrace.agent.recording.recorder import Recorder
from iotrace.analysis.loop.deliveries import Delivery
from iotrace.analysis.wait.regions import regions_of
from iotrace.analysis.wait.waits import CAUSES, Explained
from iotrace.session.names import KIND_REGION, PROCESSES
from iotrace.sources.clocks.session_clock import Clock
from iotrace.sources.processes import SPAN_DTYPE, Process
from iotrace.sources.records import Identity
from iotrace.sources.session import Rank
from tests.support.counting import instructions
from tests.support.rows import told
from tests.support.tables import waits_of


@iotrace.region("decorated")
def decorated(value: int, *, factor: int = 2) -> int:
    """Multiply."""
    return value * factor


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    """A recorder that regions and steps are attached to."""
    (tmp_path / PROCESSES).mkdir()
    made = Recorder(str(tmp_path))
    made.open({"pid": os.getpid(), "ppid": 1, "role": "main"})
    regions.attach(made, recorded)
    yield made
    regions.detach()
    made.close()


def spans_of(recorder: Recorder) -> list[tuple[str, int, int]]:
    """Name, thread and duration of each span, in the order in which they ended."""
    recorder.pause()
    texts = {number: text for text, number in recorder._texts.items()}
    assert all(span[7] == KIND_REGION for span in recorder.spans)
    return [(texts[span[5]], span[4], span[1]) for span in recorder.spans]


def names_of(recorder: Recorder) -> list[str]:
    return [name for name, _, _ in spans_of(recorder)]


def test_outside_a_run_nothing_is_recorded_and_everything_runs() -> None:
    with iotrace.region("idle") as entered:
        assert isinstance(entered, regions.Region)
    assert decorated(3) == 6
    source = [1, 2]
    iterator = iotrace.batches(source)
    assert type(iterator) is type(iter(source))
    iotrace.step()


def test_blocks_and_functions_nest(recorder: Recorder) -> None:
    with iotrace.region("outer"):
        time.sleep(0.01)
        assert decorated(3) == 6
    spans = spans_of(recorder)
    assert [name for name, _, _ in spans] == ["decorated", "outer"]
    assert spans[1][2] >= 10_000_000


def test_a_decorated_function_looks_as_before() -> None:
    assert decorated.__name__ == "decorated"
    assert decorated.__doc__ == "Multiply."
    assert decorated.__module__ == __name__
    assert list(inspect.signature(decorated).parameters) == ["value", "factor"]
    assert pickle.loads(pickle.dumps(decorated)) is decorated


def test_recursion_and_one_object_used_twice(recorder: Recorder) -> None:
    again = iotrace.region("again")

    @again
    def down(depth: int) -> int:
        return down(depth - 1) if depth else 0

    down(3)
    with again, again:
        pass
    assert names_of(recorder) == ["again"] * 6


def test_methods_of_every_kind(recorder: Recorder) -> None:
    class Dataset:
        size = 3

        @iotrace.region("method")
        def method(self) -> int:
            return self.size

        @iotrace.region("class")
        @classmethod
        def of_class(cls) -> int:
            return cls.size

        @staticmethod
        @iotrace.region("static")
        def static() -> int:
            return 1

        @iotrace.region("static outside")
        @staticmethod
        def static_outside() -> int:
            return 2

        @property
        @iotrace.region("property")
        def shown(self) -> int:
            return self.size

    made = Dataset()
    assert (made.method(), Dataset.of_class(), made.shown) == (3, 3, 3)
    assert (made.static(), made.static_outside()) == (1, 2)
    assert names_of(recorder) == ["method", "class", "property", "static", "static outside"]


def test_an_exception_passes_with_its_own_traceback(recorder: Recorder) -> None:
    @iotrace.region("broken")
    def broken() -> None:
        raise ValueError("the program's own")

    for call in (broken, lambda: next(generator())):

        @iotrace.region("broken")
        def generator() -> Iterator[int]:
            raise ValueError("the program's own")
            yield 1

        with pytest.raises(ValueError, match="own") as caught:
            call()
        files = {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)}
        assert files == {__file__}
    with pytest.raises(KeyError), iotrace.region("block"):
        raise KeyError
    assert names_of(recorder) == ["broken", "broken", "block"]


def test_a_generator_is_timed_while_it_works(recorder: Recorder) -> None:
    @iotrace.region("produce")
    def produce() -> Any:
        received = []
        for number in range(3):
            time.sleep(0.01)
            received.append((yield number))
        return received

    assert inspect.isgeneratorfunction(produce)
    began_ns = time.perf_counter_ns()
    made = produce()
    assert next(made) == 0
    slept_ns = -time.perf_counter_ns()
    time.sleep(0.05)
    slept_ns += time.perf_counter_ns()
    assert made.send("a") == 1
    assert next(made) == 2
    with pytest.raises(StopIteration) as stopped:
        made.send("c")
    elapsed_ns = time.perf_counter_ns() - began_ns
    assert stopped.value.value == ["a", None, "c"]
    spans = spans_of(recorder)
    assert [name for name, _, _ in spans] == ["produce"] * 4
    assert sum(duration_ns for _, _, duration_ns in spans) <= elapsed_ns - slept_ns


def test_a_generator_is_closed_and_thrown_into(recorder: Recorder) -> None:
    seen = []

    @iotrace.region("guarded")
    def guarded() -> Iterator[int]:
        try:
            yield 1
        except KeyError:
            seen.append("thrown")
            yield 2
        finally:
            seen.append("closed")

    made: Any = guarded()
    next(made)
    assert made.throw(KeyError()) == 2
    made.close()
    assert seen == ["thrown", "closed"]


def test_regions_of_interleaved_generators_sum_up(recorder: Recorder) -> None:
    def produce() -> Iterator[None]:
        with iotrace.region("held"):
            yield

    one, two = produce(), produce()
    next(one)
    next(two)
    for generator in (one, two):
        assert list(generator) == []
    assert names_of(recorder) == ["held", "held"]


def test_threads_have_spans_of_their_own(recorder: Recorder) -> None:
    shared = iotrace.region("shared")
    both_inside = threading.Barrier(2)

    def work() -> None:
        with shared:
            both_inside.wait(10)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = spans_of(recorder)
    assert len(spans) == 2
    assert len({tid for _, tid, _ in spans}) == 2


def test_a_run_that_begins_or_ends_inside_a_region(recorder: Recorder) -> None:
    region = iotrace.region("crossing")
    regions.detach()
    with region:
        regions.attach(recorder, recorded)
    with region:
        regions.detach()
    regions.attach(recorder, recorded)
    with region:
        pass
    assert names_of(recorder) == ["crossing"]


def test_what_cannot_be_timed_is_refused_with_a_sentence() -> None:
    async def coroutine() -> None:
        pass

    for wrong in (coroutine, Path, 3):
        with pytest.raises(TypeError, match="decorates functions, methods and generator functions"):
            iotrace.region("wrong")(wrong)


def test_marks_and_batches_are_recorded(recorder: Recorder) -> None:
    def source() -> Iterator[int]:
        yield from range(3)

    for _ in range(2):
        for _ in iotrace.batches(source()):
            iotrace.step()
    recorder.pause()
    records = [
        record
        for record in told(recorder.records)
        if record["type"] not in ("collector", "stacks", "text", "threads", "tick", "versions")
    ]
    kinds = [record["type"] for record in records]
    assert kinds == ["iterator", *["batch", "mark"] * 3, "iterator_end"] * 2
    batches = [record for record in records if record["type"] == "batch"]
    assert [(batch["epoch"], batch["index"]) for batch in batches] == [
        (e, i) for e in (0, 1) for i in range(3)
    ]
    # A generator made anew is the same source, iterated again.
    assert len({record["loader"] for record in records if record["type"] == "iterator"}) == 1


def test_an_idle_use_is_a_few_instructions() -> None:
    """What they cost is measured by ``tools/bench agent``: below 200 ns each."""

    def block() -> None:
        with iotrace.region("idle"):
            pass

    def bare() -> int:
        return decorated.__wrapped__(1)  # type: ignore[attr-defined, no-any-return]

    found = {
        "with": instructions(block),
        "decorator": instructions(lambda: decorated(1)) - instructions(bare),
        "step": instructions(iotrace.step),
    }
    assert all(0 < count < 90 for count in found.values()), found


def test_importing_iotrace_brings_nothing_in() -> None:
    script = """
import sys
before = set(sys.modules)
import iotrace
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    modules = done.stdout.split()
    assert {module.partition(".")[0] for module in modules} <= {"iotrace", "__future__"}
    assert "iotrace" in modules
    assert len(modules) <= 12, modules


PID = 7


def process(*rows: dict[str, int]) -> Process:
    table = np.zeros(len(rows), dtype=SPAN_DTYPE)
    for place, row in enumerate(rows):
        for name, value in {"tid": PID, "kind": KIND_REGION, **row}.items():
            table[name][place] = value
    identity = Identity(format=1, pid=PID, ppid=1, role="main", clock=(0, 0, 1))
    return Process(identity, Clock([[0, 0, 1]]), [], table, {0: "load", 1: "train"})


def waited(number: int, taken_ns: int, prepared_ns: int, wait_start_ns: int) -> Explained:
    delivery = Delivery(
        0, number, 0, 0, number, wait_start_ns, prepared_ns, taken_ns=taken_ns, prepared_ns=prepared_ns
    )
    return Explained(delivery, dict.fromkeys(CAUSES, 0))


def test_a_wait_is_charged_by_the_share_of_production() -> None:
    one, two = waited(0, 1000, 1100, 1050), waited(1, 2000, 2100, 2000)
    main = process(
        {"start_ns": 1000, "duration_ns": 60, "name": 0},
        {"start_ns": 1010, "duration_ns": 10, "name": 0},  # recursion: its time is in the outer one's
        {"start_ns": 2050, "duration_ns": 100, "name": 0},  # half of it behind the production
        {"start_ns": 2200, "duration_ns": 100, "name": 1},
    )
    load, train = regions_of(Rank(0, None, 0, main, []), 2, waits_of([one, two]))
    assert (load.name, load.count, load.ms_total) == ("load", 3, 160e-6)
    # 60 % of a wait of 50 ns and half of one of 100 ns, over two steps.
    assert load.wait_ms == pytest.approx((30 + 50) / 2 / 1e6)
    assert (train.name, train.count, train.wait_ms) == ("train", 1, None)
    (unmeasured, _) = regions_of(Rank(0, None, 0, main, []), 0, waits_of([one, two]))
    assert unmeasured.wait_ms is None


def test_where_few_batches_are_seen_to_be_made_no_wait_is_charged() -> None:
    unseen = [Explained(Delivery(0, at, 0, 0, at, 2000, 2100), dict.fromkeys(CAUSES, 0)) for at in (1, 2)]
    main = process({"start_ns": 1000, "duration_ns": 60, "name": 0})
    (load,) = regions_of(Rank(0, None, 0, main, []), 3, waits_of([waited(0, 1000, 1100, 1050), *unseen]))
    assert (load.ms_total, load.wait_ms) == (60e-6, None)


def test_a_wait_beside_the_making_of_later_batches_is_charged_too() -> None:
    delivery = Delivery(0, 0, 0, 0, 0, 1100, 1180, taken_ns=1000, prepared_ns=1100)
    late = Explained(delivery, causes(transport=30))
    main = process({"start_ns": 1000, "duration_ns": 60, "name": 0})
    (load,) = regions_of(Rank(0, None, 0, main, []), 1, waits_of([late]))
    # 50 of 80 ns on its way are charged to what its worker made meanwhile; the region is 60 % of its own.
    assert load.wait_ms == pytest.approx(30 / 1e6)


def causes(**known: int) -> dict[str, int]:
    return dict.fromkeys(CAUSES, 0) | known
