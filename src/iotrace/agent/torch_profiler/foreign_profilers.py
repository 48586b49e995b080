"""End iotrace's profiler before one of the program's starts, and keep the program's traces.

Two profilers in one process are a crash, not an exception. All of torch's begin by one of the C functions
patched here, whatever class, subclass or thread they come from. Ours ends as soon as the program makes a
profiler: a program that profiles itself wants its trace undisturbed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from posix import stat
from time import monotonic_ns
from typing import Any

from iotrace.agent.patching import observe
from iotrace.agent.recording.recorder import Recorder
from iotrace.agent.torch_profiler import window
from iotrace.agent.torch_profiler.profiler import is_own_call, private, remove
from iotrace.agent.unpatched import _local
from iotrace.session import names
from iotrace.session.guard import ours

# The C functions, and the modules that hold them: a caller may have imported them from any.
_STARTS = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
_HOLDERS = (
    "torch._C._autograd",
    "torch.autograd",
    "torch.autograd.profiler",
    "torch.autograd.profiler_legacy",
)
_MOST_BYTES = 1 << 30
_GZIP = b"\x1f\x8b"
_CHUNK_BYTES = 1 << 20


def hook_torch(module: Any, recorder: Recorder) -> None:
    """Patch the starts and exports of torch's profilers; `module` is torch.profiler."""
    kineto = module.profiler._KinetoProfile
    _before(kineto, "__init__", recorder, "torch.profiler")
    for holder in filter(None, map(sys.modules.get, _HOLDERS)):
        for name in _STARTS:
            _before(holder, name, recorder, f"torch's profiler ({name})")
    keep = _Keeper(recorder)
    profile = sys.modules["torch.autograd.profiler"].profile
    for owner in (kineto, profile, sys.modules["torch.autograd.profiler_util"].EventList):
        keep.observe(owner)
    window.guarded = True


def hook_snapshots(module: Any, recorder: Recorder) -> None:
    """Patch ``torch.cuda.memory``: note where a snapshot is written, give way where the program records."""

    def dumped(_: Any, __: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        name = args[0] if args else kwargs.get("filename", "dump_snapshot.pickle")
        path = os.path.abspath(os.fsdecode(name))
        path = path[path.startswith("//") :]  # two slashes: it is ours
        recorder.records.append(
            {
                "type": "memory_snapshot",
                "path": path,
                "bytes": stat("/" + path).st_size,
                "mono_ns": monotonic_ns(),
            }
        )

    def recording(*_: Any) -> None:
        if window.current is not None and window.current.snapshot is not None:
            window.current.snapshot.give_way()

    observe(module, "_dump_snapshot", recorder, "noting a snapshot of memory", after=dumped)
    observe(module, "_record_memory_history", recorder, "giving way to the program", before=recording)


def hook_lightning(module: Any, recorder: Recorder) -> None:
    """Patch Lightning's ``PyTorchProfiler``, which makes torch's profiler much later."""
    _before(module.PyTorchProfiler, "__init__", recorder, "Lightning's PyTorchProfiler")


def _before(owner: Any, name: str, recorder: Recorder, what: str) -> None:
    starts = name in _STARTS

    def starting(*_: Any) -> None:
        if not is_own_call():
            window.give_way(recorder, what, starts)
            if starts:
                recorder.rest()  # a profiler with stacks follows the threads that it finds

    def started(*_: Any) -> None:
        recorder.wake()  # by a thread that it does not follow

    observe(
        owner,
        name,
        recorder,
        "giving way to the program's profiler",
        before=starting,
        ended=started if starts else None,
    )


class _Depth(_local):
    depth = 0


class _Keeper:
    """Copies each trace that the program exports into the session, after the export has returned."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._number = 0
        self._open = _Depth()

    def observe(self, owner: Any) -> None:
        """Patch ``owner.export_chrome_trace``; one export may call another for its work."""
        observe(
            owner,
            "export_chrome_trace",
            self._recorder,
            "keeping the program's trace",
            before=self._exporting,
            ended=self._ended,
            after=self._exported,
        )

    def _exporting(self, *_: Any) -> None:
        self._open.depth += 1

    def _ended(self, *_: Any) -> None:
        self._open.depth -= 1

    def _exported(self, _: Any, __: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if not self._open.depth:
            self._keep(args[1] if len(args) > 1 else kwargs["path"])

    def _keep(self, path: Any) -> None:
        start_ns = monotonic_ns()
        # Two slashes, so that dftracer does not count our reading as the program's.
        source = "/" + os.path.abspath(os.fsdecode(path))
        name, why = "", ""
        try:
            size_bytes = stat(source).st_size
            if size_bytes > _MOST_BYTES:
                why = f"larger than {_MOST_BYTES >> 20} MiB"
            else:
                name = self._copy(source)
        except ours(OSError) as error:
            size_bytes, why = None, error.strerror or str(error)
        self._recorder.records.append(
            {
                "type": "torch_program_trace",
                "path": name,
                "source": source[1:],
                "bytes": size_bytes,
                "mono_ns": start_ns,
                "duration_ns": monotonic_ns() - start_ns,
                "why": why,
            }
        )

    def _copy(self, source: str) -> str:
        with open(source, "rb") as file:
            start = file.read(_CHUNK_BYTES)
            name = names.PROGRAM_TRACE.format(self._number) + (".gz" if start.startswith(_GZIP) else "")
            self._number += 1
            hidden = f"{self._recorder.directory}/.{name}"
            try:
                # Not by shutil, which keeps some errors of the kind OSError.
                with open(hidden, "wb", opener=private) as copy:
                    while start:
                        copy.write(start)
                        start = file.read(_CHUNK_BYTES)
                os.rename(hidden, f"{self._recorder.directory}/{name}")
            finally:
                remove(hidden)
        return name
