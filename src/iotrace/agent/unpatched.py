"""What gevent and eventlet replace in modules that they patch, as it was when the agent started.

Their locks, threads and sleeps switch to other greenlets, which would run in the middle of our work. Other
modules of the agent are imported later, behind such a patch: they take these names from here. What there is
in `posix` they take from there, where nobody patches.
"""

from _thread import RLock, _local, allocate_lock, get_ident, get_native_id, start_new_thread
from time import sleep

__all__ = ["RLock", "_local", "allocate_lock", "get_ident", "get_native_id", "sleep", "start_new_thread"]
