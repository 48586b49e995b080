"""What else to know of the runs of a sweep or a search: what failed, what differs, what is unknown."""

from __future__ import annotations

from collections.abc import Iterator

from iotrace.analysis.rules.facts.sweep import OutcomeFacts
from iotrace.analysis.rules.model import WARNING, Finding, fires, rule, silent
from iotrace.units import percent


@rule("IO911", "more-workers-than-cpus", "outcome")
@fires({"workers": [1, 7]})
@silent({"workers": [1, 2]})
def more_workers_than_cpus(facts: OutcomeFacts) -> Iterator[Finding]:
    """A sweep has points with more workers than there are CPUs.

    Workers and training then take turns on a CPU, and each step of the training may take longer.
    """
    above = [str(count) for count in facts.workers if count > facts.cpus]
    if above:
        text = f"{', '.join(above)} workers on {facts.cpus} cores: they share cores with the training"
        yield Finding(level=WARNING, text=text)


@rule("IO912", "page-cache-not-prepared", "outcome")
@fires({"cache_problem": "1 of 1 data files stay in the page cache, such as /data/a.bin"})
@silent({"cache_problem": ""})
def page_cache_not_prepared(facts: OutcomeFacts) -> Iterator[Finding]:
    """The page cache could not be brought to the state in which runs should begin.

    Pages that another program maps or writes stay; files larger than the memory do not fit.
    """
    if facts.cache_problem:
        yield Finding(level=WARNING, text=facts.cache_problem)


@rule("IO913", "no-ceiling", "outcome")
@fires({"no_ceiling": True, "failed": "ceiling", "status": "no steps", "reason": "too short"})
@silent({"failed": "workers=2", "status": "no steps", "reason": "too short"})
def no_ceiling(facts: OutcomeFacts) -> Iterator[Finding]:
    """The run on batches from memory gave no figures: how fast the training may be at most is not known."""
    if facts.no_ceiling:
        yield Finding(level=WARNING, text=f"no ceiling: {facts.status}: {facts.reason}")


@rule("IO914", "program-ended-by-iotrace", "outcome")
@fires({"ended": ["workers=2"]})
@silent({"ended": []})
def program_ended(facts: OutcomeFacts) -> Iterator[Finding]:
    """The program went on without batches after its measured steps, and iotrace ended it."""
    if facts.ended:
        text = f"{', '.join(facts.ended)}: iotrace ended the program, which went on without batches"
        yield Finding(level=WARNING, text=text)


@rule("IO915", "figure-of-point-unknown", "outcome")
@fires(
    {"point": "workers=1", "unknown": "fetch_stall_ms is unknown: the data files stayed in the page cache"}
)
@silent({"point": "workers=1"})
def figure_unknown(facts: OutcomeFacts) -> Iterator[Finding]:
    """A figure of a point is not known, though its runs went well."""
    if facts.unknown:
        yield Finding(level=WARNING, text=f"{facts.point}: {facts.unknown}")


@rule("IO916", "samples-in-other-order", "outcome")
@fires({"iterable": True})
@silent({"iterable": False})
def samples_in_other_order(facts: OutcomeFacts) -> Iterator[Finding]:
    """The setting that a search advises changes the workers of an IterableDataset.

    Each worker has a copy of it: which samples a batch holds depends on how many there are.
    """
    if facts.iterable:
        yield Finding(
            level=WARNING,
            text="an IterableDataset: with other workers the order of samples, and results, may differ; "
            "where it does not divide them by get_worker_info(), each worker yields all of them",
        )


@rule("IO917", "batches-in-other-order", "outcome")
@fires({"out_of_order": True})
@silent({"out_of_order": False})
def batches_in_other_order(facts: OutcomeFacts) -> Iterator[Finding]:
    """The setting that a search advises hands batches over as soon as they are ready."""
    if facts.out_of_order:
        text = "in_order=False: the order of batches, and results, may differ from run to run"
        yield Finding(level=WARNING, text=text)


@rule("IO918", "nothing-predicted", "outcome")
@fires({"not_predicted": "another thread takes the batches"})
@silent({"not_predicted": ""})
def nothing_predicted(facts: OutcomeFacts) -> Iterator[Finding]:
    """No setting was predicted: a search then runs all settings, in its own order."""
    if facts.not_predicted:
        yield Finding(level=WARNING, text=f"no setting was predicted: {facts.not_predicted}")


@rule("IO919", "setting-failed", "outcome")
@fires({"failed": "num_workers=8", "status": "failed", "reason": "exit code 1", "last_line": "MemoryError"})
@silent({"no_ceiling": True, "failed": "ceiling", "status": "no steps", "reason": "too short"})
def setting_failed(facts: OutcomeFacts) -> Iterator[Finding]:
    """A run of a search failed, or gave no figures: the rest of its search went on without it."""
    if facts.failed and not facts.no_ceiling:
        said = f": {facts.last_line}" if facts.last_line else ""
        yield Finding(level=WARNING, text=f"{facts.failed}: {facts.status}: {facts.reason}{said}")


@rule("IO920", "prediction-missed", "outcome")
@fires({"missed_fraction": 0.31})
@silent({"missed_fraction": 0.04}, {"missed_fraction": None})
def prediction_missed(facts: OutcomeFacts, *, most: float = 0.1) -> Iterator[Finding]:
    """The model of the batches missed a setting by much, which was then measured.

    A search advises what it measured, and nothing that was predicted alone.
    """
    if facts.missed_fraction is not None and facts.missed_fraction > most:
        wrong = percent(facts.missed_fraction)
        text = f"a prediction was wrong by {wrong}: only what was measured is advised"
        yield Finding(level=WARNING, text=text)
