"""Threads of libraries in workers: more than there are CPUs for, which samples or the training wait for."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from iotrace.analysis.results import Change, System
from iotrace.analysis.rules.chunks import SMALL_CHUNKS, decodes_small_chunks
from iotrace.analysis.rules.cpus import FREE, stage_of
from iotrace.analysis.rules.facts.rank import RankFacts
from iotrace.analysis.rules.model import Finding, fires, rule, silent
from iotrace.analysis.wait.cpus import Pool, pool_of
from iotrace.units import counted, percent

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

    A library that is only imported has no threads yet: so workers' other threads were busy, and did not only
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
    primary = facts.report.primary
    at = "initializer" if primary is not None and primary.pool else "worker_init_fn"
    unknown = "" if tries else ": gain not known"
    return Finding(
        text=f"{workers} started {pool.threads} threads of {pool.library} for {pool.cpus} CPUs: {stage}",
        evidence={"library": pool.library, "threads": float(pool.threads)},
        remedy=f"{'try ' if tries else ''}{setting} ({at}){unknown}",
        change=Change(threads={pool.library: "1"}) if pool.library in _ONE_THREAD else None,
        cost_ms=lost_ms,
        is_main_cause=facts.is_main_cause(lost_ms),
        tries=tries,
        silences=silences,
    )


_PARSE = {"line": "voc.py:8", "calls": "parse", "library": "xml", "fraction": 0.8, "samples": 400}
_VOC = {
    "primary": True,
    "dataset": "Voc",
    "workers": 1,
    "item": "Voc.__getitem__ (voc.py:6)",
    "item_hot": _PARSE,
}
_PARSING = {
    "processes": [{"role": "main", "cpus": [0, 1]}, {**FREE[0], "cpu_pct_mean": 60.0}],
    "host": {"cpu_busy_fraction": 1.0, "others_cpu_fraction": 0.1},
    "usable": 2,
    "online": 2,
    "without_cpu_ms": 0.0,
    "raw_ms": 10.0,
    "steps": {"thread_run_delay_ms": 35.0},
    "loaders": [_VOC],
    "sample_calls": [
        {"name": "Voc.__getitem__", "depth": 0, "count": 1, "ms_each": 11.0, "own_ms_each": 9.0}
    ],
    "made_asleep": 0.1,
}


_COLLATING = [
    {"name": "pad", "depth": 0, "count": 10, "ms_each": 80.0, "own_ms_each": 80.0},
    {"name": "Voc.__getitem__", "depth": 0, "count": 80, "ms_each": 1.0, "own_ms_each": 1.0},
]


@rule("IO308", "training-without-cpu", "loop", saves_wait=False)
@fires(
    {"processes": _POOLED, "without_cpu_ms": 0.0, "steps": {"thread_run_delay_ms": 35.0}},
    _PARSING,
    {
        **_PARSING,
        "loaders": [{**_VOC, "collate": "pad (voc.py:20)", "collate_hot": {**_PARSE, "line": "voc.py:22"}}],
        "sample_calls": _COLLATING,
    },
)
@silent(
    {"processes": _POOLED, "without_cpu_ms": 0.0, "steps": {"thread_run_delay_ms": 9.0}},
    {"processes": FREE, "without_cpu_ms": 0.0, "steps": {"thread_run_delay_ms": 35.0}},
    {"processes": _POOLED, "steps": {"thread_run_delay_ms": 35.0}},
    {**_PARSING, "host": {"cpu_busy_fraction": 1.0, "others_cpu_fraction": 0.9}},  # others take the CPUs
    {**_PARSING, "host": {"cpu_busy_fraction": 0.6, "others_cpu_fraction": 0.1}},
    {**_PARSING, "made_asleep": 0.8},
    {**_PARSING, "raw_ms": 40.0},  # the loop waits for longer: the loader does not keep up
    {**_PARSING, "loaders": [{**_VOC, "item_hot": {**_PARSE, "fraction": 0.5}}]},
    {**_PARSING, "steps": {"thread_run_delay_ms": 9.0}},
    {**_PARSING, "sample_calls": _COLLATING},  # in which no line is hot
)
def training_without_cpu(
    facts: RankFacts, *, least_of_step: float = 0.3, least_of_own: float = 0.1, mostly: float = 0.5
) -> Iterator[Finding]:
    """The training thread is ready to run and has no CPU, while workers have them.

    The loader keeps up, or the loop waits for it for less than that, and steps are slow all the same. The
    kernel counts how long the thread was ready and did not run. Either threads of a library in the workers
    take the CPUs. The gain of fewer threads is then unknown, as threads that spin compute nothing. Or the
    dataset's own code takes them, and one line of it takes most of each sample. Other programs take CPUs,
    too: the workers are charged by their share of all CPU time but the training's.

    It is a line of making samples or of the collate function, of whichever the workers do longer.

    Remedy: one thread of the library in each worker; or make that line cheaper, as by doing once, ahead of
    training, what is the same for each epoch.
    """
    steps, wait = facts.report.steps, facts.report.data_wait
    step_ms, delay_ms = steps.mean_ms, steps.thread_run_delay_ms
    if step_ms is None or delay_ms is None or facts.lacks_cpus:
        return
    pool = pool_of(facts.report.system)
    delay_ms = min(delay_ms, step_ms - (wait.raw_ms or 0.0))
    if pool is None:
        own_ms = delay_ms * _workers_share(facts.report.system)
        if own_ms >= max(least_of_own * step_ms, wait.raw_ms or 0.0):  # else the wait is what is to be mended
            yield from _costly_line(facts, own_ms, step_ms, mostly)
    elif delay_ms >= least_of_step * step_ms and not _is_of_chunks(facts, pool):
        stage = f"the training thread waits for a CPU in {delay_ms:.1f} of {step_ms:.1f} ms of a step"
        found = _of_threads(facts, pool, delay_ms, stage)
        yield replace(found, is_main_cause=True)


def _workers_share(system: System) -> float:
    """What of the CPU time that the training thread waits behind is the workers'; 0: a CPU was free."""
    host, cpus = system.host, system.cpus_online
    if host is None or host.cpu_busy_fraction is None or host.has_free_cpus or not cpus:
        return 0.0
    workers = sum((each.cpu_pct_mean or 0.0) / 100 for each in system.processes if each.role != "main")
    others = (host.others_cpu_fraction or 0.0) * cpus
    return workers / (workers + others) if workers else 0.0


def _costly_line(facts: RankFacts, lost_ms: float, step_ms: float, mostly: float) -> Iterator[Finding]:
    """Name the line that most of the workers' work is: it, and no reading or decoding, takes the CPUs."""
    loader = facts.report.primary
    if loader is None or not loader.workers or facts.made_asleep is None or facts.made_asleep >= mostly:
        return
    calls = [each for each in facts.report.sample_calls if not each.depth]
    most = max(calls, key=lambda each: each.count * each.own_ms_each, default=None)
    whole_ms = sum(each.count * each.ms_each for each in calls)
    collates = most is not None and loader.collate is not None and loader.collate.startswith(f"{most.name} (")
    who, hot = (loader.collate, loader.collate_hot) if collates else (loader.item, loader.item_hot)
    if hot is None or (most is not None and not (collates or f"{who} ".startswith(f"{most.name} "))):
        return
    own = most.own_ms_each / most.ms_each if most is not None and most.ms_each else 1.0
    of_all = most.count * most.own_ms_each / whole_ms if most is not None and whole_ms else 1.0
    if hot.fraction * of_all < mostly:
        return
    who, share = who or loader.dataset, hot.fraction * own
    # A batch is another one in each epoch.
    once = "" if collates else ", or once, ahead of training, if it is not random"
    yield Finding(
        text=f"workers take CPUs from the training: it waits about {lost_ms:.1f} of {step_ms:.1f} ms of a "
        f"step for one, and {who} spends {percent(share)} of its time at {hot.said_in(who)}",
        evidence={"lost_ms": lost_ms, "share": share},
        remedy=f"compute less at {hot.said_in(who)}{once}",
        cost_ms=lost_ms,
        is_main_cause=True,
        spares_work=True,
    )
