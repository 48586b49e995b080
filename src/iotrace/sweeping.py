"""``iotrace.sweep``, ``iotrace.tune`` and ``iotrace.try_fix``: a sweep, a search or a trial, from Python.

Imported by training code with `iotrace` itself: what it needs is imported when one begins.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` costs more than the rest of this module
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from iotrace.sweeps.results import SweepResult
    from iotrace.sweeps.tune.results import TuneResult
    from iotrace.trying.results import Trial


def sweep(
    command: Sequence[str],
    workers: Iterable[int] = (),
    *,
    prefetch: Iterable[int] = (),
    values: Mapping[str, Iterable[object]] | None = None,
    repeat: int = 1,
    steps: int | None = None,
    cache: str = "asis",
    ceiling: bool = True,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    io: Iterable[str] = (),
) -> SweepResult:
    """Run `command` at every point as ``iotrace sweep`` does, and return what it found.

    `values` are those of other placeholders (``--set``). The state stays in the directory `output`, by
    default ``iotrace-sweep-<date>-<time>``. KeyboardInterrupt passes; the runs so far are kept for `resume`.

    Raises:
        UsageError: it cannot be run as asked (an IotraceError).
    """
    from pathlib import Path

    from iotrace.sweeps.execute import execute
    from iotrace.sweeps.grid import parse_axes
    from iotrace.sweeps.plan import keep, make_plan
    from iotrace.sweeps.schedule import open_sweep

    other = [f"{name}={','.join(map(str, listed))}" for name, listed in (values or {}).items()]
    axes = parse_axes(",".join(map(str, workers)) or None, ",".join(map(str, prefetch)) or None, other)
    plan = make_plan(
        list(command), axes, repeat=repeat, steps=steps, cache=cache, ceiling=ceiling, io=list(io)
    )
    running = open_sweep(plan, None if output is None else Path(output), resume)
    try:
        running.run(execute)
    finally:
        keep(running.result())
    return running.result()


def tune(
    command: Sequence[str],
    *,
    budget_s: float | None = None,
    steps: int | None = 100,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    io: Iterable[str] = (),
) -> TuneResult:
    """Search the best settings of the loader of `command` as ``iotrace tune`` does; return what it found.

    The state stays in the directory `output`, by default ``iotrace-tune-<date>-<time>``. KeyboardInterrupt
    passes; the runs so far are kept for `resume`.

    Raises:
        UsageError: it cannot be run as asked (an IotraceError).
    """
    from pathlib import Path

    from iotrace.doctor.resources_left import resources_left
    from iotrace.sweeps.execute import execute
    from iotrace.sweeps.model import look
    from iotrace.sweeps.plan import keep
    from iotrace.sweeps.tune.search import open_search
    from iotrace.sweeps.tune.summary import sum_up

    where = None if output is None else Path(output)
    search = open_search(list(command), look, resources_left(), budget_s, steps, where, resume, list(io))
    try:
        search.run(execute)
    finally:
        keep(sum_up(search))
    return sum_up(search)


def try_fix(
    session: str | os.PathLike[str],
    *fixes: int | str,
    command: Sequence[str] = (),
    runs: int = 10,
    minutes: float | None = None,
    steps: int | None = None,
    bare: bool = False,
    as_it_is: bool = False,
    output: str | os.PathLike[str] | None = None,
) -> Trial:
    """Try a fix of a session's report as ``iotrace try --yes`` does, and return what it gained.

    `fixes` are numbers or codes; without one the first that needs no edit of the program. The result stays in
    the directory `output`, by default ``iotrace-try-<date>-<time>``. KeyboardInterrupt passes.

    Raises:
        IotraceError: no fix can be tried, or the program fails as it is; UsageError: not as asked.
    """
    from pathlib import Path

    from iotrace.trying.options import Options
    from iotrace.trying.trial import open_trial

    options = Options(
        runs=runs,
        minutes=minutes,
        steps=steps,
        bare=bare,
        as_it_is=as_it_is,
        directory=None if output is None else Path(output),
    )
    return open_trial(Path(session), [*map(str, fixes)], command, options).run(lambda _: None)
