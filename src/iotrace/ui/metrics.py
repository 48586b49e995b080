"""/metrics: the live runs in OpenMetrics' text, by the client of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from iotrace.analysis.results.top import Top

KIND = CONTENT_TYPE_LATEST
_HUNG = ("hung", "computing")
_RANK = ("session", "rank")
# By name: what it is, its labels.
_GAUGES = {
    "iotrace_step_seconds": ("Mean length of the newest measured steps.", _RANK),
    "iotrace_steps_per_second": ("Measured steps per second.", _RANK),
    "iotrace_wait_ratio": ("Share of the steps in which the loop waited for data.", _RANK),
    "iotrace_wait_seconds": ("Wait for data per step.", _RANK),
    "iotrace_wait_cause_seconds": ("Wait for data per step, by cause.", (*_RANK, "cause")),
    "iotrace_read_bytes_per_second": ("Bytes that the rank's processes read per second.", _RANK),
    "iotrace_device_busy_ratio": ("Utilisation of the accelerator.", (*_RANK, "device")),
    "iotrace_hung": ("1 where the run hangs, or computes in one place without a batch.", ("session",)),
}


def metrics_text(seen: Iterable[tuple[str, Top, str]]) -> bytes:
    """Write gauges of sessions: their names, what was seen of them last, their states."""
    registry = CollectorRegistry()
    registry.register(_Seen(list(seen)))
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text


class _Seen(Collector):
    def __init__(self, seen: list[tuple[str, Top, str]]) -> None:
        self._seen = seen

    def collect(self) -> Iterator[GaugeMetricFamily]:
        families = {
            name: GaugeMetricFamily(name, text, labels=labels) for name, (text, labels) in _GAUGES.items()
        }
        for session, top, state in self._seen:
            families["iotrace_hung"].add_metric([session], float(state in _HUNG))
            for name, labels, value in _of_ranks(top):
                if value is not None:  # what is not known has no sample
                    families[name].add_metric([session, *labels], value)
        return iter(families.values())


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
