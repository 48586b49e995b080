"""Threads of libraries in workers: more than there are CPUs for, which samples or the training wait for."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from iotrace.analysis.results import Change
from iotrace.analysis.rules.chunks import SMALL_CHUNKS, decodes_small_chunks
from iotrace.analysis.rules.cpus import FREE, stage_of
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.analysis.wait.cpus import Pool, pool_of
from iotrace.units import counted

_SPIN = ("openblas", "torch")  # their threads spin while they wait; others sleep, and few gain little
_ONE_THREAD = {
    "torch": "torch.set_num_threads(1)",
    "cv2": "cv2.setNumThreads(0)",
    "blosc": "numcodecs.blosc.set_nthreads(1)",
    "blosc2": "blosc2.set_nthreads(1)",
    "openblas": "threadpoolctl.threadpool_limits(1)",
    "numexpr": "numexpr.set_num_threads(1)",
    "pyarrow": "pyarrow.set_cpu_count(1)",
    "zarr": 'zarr.config.set({"async.concurrency": 1})',
}
_AT_WORK = {"threads_peak": 11, "pool_busy_pct_mean": 60.0, "pool_delay_pct_mean": 20.0}
_POOLED = [{**each, **_AT_WORK, "library_threads": {"openblas": 8}} for each in FREE]
_OF_ZARR = [{**each, **_AT_WORK, "library_threads": {"zarr": 8}} for each in FREE]
_ONE_SHORT_LIVED = [
    {**_POOLED[0], "pool_busy_pct_mean": None},
    *({**each, "pool_busy_pct_mean": 2.0} for each in _POOLED[1:]),
]
_IN_SMALL_CHUNKS = {"path": "d/a.zarr", "decode_ms": 54.0, "amplification": {"arrays": [SMALL_CHUNKS]}}


@rule("IO301", "waiting-for-threads", "rank", id="threads")
@fires(
    {
        "processes": _POOLED,
        "causes_ms": {"transform": 50.0},
        "without_cpu_ms": 0.0,
        "asleep_for_pool": 0.8,
    }
)
@silent(
    {"processes": _POOLED, "causes_ms": {"transform": 50.0}, "without_cpu_ms": 0.0},
    {"processes": FREE, "causes_ms": {"transform": 50.0}, "asleep_for_pool": 0.8, "without_cpu_ms": 0.0},
    {"processes": _OF_ZARR, "undecoded": 0.5, "file_groups": [_IN_SMALL_CHUNKS]},
)
def waiting_for_threads(facts: RankFacts) -> Iterator[Finding]:
    """Samples sleep while threads of a library compute for them, and these threads lack CPUs.

    Each worker starts as many threads as the library finds CPUs, so workers together have more threads than
    there are CPUs. The sample's own thread sleeps: that looks like slow storage, and is none.

    Remedy: one thread of the library in each worker. More workers would start more of these threads.
    """
    found = _lost_to_pool(facts)
    pool = pool_of(facts.report.system)
    if found is not None and pool is not None and not _is_of_chunks(facts, pool):
        lost_ms, stage = found
        yield _of_threads(facts, pool, lost_ms, stage, silences=("IO204",))


def _lost_to_pool(facts: RankFacts) -> tuple[float, str] | None:
    """What of a step is lost to a pool of threads without CPUs, and of which stage; None: too little."""
    cause, how, share = "decode", "queueing for a busy CPU", facts.undecoded
    if share is None and not (facts.lacks_cpus and pool_of(facts.report.system) is not None):
        cause, how, share = "transform", "asleep for these", facts.asleep_for_pool
    cause_ms = facts.report.data_wait.causes_ms.get(cause, 0.0)
    lost_ms = (share or 0.0) * cause_ms
    if not facts.is_significant(lost_ms):
        return None
    return lost_ms, f"{cause} {cause_ms:.1f} ms, {lost_ms:.1f} of it {how}"


@rule("IO304", "threads", "rank")
@fires({"processes": _POOLED})
@silent(
    {"processes": [{**each, "threads_peak": 2} for each in _POOLED]},
    {"processes": [{**each, "pool_busy_pct_mean": 2.0} for each in _POOLED]},
    {"processes": _ONE_SHORT_LIVED},
    {"processes": [{**each, "pool_busy_pct_mean": None} for each in _POOLED]},
    {"processes": [{**each, "pool_busy_pct_mean": 24.3, "pool_delay_pct_mean": 23.5} for each in _POOLED]},
    {"processes": _POOLED, "without_cpu_ms": 5.0},
)
def threads(facts: RankFacts) -> Iterator[Finding]:
    """Libraries in workers have more threads together than there are CPUs.

    A library that is imported alone has no threads yet: workers' other threads were busy, and did not only
    queue behind other programs. What fewer threads gain is not known: with threads that spin, steps took 1.4
    to 13 times as long as without; other threads may gain nothing.

    Remedy: one thread of the library in each worker.
    """
    pool = pool_of(facts.report.system)
    if pool is None or _is_of_chunks(facts, pool):
        return
    if facts.lacks_cpus and _lost_to_pool(facts) is None:
        yield _of_threads(facts, pool, facts.without_cpu_ms, stage_of(facts))


def _is_of_chunks(facts: RankFacts, pool: Pool) -> bool:
    """Whether zarr's threads are busy with many small chunks: with one thread they take longer still."""
    return pool.library == "zarr" and decodes_small_chunks(facts.report.file_groups)


def _of_threads(
    facts: RankFacts, pool: Pool, lost_ms: float, stage: str, silences: tuple[str, ...] = ()
) -> Finding:
    workers = counted(pool.workers, "worker")
    setting = _ONE_THREAD.get(pool.library, f"one thread of {pool.library} in each worker")
    tries = pool.library not in _SPIN
    unknown = "" if tries else ": gain not known"
    return Finding(
        text=f"{workers} started {pool.threads} threads of {pool.library} for {pool.cpus} CPUs: {stage}",
        evidence={"library": pool.library, "threads": float(pool.threads)},
        remedy=f"{'try ' if tries else ''}{setting} (worker_init_fn){unknown}",
        change=Change(threads={pool.library: "1"}) if pool.library in _ONE_THREAD else None,
        cost_ms=lost_ms,
        is_main_cause=facts.is_main_cause(lost_ms),
        tries=tries,
        silences=silences,
    )


@rule("IO308", "training-without-cpu", "loop", saves_wait=False)
@fires({"processes": _POOLED, "without_cpu_ms": 0.0, "steps": {"thread_run_delay_ms": 35.0}})
@silent(
    {"processes": _POOLED, "without_cpu_ms": 0.0, "steps": {"thread_run_delay_ms": 9.0}},
    {"processes": FREE, "without_cpu_ms": 0.0, "steps": {"thread_run_delay_ms": 35.0}},
    {"processes": _POOLED, "steps": {"thread_run_delay_ms": 35.0}},
)
def training_without_cpu(facts: RankFacts, *, least_of_step: float = 0.3) -> Iterator[Finding]:
    """The training thread is ready to run and has no CPU, while threads of a library in workers have them.

    The loader keeps up, and steps are slow all the same. The kernel counts how long the thread was ready and
    did not run. What fewer threads gain is not known: threads that spin take CPUs and compute nothing.

    Remedy: one thread of the library in each worker.
    """
    steps, wait = facts.report.steps, facts.report.data_wait
    pool, step_ms, delay_ms = pool_of(facts.report.system), steps.mean_ms, steps.thread_run_delay_ms
    if pool is None or step_ms is None or delay_ms is None or facts.lacks_cpus or _is_of_chunks(facts, pool):
        return
    delay_ms = min(delay_ms, step_ms - (wait.raw_ms or 0.0))
    if delay_ms >= least_of_step * step_ms:
        stage = f"the training thread waits for a CPU in {delay_ms:.1f} of {step_ms:.1f} ms of a step"
        found = _of_threads(facts, pool, delay_ms, stage)
        yield replace(found, is_main_cause=True)
