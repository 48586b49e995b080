"""The agent's start in a traced process; called by the ``.pth`` file or by the ``sitecustomize`` shim.

Runs before the program's first line, in every Python process of the command. It must be quick, must
never raise, and must do nothing in a process that loads no data.
"""

from __future__ import annotations

import os
import sys

from iotrace.agent import descriptors, identity, imports, patching
from iotrace.agent.recorder import Recorder
from iotrace.session import names

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from typing import Any

READ_PATH_MODULES = ("h5py", "zarr.core", "zarr.core.array", "numpy", "torch", "PIL.Image", "PIL.ImageFile")

# The process that has been started; a fork makes it differ. (A venv runs .pth files twice.)
_started_in = 0
_recorder: Recorder | None = None


def start() -> None:
    """Start the agent once in this process, if the environment asks for it."""
    global _started_in, _recorder
    if _started_in == os.getpid():
        return
    _started_in = os.getpid()
    session = names.decode_settings(os.environ.get(names.SETTINGS_VARIABLE, "")).get("session", "")
    process_role = identity.role(list(getattr(sys, "orig_argv", [])))
    if process_role == "helper" or not os.path.isdir(f"{session}/{names.PROCESSES}"):
        return
    try:
        _recorder = Recorder(session)
        _recorder.open(identity.describe(process_role))
    except OSError:  # no directory to report to: the program runs as if we were not here
        _recorder = None
        return
    _install(_recorder, session)


def _install(recorder: Recorder, session: str) -> None:
    import atexit

    def loader_imported(module: Any) -> None:
        asked = os.environ.get(names.POINT_VARIABLE, "")
        if asked:  # below the recording, which then sees what the point makes of the loader
            from iotrace.agent.point import Point, hook_point

            hook_point(module, recorder, Point(names.decode_settings(asked)))
        from iotrace.agent.loader import hook_loader

        hook_loader(module, recorder)

    def distributed_imported(module: Any) -> None:
        from iotrace.agent.distributed import hook_distributed

        hook_distributed(module, recorder)

    def autograd_imported(module: Any) -> None:
        from iotrace.agent.training import hook_autograd

        hook_autograd(module)

    def multiprocessing_imported(module: Any) -> None:
        # A process of multiprocessing leaves by os._exit: atexit does not run, its finalizers do.
        # They are cleared after the fork, hence registered by what runs after that.
        def register(own: Recorder) -> None:
            module.Finalize(own, own.close, exitpriority=-100)

        module.register_after_fork(recorder, register)

    hooks: dict[str, imports.Hook] = {
        "multiprocessing.util": multiprocessing_imported,
        "torch.utils.data.dataloader": loader_imported,
        "torch.autograd": autograd_imported,
        "torch.distributed.distributed_c10d": distributed_imported,
        **{name: _read_path_hook(name, recorder) for name in READ_PATH_MODULES},
    }
    patching.on_undo(imports.install(hooks, recorder.log))
    descriptors.protect(f"{session}/{names.POSIX}")
    descriptors.close_before_exec(recorder)
    # Registered first, so it runs last: after the program's own handlers and multiprocessing's.
    atexit.register(recorder.close)
    os.register_at_fork(
        before=recorder.before_fork,
        after_in_parent=recorder.after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )


def _read_path_hook(name: str, recorder: Recorder) -> imports.Hook:
    """The hook of one library; what it needs is imported with the library, not at every start."""

    def imported(module: Any) -> None:
        from iotrace.agent import readpaths

        readpaths.hooks(recorder)[name](module)

    return imported


def _after_fork_in_child() -> None:
    global _started_in
    _started_in = os.getpid()
    if _recorder is None:
        return
    spans = sys.modules.get("iotrace.agent.spans")
    if spans is not None:
        spans.forget_threads()
    try:
        _recorder.after_fork_in_child(identity.describe("forked"))
    except OSError:
        stop()


def stop() -> None:
    """Take every patch back and record no more."""
    patching.undo_all()
    if _recorder is not None:
        _recorder.spans.clear()
        _recorder.records.clear()
