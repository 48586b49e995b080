"""Event loops whose coroutines make the loop's items: they sleep while all coroutines wait."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.causes import MOSTLY, finding, is_worth, level, which
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.rules.model import THE_CAUSE, Finding, fires, rule, silent
from iotrace.units import percent

_ASLEEP = {"cause": "unknown", "wrapped": True, "workers": 1, "dataset": "", "pool": "asyncio.Queue"}


@rule("IO251", "event-loop-sleeps", "loader", turn=THE_CAUSE)
@fires({**_ASLEEP, "event_loop": 0.9}, {**_ASLEEP, "pool": "queue.Queue", "event_loop": 0.9})
@silent(
    _ASLEEP,
    {**_ASLEEP, "event_loop": 0.3},
    {**_ASLEEP, "cause": "transform", "event_loop": 0.9},
    {**_ASLEEP, "event_loop": 0.9, "wait_ms": 4.0, "causes_ms": {"unknown": 4.0}},
)
def event_loop_sleeps(facts: LoaderFacts) -> Iterator[Finding]:
    """The loop waits for a queue that coroutines fill, and meanwhile their event loop sleeps: none can run.

    All of them wait for something outside: a socket, a timer, a thread or another process. Samples of the
    thread's stack show it; if the event loop has its own thread, iotrace looks at that thread. Which
    coroutine makes an item is not recorded.

    Remedy: fetch more items at once, for example with several tasks that fill the queue, if what they wait
    for can serve several.
    """
    unknown_ms = facts.causes_ms.get("unknown", 0.0)
    if facts.event_loop < MOSTLY or unknown_ms < MOSTLY * facts.wait_ms or not is_worth(unknown_ms, facts):
        return
    pool = facts.about.pool
    own = pool.startswith("asyncio.")
    several = f"have several tasks fill the {pool} at once" if own else "have more coroutines wait at once"
    yield finding(
        facts,
        text=(
            f"the event loop sleeps for at least {percent(facts.event_loop)} of the wait for the {pool}: "
            "every coroutine waits for a socket, a timer, a thread or a process"
        ),
        how=(
            f"{several}, if what they wait for (a server, storage, a pool) can serve several: a higher "
            "limit (of a Semaphore), or more of them (gather)"
        ),
        remedy=f"{several} (a higher limit, gather), if a server, storage or a pool can serve several",
        level=level(unknown_ms, facts),
        evidence={"unknown_ms": unknown_ms, "asleep": facts.event_loop, **which(facts)},
        cost_ms=unknown_ms,
        is_main_cause=True,
        tries=True,
    )
