"""Sums of what a process reads, by file or array: a record of each replaces the one before.

An access leaves no record of its own.
"""

from __future__ import annotations

from iotrace.session.guard import ours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder


class Sums:
    """What is known by key; None of what is left out. A subclass adds to it, and makes the `record` of one.

    What is known has the `count` of its accesses, and how many the last record `told`. It is told again where
    it has `more` times as many, and at the process's end.
    """

    def __init__(self, recorder: Recorder, what: str, more: float) -> None:
        self._recorder, self._what, self._more = recorder, what, more
        self._directory = ""
        self._known: dict[Any, Any] = {}

    def _begin(self) -> None:
        """Begin in this process, as its directory is another one: a forked child starts anew."""
        self._directory, self._known = self._recorder.directory, {}
        self._recorder.before_flush.append(self._tell)

    def _tell(self) -> None:
        more = 1.0 if self._recorder.closed else self._more
        try:
            for key, known in list(self._known.items()):
                if known is not None and known.count > known.told * more:
                    known.told = known.count
                    record = self.record(key, known)
                    if record["path"]:  # else of a file without a name
                        self._recorder.records.append(record)
        except ours(Exception) as error:
            self._recorder.absorb(error, self._what)

    def record(self, key: Any, known: Any) -> dict[str, Any]:
        """Make the record of what is known by `key`."""
        raise NotImplementedError
