"""What gevent and eventlet replace in modules that they patch, as it was when the agent started.

Their locks, threads and sleeps switch to other greenlets, which would run in the middle of our work. Other
modules of the agent are imported later, behind such a patch: they take these names from here. What there is
in `posix` they take from there, where nobody patches.
"""

from __future__ import annotations

from _thread import RLock, _local, allocate_lock, get_ident, get_native_id, start_new_thread
from posix import stat
from time import sleep

from iotrace.session.guard import ours

__all__ = [
    "RLock",
    "_local",
    "allocate_lock",
    "get_ident",
    "get_native_id",
    "join",
    "sleep",
    "start_new_thread",
]

# The end of a thread is polled for: first after 20 us, then less and less often, for a second in all. It
# takes that long where many programs want the CPUs.
_POLLS_FOR_END = 90
_LATER = 1.1


def join(thread_id: int) -> None:
    """Wait until the kernel has removed a thread that `start_new_thread` began; it outlasts its last line.

    Python 3.12 counts the process's threads at a fork, and warns of more than one.
    """
    try:
        for poll in range(_POLLS_FOR_END):
            stat(f"//proc/self/task/{thread_id}")
            sleep(0.000_02 * _LATER**poll)
    except ours(OSError):
        pass
