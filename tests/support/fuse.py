"""A file system that stops answering: FUSE's protocol by hand, for root alone, without libfuse.

Each name but ``stop`` is a file of `SIZE` bytes. Once ``stop`` was looked up, no read and no open is
answered any more, as by a server that is gone. ``python fuse.py MOUNTPOINT`` serves until it is ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SIZE = 1 << 16
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _RELEASE, _FLUSH, _INIT, _OPENDIR, _READDIR = (
    *(1, 2, 3, 14, 15, 18, 25, 26, 27, 28),
)
_BATCH_FORGET, _INTERRUPT, _RELEASEDIR = 42, 36, 29
_STOPS = (_OPEN, _READ)
_ROOT = 1
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def _attributes(node: int) -> bytes:
    mode, size = (0o040755, 0) if node == _ROOT else (0o100644, SIZE)
    return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


class _Server:
    def __init__(self, device: int) -> None:
        self._device = device
        self._nodes: dict[bytes, int] = {}
        self._stopped = False

    def serve(self) -> None:
        while True:
            try:
                data = os.read(self._device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return  # unmounted
            _, call, unique, node = struct.unpack_from("<IIQQ", data)
            if call in (_FORGET, _BATCH_FORGET, _INTERRUPT) or (self._stopped and call in _STOPS):
                continue
            answer = self._answer(call, node, data[40:])
            failed, body = (-answer, b"") if isinstance(answer, int) else (0, answer)
            with contextlib.suppress(OSError):  # nobody waits any more
                os.write(self._device, struct.pack("<IiQ", 16 + len(body), failed, unique) + body)

    def _answer(self, call: int, node: int, data: bytes) -> bytes | int:
        if call == _INIT:
            return struct.pack("<4I2H2I2H2I12H", 7, 31, 0, 0, 8, 8, 1 << 16, 1, 0, 0, 0, 0, *[0] * 12)
        if call == _LOOKUP:
            name = data.rstrip(b"\0")
            if name == b"stop":
                self._stopped = True
                return errno.ENOENT
            number = self._nodes.setdefault(name, _ROOT + 1 + len(self._nodes))
            return struct.pack("<4Q2I", number, 0, 0, 0, 0, 0) + _attributes(number)
        if call == _GETATTR:
            return struct.pack("<Q2I", 0, 0, 0) + _attributes(node)
        if call in (_OPEN, _OPENDIR):
            return struct.pack("<QIi", node, 0, 0)
        if call == _READ:
            _, offset, size = struct.unpack_from("<QQI", data)
            return bytes(max(0, min(size, SIZE - offset)))
        return b"" if call in (_READDIR, _RELEASE, _RELEASEDIR, _FLUSH) else errno.ENOSYS


def _mount(point: str) -> int:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _libc.mount(b"iotrace-tests", os.fsencode(point), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    return device


@contextlib.contextmanager
def mounted(point: Path) -> Iterator[None]:
    """Mount it at `point`, which is made; at the end it is unmounted, and who still waits gets an error.

    Raises:
        OSError: it cannot be mounted here.
    """
    point.mkdir()
    with subprocess.Popen([sys.executable, __file__, str(point)], stdout=subprocess.PIPE) as server:
        try:
            if server.stdout is None or not server.stdout.readline():
                raise OSError("cannot mount FUSE here")
            yield
        finally:
            server.kill()
            server.wait()
            _libc.umount2(os.fsencode(point), _MNT_DETACH)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _device = _mount(sys.argv[1])
    print("mounted", flush=True)
    _Server(_device).serve()
    time.sleep(0)
