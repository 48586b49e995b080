"""Make, start, stop and save iotrace's own torch profiler, so that it can end at any moment.

It is `torch.autograd.profiler.profile`, one level below `torch.profiler.profile`: that one imports
torch._inductor when it starts (a second, and modules that the program never asked for).
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Callable
from errno import ENOSPC
from posix import close, open as posix_open, unlink
from typing import Any

from iotrace.agent.torch_profiler import module_ranges
from iotrace.agent.unpatched import get_ident
from iotrace.session import names
from iotrace.session.guard import ours
from iotrace.session.identity import nodes

# Kineto writes two lines to standard error at each start and stop of a profiler, above its error level.
_SILENT = "99"
_LEVEL = "KINETO_LOG_LEVEL"
_CHUNK_BYTES = 1 << 20
# The program needs the rest of the disk more than we do.
_LEAST_FREE_BYTES = 256 << 20

_calling_thread = 0


def is_own_call() -> bool:
    """Return whether this thread is inside a call of our own profiler."""
    return _calling_thread == get_ident()


class TorchProfiler:
    """One profiling session, from `prepare` to `save`; where `thread` is None, any thread may `stop` it."""

    def __init__(self, options: set[str], activities: str) -> None:
        torch: Any = sys.modules["torch"]
        # One that records all threads is told of no allocation: then it is of this thread, and of backward's.
        self.thread = get_ident() if "memory" in options else None
        experimental = {"profile_all_threads": self.thread is None, "trace_only": True}
        try:
            config = torch._C._profiler._ExperimentalConfig(**experimental)
        except ours(TypeError):
            # Without trace_only its end takes longer. Without profile_all_threads another thread cannot
            # stop it: this raises, and there is no window.
            del experimental["trace_only"]
            if self.thread is not None:
                experimental.clear()
            config = torch._C._profiler._ExperimentalConfig(**experimental)
        if "stacks" in options and "trace_only" in experimental:
            config.trace_only = False
        self._started = False
        self._step: Any = None  # its range
        self._remove_ranges: Callable[[], object] = bool  # does nothing: there are none so far
        self._autograd = torch.autograd
        device = _device(torch) if activities != "cpu" else None
        # Recorded with collectives between nodes, Intel's profiling library (PTI) is known to hang.
        self.spares_device = activities == "auto" and device == "xpu" and _on_several_nodes(torch)
        self._profile: Any = torch.autograd.profiler.profile(
            use_kineto=True,
            use_device=None if self.spares_device else device,
            record_shapes="shapes" in options,
            with_stack="stacks" in options,
            profile_memory="memory" in options,
            with_flops="flops" in options,
            experimental_config=config,
        )

    def prepare(self) -> None:
        """Warm up: allocate buffers and switch the device's tracing on, without recording yet."""
        self._remove_ranges = module_ranges.install()
        silenced = _LEVEL not in os.environ
        if silenced:  # read once, at the first use of Kineto
            os.environ[_LEVEL] = _SILENT
        try:
            self._call(self._profile._prepare_trace)
        finally:
            if silenced:
                os.environ.pop(_LEVEL, None)

    def start(self) -> None:
        """Record from here on."""
        self._started = True
        self._call(self._profile._start_trace)
        for key, value in _metadata():
            self._autograd._add_metadata_json(key, value)

    def mark_step(self, number: int) -> None:
        """Begin a step's range, and end the one before."""
        self._leave_step()
        self._step = self._autograd.profiler.record_function(f"{names.STEP_RANGE}{number}")
        self._step.__enter__()

    def _leave_step(self) -> None:
        left, self._step = self._step, None
        if left is not None:
            left.__exit__(None, None, None)

    def stop(self) -> None:
        """Record no more. Kineto has no other way to end a warm-up than to start and stop.

        Raises RuntimeError where another thread has to.
        """
        self._remove_ranges()
        if self.thread not in (None, get_ident()):
            raise RuntimeError("with --torch-options memory another thread cannot end the profiler")
        self._leave_step()
        if not self._started:
            self._call(self._profile._start_trace)
        self._call(self._profile.__exit__, None, None, None)

    def save(self, path: str) -> int:
        """Write the trace to `path`, by hidden files beside it, and return its compressed size in bytes.

        Raises OSError where the disk is full, or nearly so, and where the directory is gone.
        """
        directory, name = os.path.split(path)
        disk = os.statvfs(directory)
        if disk.f_bavail * disk.f_frsize < _LEAST_FREE_BYTES:
            raise OSError(ENOSPC, f"less than {_LEAST_FREE_BYTES >> 20} MiB are free")
        plain, packed = f"{directory}/.{name}.plain", f"{directory}/.{name}"
        try:
            close(private(plain, os.O_WRONLY | os.O_CREAT))  # Kineto's own would be as the umask has it
            self._profile.kineto_results.save(plain)
            size_bytes = _compress(plain, packed)
            os.rename(packed, path)
        finally:
            remove(plain)
            remove(packed)
        return size_bytes

    def _call(self, call: Any, *args: Any) -> None:
        global _calling_thread
        _calling_thread = get_ident()
        try:
            call(*args)
        finally:
            _calling_thread = 0


def _device(torch: Any) -> str | None:
    """Return the accelerator that the program uses; one that it has not touched is left alone."""
    supported = {str(activity).rpartition(".")[2] for activity in torch.autograd._supported_activities()}
    for activity, device in (("CUDA", "cuda"), ("XPU", "xpu")):
        module = sys.modules.get(f"torch.{device}")
        if activity in supported and module is not None and module.is_initialized():
            return device
    return None


def _on_several_nodes(torch: Any) -> bool:
    """Return whether ranks on several nodes communicate, as far as their launcher tells."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and nodes(os.environ) > 1


def _metadata() -> list[tuple[str, str]]:
    """Return the metadata that readers of Kineto's traces look for, as torch.profiler adds it."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    rank, size, backend = distributed.get_rank(), distributed.get_world_size(), distributed.get_backend()
    return [("distributedInfo", f'{{"backend": "{backend}", "rank": {rank}, "world_size": {size}}}')]


def private(path: str, flags: int) -> int:
    """Open a file that is for its owner alone, whatever the umask; an `opener`."""
    return posix_open(path, flags | os.O_CLOEXEC, names.FILE_MODE)


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    try:
        unlink(path)
    except ours(OSError):
        pass


def _compress(source: str, target: str) -> int:
    """Compress `source`, which must be a whole trace; Kineto does not say when it could not write it."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    size_bytes, last = 0, b""
    with open(source, "rb") as reader, open(target, "wb", opener=private) as writer:
        while chunk := reader.read(_CHUNK_BYTES):
            last = chunk
            size_bytes += writer.write(packer.compress(chunk))
        size_bytes += writer.write(packer.flush())
    if not last.rstrip().endswith(b"}"):
        raise OSError("the trace could not be written whole")
    return size_bytes
