"""Check the clocks: what a reading costs, and whether CLOCK_REALTIME is synchronised."""

from __future__ import annotations

import ctypes
import os
import time
import timeit
from pathlib import Path

from iotrace.analysis.rules.facts.host import HostFacts
from iotrace.doctor.results import Check, judged, ok, unknown

SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
_READS = 20_000
_TIME_ERROR, _STA_UNSYNC = 5, 0x40


class _Timex(ctypes.Structure):
    """``struct timex`` of <sys/timex.h>; the rest is padding."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 512),
    )


def read_cost_ns() -> float:
    """Measure the ns that one reading of CLOCK_MONOTONIC takes, in the best of five rounds."""
    return 1e9 * min(timeit.repeat(time.monotonic_ns, number=_READS, repeat=5)) / _READS


def check_clock_source(source: Path, cost_ns: float) -> Check:
    """Judge where the kernel takes time from: reading ``tsc`` needs no system call, reading ``hpet`` does."""
    try:
        name = source.read_text().strip()
    except OSError:
        name = "unknown source"
    what, offered = f"{name}, {cost_ns:.0f} ns a reading", name != "tsc" and _has_tsc(source)
    return judged("clock", HostFacts(what=what, reading_ns=cost_ns, tsc_is_offered=offered))


def _has_tsc(source: Path) -> bool:
    """Return whether this machine's kernel offers ``tsc``."""
    try:
        return "tsc" in source.with_name("available_clocksource").read_text().split()
    except OSError:
        return False


def check_synchronised(state: int, status: int, max_error_us: int, hosts: int) -> Check:
    """Judge `state`, `status` and `max_error_us` as adjtimex gives them; on one host nothing rests on it."""
    if state == _TIME_ERROR or status & _STA_UNSYNC:
        facts = HostFacts(what="CLOCK_REALTIME is not synchronised", unsynchronised_hosts=hosts)
        return judged("clock-sync", facts, "that matters only where several hosts take part")
    return ok("clock-sync", f"CLOCK_REALTIME is synchronised, to within {max_error_us / 1000:.1f} ms")


def synchronised(hosts: int) -> Check:
    """Check this machine's CLOCK_REALTIME, for a run that `hosts` hosts take part in."""
    timex = _Timex()  # modes 0: nothing is set
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0:
        return unknown("clock-sync", "adjtimex is refused", os.strerror(ctypes.get_errno()))
    return check_synchronised(state, timex.status, timex.maxerror, hosts)
