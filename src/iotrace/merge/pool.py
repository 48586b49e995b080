"""A process per input, up to the cores; the parent watches how far each has come."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from iotrace.errors import IotraceError
from iotrace.merge.convert import Job, convert
from iotrace.merge.input_files import SESSION
from iotrace.merge.survey import survey
from iotrace.sources.byte_stream import Progress, silent

if TYPE_CHECKING:
    from iotrace.cluster import Cluster

_KEPT_BYTES = 32 << 20  # the most that glibc takes
_INTERVAL_SECONDS = 0.1
_PATIENCE_SECONDS = 2.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Watch:
    """How far a phase has come: bytes of the inputs that were read, of all."""

    phase: str
    done_bytes: int
    total_bytes: int


_positions: Any = None  # in a worker: how far each item has come


def _begin(positions: Any, parent: int) -> None:
    """A worker's first steps: it ends with its parent, however that ends, and silently by signals."""
    global _positions
    _positions = positions
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # in the background of a shell SIGINT is ignored
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    try:
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    except (OSError, AttributeError):  # no Linux
        return
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


@contextmanager
def _unended() -> Iterator[Callable[[], None]]:
    """Hold back signals that end the command, but for the moments when the block calls what it is given.

    What they raise in a hook of a fork, or in a finalizer of multiprocessing's, Python only prints.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

    def let_in() -> None:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

    try:
        yield let_in
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _keep_pages() -> None:
    """Pieces of some MiB come and go: glibc would give each one's pages back and fault them in again, which
    is a third of the kernel's work."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # no glibc
        return
    trim_threshold, mmap_threshold = -1, -3
    set_option(mmap_threshold, _KEPT_BYTES)
    set_option(trim_threshold, _KEPT_BYTES)


def _do(item: Any, progress: Progress = silent) -> Any:
    if isinstance(item, Job):
        return convert(item, progress)
    file, wants = item
    if file.kind == SESSION:
        from iotrace.merge.analysed_input import survey_session  # it imports the analysis, which is slow

        return survey_session(file)
    return survey(file, wants, progress)


def _do_in_worker(index: int, item: Any) -> Any:
    _keep_pages()
    return _do(item, partial(_positions.__setitem__, index))


def _size(item: Any) -> int:
    path = item.file.path if isinstance(item, Job) else item[0].path
    return os.stat(path).st_size if path.is_file() else 0


def run_all(
    phase: str,
    items: Sequence[Any],
    cores: int,
    watch: Callable[[Watch], None] | None,
    cluster: Cluster | None = None,
) -> list[Any]:
    """Do all items, in their order: on `cluster`; a single one, or on a single core, in this process."""
    report = watch or (lambda _: None)
    sizes = [_size(item) for item in items]
    if cluster is not None:
        ended: list[int] = []

        def count(index: int) -> None:
            ended.append(sizes[index])
            report(Watch(phase, sum(ended), sum(sizes)))

        return cluster.map(_do, items, count)
    workers = min(cores, len(items))
    if workers <= 1 or sum(sizes) < 1 << 20:  # starting processes takes longer than a megabyte
        _keep_pages()
        results: list[Any] = []
        for item in items:

            def show(position: int, before: int = sum(sizes[: len(results)])) -> None:
                report(Watch(phase, min(before + position, sum(sizes)), sum(sizes)))

            results.append(_do(item, show))
        return results
    import multiprocessing  # a merge of one input does without these imports
    from concurrent.futures import Future, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    # A fork starts at once; where other threads run it could copy a lock that one of them holds.
    context = multiprocessing.get_context("fork" if threading.active_count() == 1 else "spawn")
    positions = context.Array("q", len(items), lock=False)
    others, threads = set(multiprocessing.active_children()), set(threading.enumerate())
    begin = (_begin, (positions, os.getpid()))
    try:
        with _unended() as let_in, ProcessPoolExecutor(workers, context, *begin) as pool:
            # The largest first: the last one to end is then a small one.
            order = sorted(range(len(items)), key=lambda index: -sizes[index])
            futures: dict[int, Future[Any]] = {
                index: pool.submit(_do_in_worker, index, items[index]) for index in order
            }
            pending = set(futures.values())
            try:
                while pending:
                    done, pending = wait(pending, timeout=_INTERVAL_SECONDS, return_when="FIRST_EXCEPTION")
                    report(Watch(phase, min(sum(positions), sum(sizes)), sum(sizes)))
                    let_in()
                    for future in done:
                        future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in set(multiprocessing.active_children()) - others:
                    worker.terminate()
                # Else Python's exit would write to a pipe that it closes meanwhile.
                for thread in set(threading.enumerate()) - threads:
                    thread.join(_PATIENCE_SECONDS)
                raise
            return [futures[index].result() for index in range(len(items))]
    except BrokenProcessPool as error:
        raise IotraceError(
            "a process of the merge was killed, by lack of memory perhaps", "--processes 1 needs the least"
        ) from error
