"""A device that is simulated: a program's own durations decide its step, so that what shortens it is known.

One host thread launches on streams, tells streams to wait, and waits for the device. What is on the critical
path is found without any definition of one: a duration that is changed by a little changes the step by that,
or not at all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.support.kineto import Event, event, step

LATENCY_US = 1.0  # from a launch to its earliest start
RETURN_US = 2.0  # of a synchronising call, after what it waited for
CALL_US = 3.0  # of a call that records an event, or tells a stream to wait
CLEAR_US = 5.0  # by which what came last has to be later than what else was awaited
STREAMS = (7, 8, 9)


class Item(NamedTuple):
    """What the host does next: ``op``, ``launch``, ``wait`` (of `stream` for `other`) or ``sync``.

    `us` is the operator's own time, of a launch what it runs on the device; `call_us` is its call's.
    """

    kind: str
    us: float = 0.0
    call_us: float = 0.0
    stream: int = STREAMS[0]
    other: int = STREAMS[0]


class Simulated(NamedTuple):
    """`margin_us`: the least by which what came last was later than what came before it."""

    events: list[Event]
    length_us: float
    margin_us: float


def program(chosen: random.Random, length: int = 14) -> list[Item]:
    """Draw a program; it ends by waiting for the device."""

    def us(low: int, high: int) -> float:
        return chosen.randint(low, high) + chosen.randrange(1000) / 1000  # whole ns

    found = []
    for _ in range(length):
        kind = chosen.choices(("op", "launch", "wait", "sync"), (4, 6, 2, 1))[0]
        stream, other = chosen.sample(STREAMS, 2)
        found.append(Item(kind, us(8, 90), us(4, 12), stream, other))
    return [*found, Item("sync")]


def run(items: Sequence[Item], told: bool = True) -> Simulated:
    """Run a program from time 0; `told`: its trace has synchronisation events, which Kineto can write."""
    events: list[Event] = []
    now, margin = 0.0, float("inf")
    ends: dict[int, float] = {}
    awaited: dict[int, float] = {}

    def call(name: str, until: float, number: int) -> None:
        events.append(event("cuda_runtime", name, now, until, correlation=number))

    def last(*times: float) -> float:
        nonlocal margin
        ordered = sorted(times)
        if len(ordered) > 1:
            margin = min(margin, ordered[-1] - ordered[-2])
        return ordered[-1]

    for number, item in enumerate(items):
        begun = now
        if item.kind == "op":
            now += item.us
            events.append(event("cpu_op", f"op{number}", begun, now))
        elif item.kind == "launch":
            until = now + item.call_us
            call(f"launch{number}", until, number)
            others = [times[item.stream] for times in (ends, awaited) if item.stream in times]
            awaited.pop(item.stream, None)
            start = last(now + LATENCY_US, *others)
            end = ends[item.stream] = start + item.us
            device = event("kernel", f"kernel{number}", start, end, item.stream, device=0, stream=item.stream)
            events.append({**device, "pid": 0, "args": {**device["args"], "correlation": number}})
            now = until
        elif item.kind == "wait":
            call("cudaEventRecord", now + CALL_US, 1000 + number)
            now += CALL_US
            call("cudaStreamWaitEvent", now + CALL_US, 2000 + number)
            if told:
                args = {"wait_on_stream": item.other, "wait_on_cuda_event_record_corr_id": 1000 + number}
                sync = event("cuda_sync", "Stream Wait Event", now, now + 1, 90 + item.stream, device=0)
                sync["args"] |= args | {"stream": item.stream, "correlation": 2000 + number}
                events.append(sync)
            now += CALL_US
            if item.other in ends:
                awaited[item.stream] = max(awaited.get(item.stream, 0.0), ends[item.other])
        else:
            until = last(now, *ends.values()) + RETURN_US
            call("cudaDeviceSynchronize", until, number)
            now = until
    found = [{**one, "ts": round(one["ts"], 3)} for one in (step(1, 0, now), *events)]
    return Simulated(found, now, margin)


def on_the_path(items: Sequence[Item]) -> dict[str, float]:
    """Find what of the step each operator, launch and kernel is: its length where it decides the step's."""
    found, change = {}, 0.01
    whole = run(items).length_us
    for number, item in enumerate(items):
        for field, name in (("us", "op" if item.kind == "op" else "kernel"), ("call_us", "launch")):
            if item.kind == "launch" or (item.kind, field) == ("op", "us"):
                longer = [*items]
                longer[number] = item._replace(**{field: getattr(item, field) + change})
                share = (run(longer).length_us - whole) / change
                found[f"{name}{number}"] = round(share) * getattr(item, field)
    return {name: us for name, us in found.items() if us}
