"""Record what it takes to spawn a process: to pickle for it, and what it does before it works.

It imports the program's script, and unpickles.
"""

from __future__ import annotations

from io import BytesIO
from time import monotonic_ns

from iotrace.agent import patching

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from iotrace.agent.recording.recorder import Recorder


def hook_dump(module: Any, recorder: Recorder) -> None:
    """Patch ``multiprocessing.reduction.dump`` behind `module`: it starts processes anew."""

    def before(passed: list[Any], _: dict[str, Any]) -> tuple[int, int | None]:
        return monotonic_ns(), _length(passed)

    def after(
        began: tuple[int, int | None] | None, _: Any, passed: Sequence[Any], __: dict[str, Any]
    ) -> None:
        start_ns, already = began or (0, None)
        behind = _length(passed)
        if already is None or behind is None or recorder.over:
            return
        record = {"type": "pickled", "start_ns": start_ns, "duration_ns": monotonic_ns() - start_ns}
        recorder.records.append({**record, "bytes": behind - already})

    patching.observe(module.reduction, "dump", recorder, "timing a pickle", before=before, after=after)


def _length(passed: Sequence[Any]) -> int | None:
    """Return what has been written to the file among the arguments; None where that is not in memory."""
    return passed[1].tell() if len(passed) > 1 and type(passed[1]) is BytesIO else None


def hook_preparing(module: Any, recorder: Recorder) -> None:
    """Patch ``multiprocessing.spawn``: `prepare` imports the script; what follows it unpickles the process.

    Of a process that another one has not spawned nothing is recorded.
    """
    prepared: list[tuple[int, int, str]] = []

    def before(*_: Any) -> int:
        return monotonic_ns()

    def after(start_ns: int | None, _: Any, passed: Sequence[Any], __: dict[str, Any]) -> None:
        told = passed[0] if passed else {}
        script = told.get("init_main_from_path") or told.get("init_main_from_name") or ""
        if start_ns is not None:
            prepared[:] = [(start_ns, monotonic_ns(), str(script))]

    def begins(*_: Any) -> None:
        if not prepared or recorder.over:
            return
        start_ns, prepared_ns, script = prepared.pop()
        recorder.records.append(
            {
                "type": "spawned",
                "start_ns": start_ns,
                "prepared_ns": prepared_ns,
                "unpickled_ns": monotonic_ns(),
                "script": script,
            }
        )

    what = "timing the start of a process"
    patching.observe(module, "prepare", recorder, what, before=before, after=after)
    patching.observe(module.process.BaseProcess, "_bootstrap", recorder, what, before=begins)
