"""Memory: files that are read from storage again for lack of it, memory in swap, memory that workers copy."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.program.full_memory import LEAST_SWAPPED_BYTES, pressure
from iotrace.analysis.results import Evidence, total
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import THE_LOOP, Finding, fires, rule, silent
from iotrace.analysis.rules.numa import who
from iotrace.units import counted, percent, size

_PARTS = ("read", "decode", "transform")  # in which a sample's page faults lie
_A_PART = 0.1  # of what came back: whose memory it was is said from there on
_MIB = 1 << 20
_IN_SWAP = [
    {"role": f"worker {number}", "swap_in_bytes": 200 * _MIB, "swap_bytes_peak": 300 * _MIB}
    for number in range(2)
]
_TRAINING_IN_SWAP = [{"role": "main", "swap_in_bytes": 200 * _MIB, "major_faults": 50_000}]


@rule("IO401", "memory-in-swap", "rank", id="swap")
@fires({"processes": _IN_SWAP, "host": {"swap_in_bytes": 400 * _MIB}, "slept_for_swap": 0.8})
@silent(
    {"processes": _IN_SWAP, "host": {"swap_in_bytes": 400 * _MIB}, "slept_for_swap": 0.1},
    {"processes": [{"role": "worker 0", "swap_bytes_peak": 300 * _MIB}], "slept_for_swap": 0.8},
)
def memory_in_swap(facts: RankFacts) -> Iterator[Finding]:
    """The makers of samples sleep until their own memory comes back from swap.

    The kernel counts what comes back for each control group; for a process it counts major page faults.
    Whose memory it was is said where these agree and where no file was mapped.

    Remedy: more memory, fewer workers, smaller caches. More workers would hold more memory, and the kernel's
    work for swapping counts as the samples' own code: so neither more workers nor faster code is advised.
    """
    report, host = facts.report, facts.report.system.host
    back = [each.swap_in_bytes or 0 for each in report.system.processes]
    if not facts.sampled or host is None or not report.steps.mean_ms or sum(back) < LEAST_SWAPPED_BYTES:
        return
    slept_ms = facts.slept_for_swap * sum(report.data_wait.causes_ms.get(part, 0.0) for part in _PARTS)
    if not facts.is_significant(slept_ms):
        return
    own = min(float(sum(back)), float(host.swap_in_bytes or 0))
    parts = [
        each
        for each, bytes_back in zip(report.system.processes, back, strict=True)
        if bytes_back >= _A_PART * sum(back)
    ]
    workers = any(each.role != "main" for each in parts)
    whose = "its" if len(parts) == 1 else "their"
    text = f"memory in swap: {' and '.join(who(parts))} read {size(own)} of {whose} own memory back"
    yield Finding(
        text=f"{text}: asleep for it {slept_ms:.1f} ms a step",
        evidence={
            "swap_in_bytes": own,
            "swap_bytes_peak": float(sum(each.swap_bytes_peak or 0 for each in parts)),
            "major_faults": float(sum(each.major_faults or 0 for each in parts)),
            **_evidence(facts),
        },
        cost_ms=slept_ms,
        is_main_cause=facts.is_main_cause(slept_ms),
        remedy=f"{_more_memory(facts)}, {'fewer workers or ' if workers else ''}smaller caches",
        silences=("IO103", "IO204", "IO501"),
    )


@rule("IO402", "memory-full", "rank")
@fires({"processes": [{"role": "main", "storage_read_bytes": 1000 * _MIB}], "read_again_bytes": 900.0 * _MIB})
@silent(
    {"processes": [{"role": "main", "storage_read_bytes": 1000 * _MIB}], "read_again_bytes": 400.0 * _MIB},
    {"processes": [{"role": "main", "storage_read_bytes": 1000 * _MIB}], "read_again_bytes": 1600.0 * _MIB},
    {
        "processes": [{"role": "main", "storage_read_bytes": 1000 * _MIB}],
        "read_again_bytes": 900.0 * _MIB,
        "causes_ms": {"read": 12.0},
    },
)
def memory_full(facts: RankFacts, *, least_again: float = 0.5, most_again: float = 1.5) -> Iterator[Finding]:
    """Files are read from storage that had been in memory before.

    The kernel dropped their pages for lack of room. If that is more than 1.5 times what the rank's processes
    read, others read again, too, and it is unknown whose memory it was.

    Remedy: more memory, or data that fits in it.
    """
    again, report = facts.read_again_bytes, facts.report
    read_ms = report.data_wait.causes_ms.get("read", 0.0)
    whole = total(each.storage_read_bytes for each in report.system.processes)
    if not facts.sampled or not facts.is_significant(read_ms):
        return
    if again is None or again < LEAST_SWAPPED_BYTES or not whole:
        return
    if not least_again <= again / whole <= most_again:
        return
    share = percent(min(1.0, again / whole))
    yield Finding(
        text=f"memory is full: {share} of what is read from storage was in memory before: "
        f"read {read_ms:.1f} ms",
        evidence={"read_again_bytes": again, "storage_read_bytes": float(whole), **_evidence(facts)},
        cost_ms=read_ms,
        is_main_cause=facts.is_main_cause(read_ms),
        remedy=f"{_more_memory(facts)}, or data that fits in it",
    )


@rule("IO501", "training-in-swap", "loop", id="swap")
@fires({"processes": _TRAINING_IN_SWAP})
@silent(
    {"processes": [{**_TRAINING_IN_SWAP[0], "major_faults": 100}]},
    {"processes": [{**_TRAINING_IN_SWAP[0], "swap_in_bytes": _MIB}]},
)
def training_in_swap(
    facts: RankFacts, *, faults_a_second: float = 500, pressed: float = 0.05
) -> Iterator[Finding]:
    """The training process itself reads much of its own memory back from swap.

    How long its steps sleep for it is not recorded, so no gain is known. 500 faults a second are 5 % of the
    time at the 0.1 ms that a quick disk takes for one; or tasks waited for memory in 5 % of the time (PSI).

    Remedy: more memory, or a training that holds less.
    """
    report = facts.report
    main = next((each for each in report.system.processes if each.role == "main"), None)
    steps, step_ms = report.steps.count, report.steps.mean_ms
    if main is None or not facts.sampled or not step_ms:
        return
    back, faults = float(main.swap_in_bytes or 0), float(main.major_faults or 0)
    waiting = pressure(report.system.host) or 0.0
    often = faults >= faults_a_second * steps * step_ms / 1e3
    if back < LEAST_SWAPPED_BYTES or not (often or waiting >= pressed):
        return
    each = size(back / steps)
    yield Finding(
        text=f"memory in swap: the training read {size(back)} of its own memory back, {each} a step",
        remedy=f"{_more_memory(facts)}, or let the training hold less",
        level="medium",
        evidence={"swap_in_bytes": back, "major_faults": faults, "pressure": waiting},
    )


@rule("IO510", "copied-memory", "loop", turn=THE_LOOP, saves_wait=False)
@fires({"copied_bytes": [320 * _MIB] * 2})
@silent({"copied_bytes": [60 * _MIB] * 16}, {"copied_bytes": [300 * _MIB]}, {})
def copied_memory(
    facts: RankFacts, *, least_each_bytes: int = 128 * _MIB, least_bytes: int = 512 * _MIB
) -> Iterator[Finding]:
    """Forked workers copied much of the memory that they shared with the training process.

    They share it until one writes to it. To use a Python object is to write its reference count, so a dataset
    that holds millions of them is copied into each worker, page by page, as samples are made. With more
    workers, or in a longer run, memory may run out. The figure is a lower bound, of when workers were last
    looked at.

    Remedy: keep what the dataset holds as lists and dictionaries in arrays (numpy, torch, pyarrow), which are
    few objects.
    """
    large = [each for each in facts.copied_bytes if each >= least_each_bytes]
    if sum(large) >= least_bytes:
        who = counted(len(large), "worker")
        yield Finding(
            text=f"{who} copied {size(sum(large))} of the training process's memory, page by page",
            remedy=f"keep the dataset's lists in arrays: {who} copied {size(sum(large))} of memory",
            how="keep the dataset's lists and dictionaries in arrays (numpy, torch, pyarrow): to use a Python"
            " object is to write its reference count, which copies its page into the worker",
            level="medium",
            evidence={"copied_bytes": float(sum(large)), "workers": float(len(large))},
        )


def _evidence(facts: RankFacts) -> Evidence:
    """Return the control group's limit, and in which share of the time some task waited for memory (PSI)."""
    found: Evidence = {} if facts.limit_bytes is None else {"limit_bytes": float(facts.limit_bytes)}
    pressed = pressure(facts.report.system.host)
    return found if pressed is None else {**found, "memory_pressure_fraction": pressed}


def _more_memory(facts: RankFacts) -> str:
    """Ask for more memory, and say what its control group may use where that has a limit."""
    limit = f" (its control group may use {size(facts.limit_bytes)})" if facts.limit_bytes else ""
    return f"give the job more memory{limit}"
