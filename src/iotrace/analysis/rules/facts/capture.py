"""What is known of a part of a session that a reader might expect and not find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec


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
    profiler_missed: str | None = None
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
