"""Items are followed from who took them to who made them, and through the stages in between."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np

from iotrace.analysis.loop.cuts import Rounds
from iotrace.analysis.loop.deliveries import FIELDS, Deliveries
from iotrace.analysis.loop.hops import Hops, Made, _with_parts, maker_key
from iotrace.analysis.loop.join import _making_ns
from iotrace.analysis.loop.pools import _mostly_made_by, _no_turns, _waited_for
from iotrace.analysis.table import NONE
from iotrace.analysis.wait.chains import Chains, makers_of
from iotrace.session.names import BATCH_ROW, KIND_ITEM, PART_OF_TASK
from iotrace.sources.columns import Columns
from iotrace.sources.processes import SPAN_DTYPE
from iotrace.sources.rows import DTYPES
from iotrace.sources.session import Rank, Session

PID = 100
READER, DECODER, LOOP = 101, 102, PID


def numbers(*values: int) -> Any:
    return np.array(values, np.int64)


def deliveries(**columns: Any) -> Deliveries:
    """Batches made by threads of one process; `NONE` is what is not given."""
    length = len(columns["wait_start_ns"])
    known = {field: np.full(length, NONE) for field in FIELDS}
    return Deliveries(Columns(length, {**known, **columns}), {})


def test_an_item_is_found_by_its_number_within_its_process() -> None:
    made = Made(
        scope=numbers(1, 2, 0),
        pool=numbers(4, 4, 7),
        item=numbers(0, 0, 0),
        pid=numbers(1, 2, 3),
        tid=numbers(1, 2, 3),
        taken_ns=numbers(0, 0, 0),
        prepared_ns=numbers(5, 5, 5),
        fed=numbers(0, 0, 0),
        piped_bytes=numbers(0, 0, 0),
        given_bytes=numbers(0, 0, 0),
    )
    found = made.rows_of(numbers(2, 0, 3), numbers(4, 7, 4), numbers(0, 0, 0), numbers(9, 9, 9))
    assert found.tolist() == [1, 2, -1]


def test_what_comes_along_with_the_first_item_of_a_task_has_its_maker_and_took_no_time() -> None:
    first, told = numbers(7, 8), numbers(7 + 2 * PART_OF_TASK)
    made = Made(
        scope=numbers(0, 0, 0),
        pool=numbers(5, 5, 5),
        item=np.concatenate((first, told)),
        pid=numbers(1, 2, 9),
        tid=numbers(1, 2, 9),
        taken_ns=numbers(10, 20, 30),
        prepared_ns=numbers(15, 25, 35),
        fed=numbers(1, 1, 0),
        piped_bytes=numbers(NONE, 4096, NONE),
        given_bytes=numbers(NONE, NONE, NONE),
    )
    taken = np.zeros(5, DTYPES[BATCH_ROW])
    taken["generation"] = 5
    taken["index"] = [7, 8, 8 + PART_OF_TASK, *told, 3 + PART_OF_TASK]  # of the last nobody knows
    taken["delivered_ns"] = [50, 60, 61, 62, 63]
    main: Any = SimpleNamespace(
        pid=PID, rows=lambda _: taken, clock=SimpleNamespace(times_to_session_ns=np.asarray)
    )
    whole = _with_parts(made, main)
    assert len(whole.item) == 4
    added = {field: int(getattr(whole, field)[3]) for field in whole.__struct_fields__}
    assert (added["item"], added["pid"]) == (8 + PART_OF_TASK, 2)
    assert (added["taken_ns"], added["prepared_ns"], added["fed"]) == (25, 25, 0)
    assert added["piped_bytes"] == NONE
    row = whole.rows_of(numbers(0), numbers(5), numbers(8 + PART_OF_TASK), numbers(61))
    assert row.tolist() == [3]


def turns(*between_us: int) -> Deliveries:
    """What a thread takes, with so long between one item and the ask for the next."""
    ends = np.cumsum([0, *(1000 * each + 100 for each in between_us)])
    return deliveries(wait_start_ns=ends, delivered_ns=ends + 100, tid=numbers(*[LOOP] * len(ends)))


def why_no_turns(taken: Deliveries) -> str:
    return _no_turns(cast(Session, None), cast(Rank, None), taken, "a queue")


def test_short_turns_of_one_length_are_turns_and_what_is_gathered_is_none() -> None:
    assert not why_no_turns(turns(*[4000] * 20))
    assert not why_no_turns(turns(*[80, 90, 170, 200, 85, 180, 230, 160] * 9))
    assert "several results" in why_no_turns(turns(*[*[5] * 15, 4000] * 9))
    assert "several results" in why_no_turns(turns(*[*[60] * 15, 4000] * 9))
    assert "gathers" in why_no_turns(turns(*[5] * 40))


def pool(asked: list[int], got: list[int], name: str = "feed") -> Any:
    """A queue from which the loop takes items: when it asks first, and gets them."""
    taken = deliveries(
        wait_start_ns=numbers(*asked), delivered_ns=numbers(*got), tid=numbers(*[LOOP] * len(got))
    )
    return Queued(deliveries=taken, name=name)


class Queued(msgspec.Struct, frozen=True):
    deliveries: Deliveries
    name: str


def trained(*at_ns: int) -> Any:
    return {LOOP: Rounds(numbers(*at_ns), numbers(*[0] * len(at_ns)).astype(np.int16))}


def test_a_queue_that_the_loop_looks_at_and_trains_on_is_not_waited_for() -> None:
    batches = pool([0, 20, 40, 60], [10, 21, 41, 61])
    told = pool([12, 45], [43, 65], "told")
    steps = trained(15, 35, 55, 75)
    assert [each.name for each in _waited_for([batches, told], steps)] == ["feed"]
    # Without another queue it may be the loop's input all the same; the training is no wait.
    (alone,) = _waited_for([told], steps)
    assert alone.deliveries.wait_ns.tolist() == [0, 0]
    # The loop polls, and trains once it has an item: all of that is a wait.
    (polled,) = _waited_for([pool([16, 36], [34, 54])], steps)
    assert polled.deliveries.wait_ns.tolist() == [18, 18]


def test_an_item_that_comes_after_another_one_was_not_waited_for() -> None:
    images, labels = pool([0, 20], [10, 30]), pool([11, 15], [12, 32])
    found = _waited_for([images, labels], trained(13, 40))
    assert [each.deliveries.wait_ns.tolist() for each in found] == [[10, 10], [1, 0]]


def test_a_pool_is_called_by_the_function_that_made_most_items() -> None:
    spans: Any = np.zeros(5, SPAN_DTYPE)
    spans["kind"], spans["duration_ns"], spans["start_ns"] = KIND_ITEM, 10, 20 * np.arange(5)
    spans["name"] = numbers(1, 2, 2, 2, 2)
    process = SimpleNamespace(pid=PID, spans=spans, texts={1: "abs", 2: "read_slide"})
    rank: Any = SimpleNamespace(main=process, processes=[process])
    ends = 20 * np.arange(5) + 10
    taken = deliveries(
        wait_start_ns=ends, delivered_ns=ends, taken_ns=ends - 10, prepared_ns=ends, pid=numbers(*[PID] * 5)
    )
    assert _mostly_made_by(rank, taken) == "read_slide"
    assert _mostly_made_by(rank, taken.changed(prepared_ns=ends + 1)) == ""


def test_items_of_one_number_come_in_order() -> None:
    same = numbers(8, 8, 8)
    made = Made(
        scope=0 * same,
        pool=same,
        item=same,
        pid=same,
        tid=numbers(1, 2, 3),
        taken_ns=0 * same,
        prepared_ns=numbers(30, 10, 20),
        fed=0 * same,
        piped_bytes=0 * same,
        given_bytes=0 * same,
    )
    found = made.rows_of(0 * same, same, same, numbers(50, 15, 25))
    assert made.tid[found].tolist() == [1, 2, 3]


def chain() -> tuple[Chains, Deliveries]:
    """A reader makes an item from 0 to 60, for which a decoder waits from 10 on, and works until 100."""
    taken = deliveries(
        wait_start_ns=numbers(10),
        delivered_ns=numbers(60),
        taken_ns=numbers(0),
        prepared_ns=numbers(60),
        tid=numbers(DECODER),
        pid=numbers(PID),
        maker_tid=numbers(READER),
    )
    unknown = numbers(-1)
    hops = Hops(
        taken, maker_key(numbers(PID), numbers(DECODER)), numbers(0), unknown, unknown, [], [None, None]
    )
    chains = Chains.__new__(Chains)
    chains.hops, chains._main_pid = hops, PID
    of_loop = deliveries(
        loader=numbers(3),
        wait_start_ns=numbers(40),
        delivered_ns=numbers(100),
        taken_ns=numbers(5),
        prepared_ns=numbers(100),
        tid=numbers(LOOP),
        maker_tid=numbers(DECODER),
    )
    return chains, of_loop


def test_a_stage_holds_what_it_took_while_it_made_an_item() -> None:
    chains, of_loop = chain()
    assert makers_of(of_loop, PID).tolist() == maker_key(numbers(PID), numbers(DECODER)).tolist()
    rows, of = chains.inside(of_loop)
    assert (rows.tolist(), of.tolist()) == ([0], [0])
    later = of_loop.changed(taken_ns=numbers(20))
    assert chains.inside(later)[0].tolist() == []


def test_the_loops_wait_is_what_each_stage_did_meanwhile() -> None:
    chains, of_loop = chain()
    assert chains.worked(of_loop) == {-4: 40, 0: 20}  # from 60 on, and from 40 to 60


def test_what_a_stage_waited_for_before_the_loop_did_costs_nothing() -> None:
    chains, of_loop = chain()
    assert chains.worked(of_loop.changed(wait_start_ns=numbers(70))) == {-4: 30}


def test_a_lock_counts_in_what_a_stage_did_and_where_it_took_late_what_lay_ready() -> None:
    chains, of_loop = chain()
    waited = {100: 50, 60: 8}  # by the end of a making

    def locked(items: Deliveries) -> Any:
        return numbers(*(waited[each] for each in items["prepared_ns"].tolist()))

    assert chains.within_locks(of_loop, locked) == 40 + 8  # of 50 no more than the decoder worked
    taken = chains.hops.deliveries
    late = taken.changed(prepared_ns=numbers(45))
    chains.hops = msgspec.structs.replace(chains.hops, deliveries=late)
    waited[45] = 5
    assert chains.within_locks(of_loop, locked) == 50 + 5  # 40 of its own, 15 late: the lock had 50 of them


def test_what_a_call_returns_at_once_took_its_making_without_the_sending() -> None:
    # One process makes three items of a call, and sends each before it begins with the next.
    made = Made(
        scope=numbers(0, 0, 0),
        pool=numbers(7, 7, 7),
        item=numbers(0, 1, 2),
        pid=numbers(9, 9, 9),
        tid=numbers(9, 9, 9),
        taken_ns=numbers(0, 100, 200),
        prepared_ns=numbers(10, 120, 230),
        fed=numbers(0, 0, 0),
        piped_bytes=numbers(1 << 20, 1 << 20, 1 << 20),
        given_bytes=numbers(NONE, NONE, NONE),
    )
    assert _making_ns(made, numbers(2), numbers(0)).tolist() == [10 + 20 + 30]
    assert _making_ns(made, numbers(2), numbers(200)).tolist() == [30]
