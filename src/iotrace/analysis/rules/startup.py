"""The start: what passes before the first step has ended."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.results import Evidence, Startup, StartupPart
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.analysis.startup.imports import GROUP, IMPORTS
from iotrace.analysis.startup.waterfall import READS

SLOW_IMPORTS, OWN_START = "imports", "startup-code"
_MOSTLY = 0.75
_WORTH = 0.1
_FEWER = "fewer and larger arrays or tensors in it load faster than many small objects"
_LOADED = {"call": "pickle.load", "file": "data/graphs.pkl", "seconds": 12.0, "reading_seconds": 0.2}
_REMEDY = "keep the environment on a local disk, or in one file (a container's image, squashfs)"


@rule("IO404", "slow-imports", "rank", id=SLOW_IMPORTS)
@fires({"startup": {"imports": 20.0, "first_step": 25.0, "waiting": 15.0}})
@silent(
    {"startup": {"imports": 0.5, "first_step": 0.6, "waiting": 0.4}},
    {"startup": {"imports": 5.0, "first_step": 25.0, "waiting": 4.0}},
)
def slow_imports(
    facts: RankFacts, *, least_seconds: float = 1.0, least_share: float = 0.5
) -> Iterator[Finding]:
    """Imports are most of the time to the end of the first step.

    Where they mostly wait off a CPU, they wait for files: thousands of small ones, which a network file
    system serves one after the other.

    Remedy: keep the environment on a local disk, or in one file; only where they wait.
    """
    startup = facts.report.startup
    whole = None if startup is None else startup.first_step_seconds
    if startup is None or whole is None:
        return
    seconds = sum(part.seconds for part in startup.parts if part.name == IMPORTS)
    if seconds < least_seconds or seconds < least_share * whole:
        return
    waiting = startup.imports_waiting_seconds
    text = f"imports are {seconds:.1f} of the {whole:.1f} s to the end of the first step"
    evidence: Evidence = {"imports_seconds": seconds, "first_step_seconds": whole}
    remedy = ""
    if waiting is not None:
        evidence["imports_waiting_seconds"] = waiting
        if waiting >= least_share * seconds:
            mount = _waited_for(startup)
            of = f" of {mount}" if mount is not None else ""
            text, remedy = f"{text}, {waiting:.1f} of it waiting, as for files{of}", _REMEDY
    yield Finding(text=text, evidence=evidence, cost_ms=0.0, remedy=remedy)


@rule("IO412", "startup-code", "rank", id=OWN_START)
@fires(
    {"startup": {"imports": 3.0, "first_step": 16.0, "own": {"build_index (train.py)": 2.0, "reads": 10.0}}},
    {"startup": {"imports": 3.0, "first_step": 16.0, "own": {"reads": 12.0}, "loaded": _LOADED}},
    {
        "startup": {
            "imports": 3.0,
            "first_step": 16.0,
            "own": {"reads": 12.0},
            "loaded": {**_LOADED, "reading_seconds": 11.0},
        }
    },
    {"startup": {"imports": 9.4, "first_step": 16.7, "own": {"Audio.__getitem__ (train.py)": 6.0}}},
)
@silent(
    {"startup": {"imports": 3.0, "first_step": 6.0, "own": {"main (train.py)": 2.0}}},
    {"startup": {"imports": 20.0, "first_step": 30.0, "own": {"main (train.py)": 8.0}}},
    {"startup": {"imports": 3.0, "first_step": 16.0, "own": {"process group": 12.0}}},
)
def startup_code(
    facts: RankFacts, *, least_seconds: float = 5.0, least_share: float = 0.33
) -> Iterator[Finding]:
    """What the program itself does before its first step takes much of the start: an index, all lengths.

    Its functions were sampled, its reads timed. Imports, workers and the first step do not count.

    Remedy: store what it makes, if every run makes the same. If it loads a stored result already, and hardly
    reads meanwhile, store fewer and larger arrays or tensors, as each object is made again.
    """
    startup = facts.report.startup
    whole = None if startup is None else startup.first_step_seconds
    if startup is None or whole is None:
        return
    own = sorted(filter(_is_own, startup.parts), key=lambda part: -part.seconds)
    seconds = sum(part.seconds for part in own)
    if seconds < least_seconds or seconds < least_share * whole:
        return
    named = ", ".join(
        f"{part.name} {part.seconds:.1f} s" for part in own[:2] if part.seconds >= _WORTH * seconds
    )
    text = f"before its first step the program itself works for {seconds:.1f} of {whole:.1f} s: {named}"
    evidence: Evidence = {"own_seconds": seconds, "first_step_seconds": whole}
    remedy, loaded = "if every run makes the same, store the result and load it", startup.loaded
    if loaded is not None and loaded.seconds >= _MOSTLY * seconds:  # it is stored already
        of = f" of {loaded.file}" if loaded.file else ""
        text = f"{text}, {loaded.seconds:.1f} s of it {loaded.call}{of}"
        makes_objects = loaded.reading_seconds is not None and 2 * loaded.reading_seconds < loaded.seconds
        remedy = _FEWER if makes_objects else ""
    yield Finding(text=text, evidence=evidence, cost_ms=0.0, remedy=remedy)


def _is_own(part: StartupPart) -> bool:
    # In a process group's calls it waits for other ranks.
    return (part.sampled and part.name != GROUP) or part.name == READS or part.name.startswith("region ")


def _waited_for(startup: Startup) -> str | None:
    """Name the file system on which most of the imports' time off a CPU was spent; None: no one has most."""
    slept = {each.mount: each.seconds - each.cpu_seconds for each in startup.mounts}
    mount = max(slept, key=lambda name: slept[name], default=None)
    return mount if mount is not None and slept[mount] >= _MOSTLY * sum(slept.values()) else None
