"""``iotrace.profile``: a part of the running program, without the launcher.

Imported by training code with `iotrace` itself: what a profile needs is imported when one begins.
"""

from __future__ import annotations

import os
import sys

from iotrace.agent.recording import regions

TYPE_CHECKING = False  # `typing` costs more than the rest of this module
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from iotrace.launch.in_process_session import InProcessSession

    Decorated = TypeVar("Decorated", bound=Callable[..., Any])

# By pid, the profile that records the process: one at a time. A fork copies the entry, under another pid.
_running: dict[int, object] = {}


def profile(
    function: Any = None, /, *, output: str | os.PathLike[str] | None = None, report: bool = True
) -> Any:
    """Record a block or each call of a function into a session of its own, and report on standard error.

    ``with iotrace.profile(output="session"):``, ``@iotrace.profile`` or ``@iotrace.profile(output=...)``.
    `output` is the session's directory, by default ``iotrace-<date>-<time>``; LaunchError where it holds
    something. A later session of the process with the same one gets ``-2`` and so on; of several ranks each
    makes its own, with ``-rank<N>``. Under `iotrace run`, in a loader's worker and inside another profile
    it is a region.
    """
    if callable(function):
        return Profile(None, report)(function)
    return Profile(output if function is None else function, report)


class Profile:
    """What `profile` makes: a context manager and a decorator. `session` is the path of its last session."""

    def __init__(
        self,
        output: str | os.PathLike[str] | None = None,
        report: bool = True,
        name: str = "profile",
        rank: int | None = None,
    ) -> None:
        self.session: str | None = None
        self._output = None if output is None else os.fspath(output)
        self._report = report
        self._name = name
        self._rank = rank
        self._entered: list[InProcessSession | regions.Region] = []

    def __call__(self, function: Decorated) -> Decorated:
        call: Any = function

        def profiled(*args: Any, **kwargs: Any) -> Any:
            try:
                with Profile(self._output, self._report, self._name, self._rank) as entered:
                    self.session = entered.session
                    return call(*args, **kwargs)
            except BaseException as error:
                regions.hide_frame(error)
                raise

        from functools import update_wrapper

        self._name = getattr(call, "__qualname__", "profile")
        wrapped: Any = update_wrapper(profiled, call)
        return wrapped  # type: ignore[no-any-return]

    def __enter__(self) -> Profile:
        claimed = _claim_process()
        self._entered.append(self._begin_session() if claimed else regions.region(self._name).__enter__())
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        entered = self._entered.pop()
        if isinstance(entered, regions.Region):
            entered.__exit__(None, None, None)
        else:
            self._end_session(entered)

    def _begin_session(self) -> InProcessSession:
        from iotrace.agent import bootstrap
        from iotrace.launch.in_process_session import InProcessSession
        from iotrace.launch.session_directory import not_writable
        from iotrace.session import identity

        try:
            block = InProcessSession(self._output, _rank() if self._rank is None else self._rank)
            try:
                role = identity.role(list(getattr(sys, "orig_argv", [])))
                bootstrap.begin(str(block.session), role, block.settings)
            except OSError as error:
                raise not_writable(block.shown, error) from error
        except BaseException:
            bootstrap.stop()
            _running.pop(os.getpid(), None)
            raise
        block.enter_environment()
        self.session = str(block.shown)
        return block

    def _end_session(self, block: InProcessSession) -> None:
        from iotrace.agent import bootstrap

        if os.getpid() not in _running:
            return  # a fork of the program has left the block, too: the session is its parent's
        try:
            block.leave_environment()
            bootstrap.end()
            block.close()
        finally:
            _running.pop(os.getpid(), None)
        if self._report:
            from iotrace.postrun import finish

            finish(block.path_from_here(), in_program=True)


def _rank() -> int | None:
    """This process's rank by the environment, None where there is but one."""
    from iotrace.session import identity

    found = identity.ranks(os.environ)
    return found["rank"] if (found["world_size"] or 1) > 1 else None


def _claim_process() -> bool:
    """Whether this process is to be recorded now; if so, nobody else may until the profile's end."""
    from iotrace.agent import bootstrap, training

    pid = os.getpid()
    if training.in_worker() or (pid not in _running and bootstrap.recording()):
        return False
    claim = object()
    if _running.setdefault(pid, claim) is claim:  # one step, whatever other threads are about to do
        return True
    import warnings

    warnings.warn(
        "iotrace.profile: another profile of this process is running, so this one is a region of it",
        RuntimeWarning,
        stacklevel=4,
    )
    return False
