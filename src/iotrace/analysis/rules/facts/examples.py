"""Facts for a rule's examples: those of its scope, with the changes that the rule's entry names.

The examples prove a rule (tests/unit/test_rules.py), and `iotrace explain` shows the first of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from iotrace.analysis.rules.facts.capture import CaptureFacts
from iotrace.analysis.rules.facts.check import CheckFacts
from iotrace.analysis.rules.facts.device import DeviceFacts
from iotrace.analysis.rules.facts.forecast import ForecastFacts
from iotrace.analysis.rules.facts.host import Demand, HostFacts
from iotrace.analysis.rules.facts.job import JobFacts
from iotrace.analysis.rules.facts.loader import LoaderFacts
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.facts.sweep import ChoiceFacts, OutcomeFacts, PointFacts, SettingFacts, SweepFacts
from iotrace.analysis.rules.facts.trust import RunFacts, TrustFacts
from iotrace.analysis.rules.model import Rule
from iotrace.sources.records import IteratorStart

_MIB = 1 << 20
_LOADER = IteratorStart(
    iterator=0,
    loader=0,
    dataset="Images",
    workers=2,
    epoch=0,
    generation=0,
    mono_ns=0,
    iterable=False,
    prefetch_factor=2,
    persistent_workers=False,
    in_order=True,
)
_SETTINGS = {*IteratorStart.__struct_fields__} - {*LoaderFacts.__struct_fields__}


def facts_of(rule: Rule, changes: Mapping[str, Any]) -> object:
    """Return the facts of the rule's scope with `changes`."""
    return _MADE[rule.scope](dict(changes))


def _loader(changes: dict[str, Any]) -> LoaderFacts:
    """A loader of 2 workers whose wait, 50 of 100 ms a step, has one cause; a machine with room."""
    cause = changes.pop("cause", "transform")
    settings = {name: changes.pop(name) for name in _SETTINGS & changes.keys()}
    known = {
        "step_ms": 100.0,
        "wait_ms": 50.0,
        "causes_ms": {cause: 50.0},
        "production_ms": 60.0,
        "unmade_fraction": 1.0,
        "core_free": True,
        "cpus": 8,
        "asleep": 0.0,
        "on_cpu": 1.0,
        "batches": 100,
        "batch_bytes": 8.0 * _MIB,
        "samples": 32.0,
    }
    return fill(LoaderFacts, {"about": replace(_LOADER, **settings), **known, **changes})


def _rank(changes: dict[str, Any]) -> RankFacts:
    """A rank that waits 60 ms of steps of 100, 40 of them without a CPU, mostly to decode."""
    causes_ms = changes.pop("causes_ms", {"read": 36.0, "decode": 54.0})
    lost_ms, usable = changes.pop("without_cpu_ms", 40.0), changes.pop("usable", 8)
    processes = changes.pop("processes", [])
    if not any(each["role"] == "main" for each in processes):
        processes = [{"role": "main", "pid": 0, "cpus": [*range(usable)]}, *processes]
    imports, files = changes.pop("startup", None), changes.pop("files", [])
    system = {
        "processes": processes,
        "cpus_usable": [*range(usable)],
        "cpus_online": changes.pop("online", 8),
        "gpus": changes.pop("gpus", []),
        "numa_nodes": changes.pop("numa_nodes", None),
        "host": changes.pop("host", {}),
    }
    wait = {
        "raw_ms": changes.pop("raw_ms", 60.0),
        "causes_ms": causes_ms,
        "without_cpu_ms": dict.fromkeys(causes_ms, 0.0),
    }
    wait["without_cpu_ms"][max(causes_ms, key=lambda name: causes_ms[name])] = lost_ms
    report = {
        "rank": 0,
        "steps": {"count": 100, "mean_ms": 100.0, **changes.pop("steps", {})},
        "data_wait": wait,
        "system": system,
        **{name: changes.pop(name, []) for name in ("file_groups", "regions", "repeated", "sample_calls")},
        "accelerator": changes.pop("accelerator", None),
        "account": changes.pop("account", None),
        "loaders": changes.pop("loaders", []),
        **{name: changes.pop(name, []) for name in ("loop_events", "loop_code", "models")},
        "feeding": changes.pop("feeding", None),
        "io": files and {"files": files},
        "loop_reads": changes.pop("loop_reads", None),
        "phases_ms": changes.pop("phases_ms", {}),
        "trainer": changes.pop("trainer", None),
        "startup": imports
        and {
            "seconds": imports["first_step"],
            "first_step_seconds": imports["first_step"],
            "imports_waiting_seconds": imports.get("waiting"),
            "loaded": imports.get("loaded"),
            "parts": [
                {"name": name, "at_seconds": 0.0, "seconds": seconds, "sampled": name != "imports"}
                for name, seconds in {"imports": imports["imports"], **imports.get("own", {})}.items()
            ],
        },
    }
    return fill(RankFacts, {"report": report, **changes})


def _trust(changes: dict[str, Any]) -> TrustFacts:
    """A rank of 100 steps of 100 ms each on a quiet machine; nothing is to be doubted."""
    host, wait = changes.pop("host", {}), {"raw_ms": 4.0, "raw_wait_fraction": 0.04, "exposed_ms": 4.0}
    quiet = {"others_cpu_fraction": 0.0, "cpu_busy_fraction": 0.3, "cpu_saturated_fraction": 0.0}
    report = {
        "rank": 0,
        "steps": {"count": 100, "mean_ms": 100.0, **changes.pop("steps", {})},
        "data_wait": {**wait, **changes.pop("wait", {})},
        "overhead": changes.pop("overhead", {"estimated_pct_of_step": 0.5}),
        "io": changes.pop("io", None),
        "feeding": changes.pop("feeding", None),
        "account": changes.pop("account", None),
        **{name: changes.pop(name, []) for name in ("pipeline", "culprits", "loop_code")},
        "system": {
            "host": None if host is None else {**quiet, **host},
            "processes": changes.pop("processes", []),
            "gpus": changes.pop("gpus", []),
        },
    }
    return fill(TrustFacts, {"report": report, **changes})


def _device(changes: dict[str, Any]) -> DeviceFacts:
    """A device over ten steps of 1 ms that it computes in."""
    return DeviceFacts(**{"span_us": 10_000.0, "busy_us": 6_000.0, "steps": 10, **changes})


def _job(changes: dict[str, Any]) -> JobFacts:
    """The ranks of a job; none is late."""
    return fill(JobFacts, changes)


def _run(changes: dict[str, Any]) -> RunFacts:
    """A run that ended, with all that was recorded."""
    session = {"ended": True, "complete": True, **changes.pop("session", {})}
    return fill(RunFacts, {"session": session, **changes})


def _sweep(changes: dict[str, Any]) -> SweepFacts:
    """Six runs of three points on a quiet machine."""
    known = {"runs": 6, "points": 3, "fewest_repeats": 2, "spread_pct": 1.0, "fewest_steps": 40}
    return SweepFacts(**{**known, **changes})


def _outcome(changes: dict[str, Any]) -> OutcomeFacts:
    """Runs of a sweep on two CPUs, of which the changes say what happened."""
    return OutcomeFacts(**{"cpus": 2, **changes})


def _host(changes: dict[str, Any]) -> HostFacts:
    """A check of the doctor that saw what the changes say, for a command of so many `workers`."""
    return HostFacts(demand=Demand(changes.pop("workers", None)), **changes)


def _forecast(changes: dict[str, Any]) -> ForecastFacts:
    """Memory that is at its limit in two hours."""
    known = {"what": "memory", "kind": "growth", "used": 8.0 * (1 << 30), "limit": 16.0 * (1 << 30)}
    times_s = {"seconds": 7200.0, "soonest_s": 6600.0, "latest_s": 7800.0}
    return ForecastFacts(**{**known, **times_s, **changes})


def _setting(changes: dict[str, Any]) -> SettingFacts:
    """Eight workers on eight CPUs, of one rank."""
    return SettingFacts(**{"workers": 8, "ranks": 1, "cpus": 8.0, **changes})


def _point(changes: dict[str, Any]) -> PointFacts:
    """Four workers, the most that were tried, which still wait a third of a step."""
    return PointFacts(**{"workers": 4, "wait_fraction": 0.33, "stopped_by": "workers", **changes})


def _choice(changes: dict[str, Any]) -> ChoiceFacts:
    """Two points that gave figures."""
    return ChoiceFacts(**{"points": 2, **changes})


def _check(changes: dict[str, Any]) -> CheckFacts:
    """Nothing that grew, of one baseline and one session."""
    return fill(CheckFacts, changes)


def _capture(changes: dict[str, Any]) -> CaptureFacts:
    """Something of a session, of which the changes say what is known."""
    return CaptureFacts(**{"path": "run-5", **changes})


_MADE: dict[str, Any] = {
    "capture": _capture,
    "check": _check,
    "forecast": _forecast,
    "setting": _setting,
    "point": _point,
    "choice": _choice,
    "host": _host,
    "loader": _loader,
    "rank": _rank,
    "loop": _rank,
    "device": _device,
    "job": _job,
    "trust": _trust,
    "run": _run,
    "sweep": _sweep,
    "outcome": _outcome,
}


Struct = TypeVar("Struct", bound=msgspec.Struct)


def fill(kind: type[Struct], known: Mapping[str, Any]) -> Struct:
    """Make a struct of plain values, also of those that it holds; what is not known is None, or empty."""
    hints = get_type_hints(kind)
    values = {name: _value(hints[name], value) for name, value in known.items()}
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in values:
            values[field.name] = _empty(hints[field.name])
    return kind(**values)


def _value(hint: Any, value: Any) -> Any:
    struct = _struct_in(hint)
    if struct is None or value is None:
        return value
    if isinstance(value, list):
        return [_value(struct, each) for each in value]
    return fill(struct, value) if isinstance(value, dict) else value


def _struct_in(hint: Any) -> Any:
    """Return the struct that a type is, or holds; None where it holds none, or is a dictionary."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    if get_origin(hint) is dict:
        return None
    return next(filter(None, map(_struct_in, get_args(hint))), None)


def _empty(hint: Any) -> Any:
    if type(None) in get_args(hint):
        return None
    origin = get_origin(hint) or hint
    struct = _struct_in(hint)
    if origin is struct and struct is not None:
        return fill(struct, {})
    if origin in (dict, list):
        return origin()
    return {str: "", bool: False, int: 0, float: 0.0}.get(origin, [])
