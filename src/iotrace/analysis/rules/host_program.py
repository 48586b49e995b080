"""What keeps a command, its interpreter or its torch from being recorded: what the doctor concludes."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.facts.host import HostFacts
from iotrace.analysis.rules.model import MISSING, UNKNOWN, WARNING, Finding, fires, rule, silent

_OLDEST = (3, 10)  # the Python that the agent supports
_NO_AGENT = "no steps, no data waits, no read paths"
_NO_POSIX = "no POSIX calls: reading and decoding cannot be charged to files"
_NO_KERNELS = "no kernels, no compute"


def _oldest() -> str:
    return ".".join(map(str, _OLDEST))


@rule("IO001", "not-checked", "host")
@fires({"unknown": "adjtimex is refused", "why": "Operation not permitted"})
@silent({"what": "CLOCK_REALTIME is synchronised, to within 2.5 ms"})
def not_checked(facts: HostFacts) -> Iterator[Finding]:
    """A check could not be made: what depends on it may or may not be recorded.

    Remedy: what the check names; a run shows it, too.
    """
    if facts.unknown is not None:
        yield Finding(level=UNKNOWN, text=facts.unknown, why=facts.why, remedy=facts.remedy)


@rule("IO002", "cannot-be-run", "host")
@fires({"not_runnable": "there is no train.py here", "remedy": "check its path"})
@silent({"what": "/usr/bin/python3"})
def cannot_be_run(facts: HostFacts) -> Iterator[Finding]:
    """The command, its script, or what its first line names is not there or cannot be executed.

    Remedy: check the path, or run iotrace where the script is.
    """
    if facts.not_runnable is not None:
        why = "nothing can be run"
        yield Finding(level=MISSING, text=facts.not_runnable, why=why, remedy=facts.remedy)


@rule("IO003", "old-python", "host")
@fires({"what": "cpython 3.9.2", "version": (3, 9, 2)})
@silent({"what": "cpython 3.10.0", "version": (3, 10, 0)})
def old_python(facts: HostFacts) -> Iterator[Finding]:
    """The interpreter is older than the agent supports.

    Remedy: run the program by a newer Python.
    """
    if facts.version is not None and facts.version < _OLDEST:
        yield Finding(
            level=MISSING,
            text=facts.what,
            why=f"the agent needs Python {_oldest()}: {_NO_AGENT}",
            remedy=f"run the program by Python {_oldest()} or newer",
            is_main_cause=True,
            silences=("IO004", "IO005", "IO006"),
        )


@rule("IO004", "not-cpython", "host")
@fires({"what": "pypy 3.11.7", "implementation": "pypy"})
@silent({"what": "cpython 3.11.7", "implementation": "cpython"})
def not_cpython(facts: HostFacts) -> Iterator[Finding]:
    """The interpreter is not CPython, and iotrace is tested only with CPython.

    Remedy: run the program by CPython.
    """
    if facts.implementation not in (None, "cpython"):
        why, remedy = "iotrace is tested only with CPython", "run the program by CPython"
        yield Finding(level=WARNING, text=facts.what, why=why, remedy=remedy)


@rule("IO005", "agent-kept-out", "host")
@fires({"kept_out": "python -S loads no site packages, so no agent", "remedy": "leave out -S"})
@silent({"what": "gets into the interpreter, through PYTHONPATH"})
def agent_kept_out(facts: HostFacts) -> Iterator[Finding]:
    """The agent does not get into the interpreter: options of Python keep it out, or an empty environment.

    Remedy: install iotrace-agent into that interpreter's environment, or leave out the option.
    """
    if facts.kept_out is not None:
        text, why = "does not get into the interpreter", f"{facts.kept_out}: {_NO_AGENT}"
        yield Finding(level=MISSING, text=text, why=why, remedy=facts.remedy)


@rule("IO006", "stopped-by-iotrace", "host")
@fires({"stopped_by_iotrace": "it ended with exit code 1"})
@silent({"unknown": "the interpreter does not run a tiny program", "why": "exit code 1"})
def stopped_by_iotrace(facts: HostFacts) -> Iterator[Finding]:
    """A tiny program runs by itself, but not with iotrace: so iotrace stops it.

    Remedy: report it, with LD_PRELOAD, PYTHONPATH and the interpreter's version.
    """
    if facts.stopped_by_iotrace is not None:
        yield Finding(
            level=MISSING,
            text=f"a tiny program does not run traced: {facts.stopped_by_iotrace}",
            why="it runs without iotrace, so it is iotrace that stops it",
            remedy="please report it, with LD_PRELOAD, PYTHONPATH and the interpreter's version",
        )


@rule("IO007", "no-recorder", "host")
@fires({"no_recorder": "switched off by --io off", "remedy": "run it without --io off"})
@silent({"what": "the recorder saw all 8 reads of a tiny program"})
def no_recorder(facts: HostFacts) -> Iterator[Finding]:
    """The recorder of POSIX calls is not installed here, or switched off.

    Remedy: what the check names: mostly a C compiler, and iotrace-agent installed anew.
    """
    if facts.no_recorder is not None:
        yield Finding(level=MISSING, text=facts.no_recorder, why=_NO_POSIX, remedy=facts.remedy)


@rule("IO008", "recorder-not-loaded", "host")
@fires({"is_preloaded": False}, {"is_preloaded": False, "preload_asked_for": False})
@silent({"is_preloaded": True, "reads": (8, 8)}, {"is_preloaded": None})
def recorder_not_loaded(facts: HostFacts) -> Iterator[Finding]:
    """The recorder of POSIX calls is not loaded into the interpreter.

    What starts the interpreter empties its environment, or it is linked statically.

    Remedy: start it without `env -i`; a dynamically linked interpreter.
    """
    if facts.is_preloaded is False:
        why = f"what starts it takes LD_PRELOAD out of its environment: {_NO_POSIX}"
        remedy = "start it without env -i, or put that before iotrace"
        if facts.preload_asked_for:
            why, remedy = facts.why or _NO_POSIX, facts.remedy
        text = "the recorder of POSIX calls is not loaded into the interpreter"
        yield Finding(level=MISSING, text=text, why=why, remedy=remedy)


@rule("IO009", "reads-not-seen", "host")
@fires({"reads": (3, 8)}, {"reads": (0, 8), "preloads": "libother.so"})
@silent({"reads": (8, 8), "preloads": "libother.so"})
def reads_not_seen(facts: HostFacts) -> Iterator[Finding]:
    """The recorder is loaded, and did not see all reads of a tiny program.

    Remedy: do not preload another library.
    """
    if facts.reads is not None and facts.reads[0] != facts.reads[1]:
        beside = f", before {facts.preloads}" if facts.preloads else ""
        text = f"the recorder is loaded{beside}, but saw {facts.reads[0]} of {facts.reads[1]} reads"
        remedy = "unset LD_PRELOAD" if facts.preloads else "please report it"
        yield Finding(level=MISSING, text=text, why=_NO_POSIX, remedy=remedy)


@rule("IO010", "no-torch", "host")
@fires({"torch_absent": True})
@silent({"what": "2.13.0"})
def no_torch(facts: HostFacts) -> Iterator[Finding]:
    """The interpreter has no torch: steps are seen only with other loaders, or if the program names its loop.

    Remedy: where the program uses torch, name its own interpreter.
    """
    if facts.torch_absent:
        why = "steps and data waits are then seen only with other loaders: docs/loaders.md, iotrace.batches"
        remedy = "where the program uses torch, name its own interpreter: iotrace doctor -- /path/to/python"
        yield Finding(level=WARNING, text="the interpreter does not find it", why=why, remedy=remedy)


@rule("IO011", "torch-not-importable", "host")
@fires({"torch_error": "OSError: libcudart.so.12"})
@silent({"unknown": "torch is not there", "why": "No module named 'torch'"})
def torch_not_importable(facts: HostFacts) -> Iterator[Finding]:
    """torch is installed, and its import fails: the training program will not run either.

    Remedy: repair its environment.
    """
    if facts.torch_error is not None:
        text = f"torch cannot be imported: {facts.torch_error}"
        why = "no steps, no data waits: the training program will not run either"
        yield Finding(level=MISSING, text=text, why=why, remedy="repair its environment")


@rule("IO012", "torch-profiler-fails", "host")
@fires({"profiler_fault": "it recorded nothing of an addition"})
@silent({"what": "records; CPU build, no accelerator that torch can use"})
def torch_profiler_fails(facts: HostFacts) -> Iterator[Finding]:
    """torch.profiler is not built in, does not start, or records nothing.

    Remedy: install torch anew; the rest is recorded without it.
    """
    if facts.profiler_fault is not None:
        leave_out = "reinstall torch; the rest is recorded without it: iotrace run --torch-steps off"
        remedy = facts.remedy or leave_out
        yield Finding(level=MISSING, text=facts.profiler_fault, why=_NO_KERNELS, remedy=remedy)


@rule("IO013", "torch-finds-no-device", "host")
@fires({"what": "records; CUDA 12.8, no accelerator that torch can use", "finds_no_device": True})
@silent({"what": "records; CPU build, no accelerator that torch can use"})
def torch_finds_no_device(facts: HostFacts) -> Iterator[Finding]:
    """torch is built for an accelerator and finds none: the program would train on the CPU.

    Remedy: check the driver and CUDA_VISIBLE_DEVICES; in a container `--gpus all`.
    """
    if facts.finds_no_device:
        why = "torch is built for an accelerator and finds none: the program would train on the CPU"
        remedy = "check the driver and CUDA_VISIBLE_DEVICES; in a container: --gpus all"
        yield Finding(level=WARNING, text=facts.what, why=why, remedy=remedy)


@rule("IO014", "torch-spares-device", "host")
@fires({"what": "records; XPU 20250101, 12 XPU devices", "spares_device": True})
@silent({"what": "records; XPU 20250101, 12 XPU devices"})
def torch_spares_device(facts: HostFacts) -> Iterator[Finding]:
    """The job has Intel's devices and several nodes: torch's profiler will record only the host.

    With ranks on several nodes a profiler that records these devices is known to hang in collectives.

    Remedy: `--torch-activities all` records the device, too.
    """
    if facts.spares_device:
        why = "on several nodes a profiler that records Intel's devices is known to hang: it spares them"
        remedy = "iotrace run --torch-activities all records them, too (PTI of oneAPI 2025.1.3 or later)"
        yield Finding(level=WARNING, text=facts.what, why=why, remedy=remedy)
