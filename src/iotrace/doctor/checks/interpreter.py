"""What the tiny program's run says: the agent, the POSIX tracer, the interpreter and its libraries."""

from __future__ import annotations

import os
import platform

from iotrace.doctor.probe import READS, Probe, Told
from iotrace.doctor.results import Check, missing, ok, unknown, warning

_OLDEST = (3, 10)
_OLDEST_SHOWN = ".".join(map(str, _OLDEST))
_NEWER = f"run the program by Python {_OLDEST_SHOWN} or newer"
_READERS = ("h5py", "zarr", "numpy", "pillow", "tifffile", "pyarrow", "pandas")
_INSTALL = "pip install iotrace-agent into that interpreter's environment"


def judge(probe: Probe, environment: dict[str, str]) -> list[Check]:
    """Every check that rests on the probe."""
    posix = check_posix(probe, environment)
    told = probe.told or probe.bare
    if told is None:
        remedy = "see what is wrong with it: CMD's python -c 'print(1)'"
        silent = unknown("agent", "the interpreter does not run a tiny program", probe.failure, remedy)
        return [silent, posix]
    if is_too_old(told):
        return [check_python(told), check_agent(told), posix, *check_libraries(told)]
    if probe.told is None:
        stopped = missing(
            "agent",
            f"a tiny program does not run traced: {probe.failure}",
            "it runs without iotrace, so it is iotrace that stops it",
            "please report it, with LD_PRELOAD, PYTHONPATH and the interpreter's version",
        )
        return [check_python(told), stopped, posix]
    return [check_python(told), check_agent(told), posix, check_start_method(told), *check_libraries(told)]


def is_too_old(told: Told) -> bool:
    """Whether the agent has no support for that version."""
    return tuple(map(int, told.version.split(".")[:2])) < _OLDEST


def check_python(told: Told) -> Check:
    """The interpreter's version, and who made its environment."""
    kind = "conda" if told.conda else "virtual environment" if told.prefix != told.base_prefix else ""
    pyenv = "pyenv" if "/.pyenv/" in told.base_prefix or "/pyenv/versions/" in told.base_prefix else ""
    made = ", ".join(filter(None, [kind, pyenv, "free-threaded" if told.free_threaded else ""]))
    what = f"{told.implementation} {told.version}{f' ({made})' if made else ''}"
    if is_too_old(told):
        return missing("python", what, f"the agent needs Python {_OLDEST_SHOWN}", _NEWER)
    if told.implementation != "cpython":
        return warning("python", what, "iotrace is tested with CPython alone", "run the program by CPython")
    return ok("python", what)


def check_agent(told: Told) -> Check:
    """Whether the agent was there before the program's first line, and if not, which option keeps it out."""
    what = "does not get into the interpreter"
    lost = "no steps, no data waits, no read paths"
    if is_too_old(told):
        return missing("agent", what, f"it needs Python {_OLDEST_SHOWN}: {lost}", _NEWER)
    if told.agent:
        way = "installed there" if told.packages.get("iotrace-agent") else "through PYTHONPATH"
        return ok("agent", f"gets into the interpreter, {way}")
    if told.no_site:
        return missing("agent", what, f"python -S loads no site, hence no agent: {lost}", "leave out -S")
    if told.isolated or told.ignore_environment:
        option = "-I" if told.isolated else "-E"
        return missing(
            "agent",
            what,
            f"python {option} ignores PYTHONPATH, and iotrace is not installed there: {lost}",
            f"{_INSTALL}, or leave out {option}",
        )
    return missing("agent", what, f"its start failed, or the environment was emptied: {lost}", _INSTALL)


def check_posix(probe: Probe, environment: dict[str, str]) -> Check:
    """Whether dftracer is there, loads, and saw the tiny program's reads."""
    capture, lost = probe.capture, "no POSIX calls: reading and decoding cannot be charged to files"
    if capture.why_not:
        return missing("posix", capture.why_not, lost, capture.remedy)
    if probe.told is None:
        return unknown(
            "posix", "the preloaded tracer could not be tried", "the tiny program did not run", "see agent"
        )
    if probe.reads_seen is None:
        what = "dftracer is not loaded into the interpreter"
        if not probe.told.asked_for:
            why = f"what starts it takes LD_PRELOAD out of its environment: {lost}"
            return missing("posix", what, why, "start it without env -i, or put that before iotrace")
        return missing("posix", what, probe.failure or lost, _remedy(probe))
    inherited = environment.get("LD_PRELOAD", "")
    beside = f", before {inherited}" if inherited else ""
    if probe.reads_seen != READS:
        return missing(
            "posix",
            f"dftracer is loaded{beside}, but saw {probe.reads_seen} of {READS} reads",
            lost,
            "unset LD_PRELOAD" if inherited else "please report it",
        )
    return ok("posix", f"dftracer saw all {READS} reads of a tiny program{beside}")


def _remedy(probe: Probe) -> str:
    directory = os.path.dirname(probe.capture.library)
    if os.statvfs(directory).f_flag & os.ST_NOEXEC:
        return f"{directory} is on a file system mounted noexec: install iotrace-agent elsewhere"
    if not os.access(probe.capture.library, os.R_OK):
        return f"{probe.capture.library} is not readable: chmod a+r"
    libc = " ".join(filter(None, platform.libc_ver())) or "this C library"
    return f"the interpreter must be dynamically linked with glibc ({libc} here)"


def check_start_method(told: Told) -> Check:
    """How this Python starts loader workers unless the program says otherwise."""
    if told.start_method is None:
        why = "multiprocessing was not importable"
        return unknown(
            "start-method", "multiprocessing does not say", why, "python -c 'import multiprocessing'"
        )
    what = f"loader workers start by {told.start_method}"
    if told.start_method == "fork":
        return ok("start-method", what)
    return ok("start-method", what, "each worker imports the program anew: the first batch comes late")


def check_libraries(told: Told) -> list[Check]:
    """torch, without which there are no steps, and the libraries whose calls iotrace tells apart."""
    versions = {name: version for name, version in told.packages.items() if version}
    readers = [f"{name} {versions[name]}" for name in _READERS if name in versions]
    libraries = ok("libraries", ", ".join(readers) or f"none of {', '.join(_READERS)} there")
    if "torch" in versions:
        return [ok("torch", versions["torch"]), libraries]
    lacking = warning(
        "torch",
        "the interpreter does not find it",
        "steps and data waits are those of torch.utils.data.DataLoader: there will be none",
        "name the training program's own interpreter: iotrace doctor -- /path/to/python",
    )
    return [lacking, libraries]
