"""``--dask ADDRESS|local``: tasks on the workers of a Dask cluster. Dask schedules; nothing here does."""

from __future__ import annotations

import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from iotrace import compiled
from iotrace.errors import IotraceError, UsageError
from iotrace.units import counted
from iotrace.version import __version__

LOCAL = "local"
_CONNECT_SECONDS = 15
_WORKER_SECONDS = 60  # a job of a batch system may still begin
_CLOSE_SECONDS = 5
_SAME_LIBRARY = f"pip install iotrace-agent=={__version__} in the environment of the workers"
_START = "start one with: dask scheduler; or use this machine's cores: --dask local"

_T = TypeVar("_T")
_R = TypeVar("_R")


class Cluster:
    """Workers that a Dask scheduler knows, all of them with this version of iotrace."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self._address = address

    def map(
        self, do: Callable[[_T], _R], items: Sequence[_T], done: Callable[[int], None] = lambda _: None
    ) -> list[_R]:
        """Do each item as a task of its own; return the results in the order of `items`.

        `done` hears the index of each item that is done. What a task raises is raised here.

        Raises:
            IotraceError: the scheduler went away, or workers died of a task again and again.
        """
        from distributed import CancelledError, KilledWorker, as_completed
        from distributed.comm import CommClosedError

        gone = self._gone()
        try:
            futures = [self._client.submit(do, item, pure=False) for item in items]
            indexes = {future.key: index for index, future in enumerate(futures)}
            for future in as_completed(futures, loop=self._client.loop):
                if future.cancelled():
                    raise gone
                future.result()
                done(indexes[future.key])
            return list(self._client.gather(futures))
        except KilledWorker as error:
            raise IotraceError(
                "Dask's workers died of one task again and again, by lack of memory perhaps",
                "give each worker more memory and one thread: dask worker --nthreads 1 --memory-limit 0",
            ) from error
        except (CancelledError, CommClosedError) as error:
            raise gone from error

    def _gone(self) -> IotraceError:
        return IotraceError(
            f"the Dask scheduler at {self._address} went away in mid-job: nothing was written",
            "start it again and repeat the command, or leave --dask out",
        )

    def _ask(self, what: Callable[[], Any]) -> dict[str, Any]:
        """Ask all workers; an exception is an answer, too."""
        try:
            found: dict[str, Any] = self._client.run(what, on_error="return")
        except OSError as error:
            raise self._gone() from error
        return found

    def check_sees(self, paths: Sequence[Path]) -> None:
        """Make sure that all workers see `paths`: these lie on a file system that they share.

        Raises:
            IotraceError: one does not.
        """
        names = [os.fspath(path.absolute()) for path in paths]

        def missing() -> list[str]:
            import os

            return [name for name in names if not os.path.lexists(name)]

        for worker, unseen in self._ask(missing).items():
            if unseen:
                why = unseen[0] if isinstance(unseen, list) else unseen
                raise IotraceError(
                    f"the Dask worker at {worker} does not see {why}",
                    "inputs and output must be where all workers see them, under the same path",
                )

    def check_versions(self) -> None:
        """Make sure that all workers have this version of iotrace, and this Python.

        Raises:
            IotraceError: one has not, or there is none.
        """

        def library() -> tuple[str, bool]:
            from iotrace import compiled  # whatever has that name there

            return sys.modules["iotrace"].__version__, compiled.available()

        ours = platform.python_version_tuple()[:2]
        for worker, python in self._ask(platform.python_version).items():
            if tuple(python.split(".")[:2]) != ours:
                raise IotraceError(
                    f"the Dask worker at {worker} runs Python {python}, this is {platform.python_version()}",
                    "start the workers with the Python of this command",
                )
        found = self._ask(library)
        without = [worker for worker, answer in found.items() if isinstance(answer, BaseException)]
        if without:
            raise IotraceError(
                f"iotrace cannot be imported by {counted(len(without), 'Dask worker')} of {len(found)}, "
                f"such as {without[0]}: {found[without[0]]}",
                _SAME_LIBRARY,
            )
        for worker, (version, with_library) in found.items():
            if version != __version__:
                raise IotraceError(
                    f"the Dask worker at {worker} has iotrace {version}, this is {__version__}", _SAME_LIBRARY
                )
            if with_library != compiled.available():
                raise IotraceError(
                    f"the Dask worker at {worker} has {'the' if with_library else 'no'} compiled library "
                    "of iotrace, unlike this command",
                    _SAME_LIBRARY,
                )


@contextmanager
def connected(address: str, workers: int | None = None) -> Iterator[Cluster]:
    """Connect to the scheduler at `address`; ``local`` starts `workers` here (default: one for each core).

    Raises:
        UsageError: Dask is not installed, or `address` is none.
        IotraceError: no scheduler answers there, it has no workers, or these have another iotrace.
    """
    if find_spec("distributed") is None:
        raise UsageError(
            "--dask needs the package distributed, which is not installed here",
            "pip install 'iotrace-agent[dask]'",
        )
    from distributed import Client, LocalCluster

    if address != LOCAL:
        _check_address(address)
    # What they print stands beside our own sentence, and says less.
    logging.getLogger("distributed").setLevel(logging.CRITICAL + 1)
    local = None
    if address == LOCAL:
        cores = workers or len(os.sched_getaffinity(0))
        local = LocalCluster(
            n_workers=cores,
            threads_per_worker=1,
            memory_limit=0,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        )
    try:
        try:
            client = Client(local or address, timeout=_CONNECT_SECONDS, set_as_default=False)
        except OSError as error:
            raise IotraceError(f"no Dask scheduler answers at {address}", _START) from error
        try:
            _wait_for_workers(client, address)
            cluster = Cluster(client, address)
            cluster.check_versions()
            yield cluster
        finally:
            with suppress(Exception):  # a scheduler that is gone cannot be told
                client.close(timeout=_CLOSE_SECONDS)
    finally:
        if local is not None:
            local.close(timeout=_CLOSE_SECONDS)


def _check_address(address: str) -> None:
    from distributed.comm import get_address_host_port

    try:
        get_address_host_port(address)
    except ValueError as error:
        raise UsageError(
            f"--dask takes a scheduler's address or {LOCAL}, not {address!r}: {error}",
            "such as --dask tcp://HOST:8786",
        ) from error


def _wait_for_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_WORKER_SECONDS)
    except OSError as error:
        raise IotraceError(
            f"the Dask scheduler at {address} has no workers after {_WORKER_SECONDS} s",
            f"start some with: dask worker {address}",
        ) from error
