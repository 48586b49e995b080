"""Runs that go on, in the text format of Prometheus and OpenMetrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from iotrace.analysis.results.top import Top

CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_HUNG = ("hung", "computing")
_RANK = ("session", "rank")


class Gauge(NamedTuple):
    """What a gauge says, and its labels."""

    text: str
    labels: Sequence[str]


GAUGES = {
    "iotrace_step_seconds": Gauge("Mean length of the newest measured steps.", _RANK),
    "iotrace_steps_per_second": Gauge("Measured steps per second.", _RANK),
    "iotrace_wait_ratio": Gauge("Share of the steps in which the loop waited for data.", _RANK),
    "iotrace_wait_seconds": Gauge("Wait for data per step.", _RANK),
    "iotrace_wait_cause_seconds": Gauge("Wait for data per step, by cause.", (*_RANK, "cause")),
    "iotrace_read_bytes_per_second": Gauge("Bytes that the rank's processes read per second.", _RANK),
    "iotrace_device_busy_ratio": Gauge("Utilisation of the accelerator.", (*_RANK, "device")),
    "iotrace_hung": Gauge("1 if the run hangs, or computes in one place without a batch.", ("session",)),
}


def metrics_text(seen: Iterable[tuple[str, Top, str]]) -> bytes:
    """Write gauges of sessions: their names, what was seen of them last, their states.

    What is not known has no sample.
    """
    samples: dict[str, list[str]] = {name: [] for name in GAUGES}
    for session, top, state in seen:
        own = [("iotrace_hung", [], float(state in _HUNG)), *_of_ranks(top)]
        for name, labels, value in own:
            if value is not None:
                samples[name].append(_sample(name, [session, *labels], value))
    lines = []
    for name, gauge in GAUGES.items():
        lines += [f"# HELP {name} {gauge.text}", f"# TYPE {name} gauge", *samples[name]]
    return ("\n".join([*lines, "# EOF"]) + "\n").encode(errors="replace")


def _sample(name: str, values: Sequence[str], value: float) -> str:
    pairs = zip(GAUGES[name].labels, values, strict=True)
    labels = ",".join(f'{label}="{_escaped(text)}"' for label, text in pairs)
    return f"{name}{{{labels}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _of_ranks(top: Top) -> Iterator[tuple[str, list[str], float | None]]:
    for each in top.ranks:
        rank, wait = [str(each.rank)], each.data_wait
        yield "iotrace_step_seconds", rank, _seconds(each.steps.mean_ms)
        yield "iotrace_steps_per_second", rank, each.steps.per_second
        yield "iotrace_wait_ratio", rank, wait.raw_wait_fraction
        yield "iotrace_wait_seconds", rank, _seconds(wait.raw_ms)
        for cause, cost_ms in wait.causes_ms.items():
            yield "iotrace_wait_cause_seconds", [*rank, cause], cost_ms / 1e3
        read = [own.read_bytes_per_s for own in each.processes if own.read_bytes_per_s is not None]
        yield "iotrace_read_bytes_per_second", rank, sum(read) if read else None
        for gpu in each.gpus:
            busy = None if gpu.util_pct is None else gpu.util_pct / 100
            yield "iotrace_device_busy_ratio", [*rank, str(gpu.index)], busy


def _seconds(time_ms: float | None) -> float | None:
    return None if time_ms is None else time_ms / 1e3
