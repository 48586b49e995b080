"""What is known of a part of a session that a reader might expect and not find."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from iotrace.analysis.rules.model import find_all
from iotrace.session.manifest import NotCaptured


class CaptureFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One host, process, rank or launch (`whose`), and what is known of what was not recorded of it.

    Each field belongs to one rule; None or False is not looked at. `reason` is what a library, a driver or
    the session itself said. `path` is the session's.
    """

    whose: str = ""
    path: str = ""
    reason: str = ""
    # telemetry
    telemetry_off: bool = False
    sampler_absent: bool = False
    devices_unread: bool = False
    processes_unknown: bool = False
    gaps_s: Sequence[float] = ()
    failed_figures: Mapping[str, Sequence[str]] = {}
    # the run
    nothing_yet: str | None = None
    state: str | None = None
    task: str = ""
    heard_seconds: float | None = None
    no_process: bool = False
    python_named: bool = False
    exit_code: int | None = None
    left_pids: Sequence[int] = ()
    left_idle: bool = True
    buffered_calls: int = 0
    # POSIX calls
    posix_absent: str | None = None
    own_log_ended: bool = False
    not_python: int = 0
    without_stdio: int = 0
    # compute
    profiler_off: bool = False
    program_profiles: str | None = None
    program_exports: bool = False
    profiler_error: str | None = None
    full_disk: str = ""  # a path on it
    profiler_missed: str | None = None
    device_spared: bool = False
    remedy: str = ""
    no_memory_events: bool = False
    snapshot: str | None = None
    # the loop
    loop_unseen: bool = False
    failed_before: bool = False
    wait_unknown: str | None = None
    no_batch: bool = False
    unseen_pids: Sequence[int] = ()
    workers_forked: bool = False
    # what was lost, of a session or of bare traces
    refused: str | None = None
    damage: str | None = None
    end_lost: bool = False
    lost_calls_alone: bool = False
    failed_to_start: bool = False
    namesake: int | None = None
    sampler_ended_by: str | None = None
    unsampled_s: float = 0.0
    agent_error: str | None = None
    more_errors: int = 0
    bare_traces: bool = False
    not_compared: str | None = None
    ranks_missing: str | None = None
    no_steps: str | None = None
    unknown_events: Sequence[str] = ()


ANOTHER_DISK = "free some space there, or record to another disk with -o"


def missing(**known: Any) -> Iterator[NotCaptured]:
    """Name what is missing where rules find that something is, in facts that are `known`."""
    for found in find_all("capture", CaptureFacts(**known)):
        yield NotCaptured(found.text, found.why, found.remedy, found.rule)
