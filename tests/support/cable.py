"""A cable between two hosts that the suite carries packet by packet: datagrams are lost on it, or late."""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType

_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001  # linux/if_tun.h
_PACKET = 65_536
_PROTOCOL, _UDP = 9, 17  # where an IPv4 packet names it


@dataclass
class Conditions:
    """What happens to UDP datagrams; TCP is passed on as it comes.

    `late_s`: each is late by up to so long, from the first host to the second and back. All are lost after
    `cut_after` of them.
    """

    loss: float = 0.0
    late_s: tuple[float, float] = (0.0, 0.0)
    cut_after: int | None = None
    lost: int = 0
    passed: int = 0
    random: random.Random = field(default_factory=lambda: random.Random(7))


class Cable:
    """Two devices, one for each host to take (`devices`), and a thread that carries packets between them."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        self._files: list[int] = []
        self.devices: list[str] = []
        self._awake, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="cable", daemon=True)

    def __enter__(self) -> Cable:
        for _ in range(2):
            file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            self._files.append(file)
            found = fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", b"cable%d", _TUN_WITHOUT_HEADER))
            self.devices.append(found[:16].rstrip(b"\0").decode())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._wake)
        if self._thread.is_alive():
            self._thread.join()
        for file in (*self._files, self._awake):
            os.close(file)

    def _carry(self) -> None:
        one, two = self._files
        to = {one: two, two: one}
        waiting: list[tuple[float, int, int, bytes]] = []
        order = itertools.count()
        while True:
            pause_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
            for file in select.select([one, two, self._awake], [], [], pause_s)[0]:
                if file == self._awake:
                    return
                packet = os.read(file, _PACKET)
                late_s = self._late_s(packet, file == one)
                if late_s is not None:
                    heapq.heappush(waiting, (time.monotonic() + late_s, next(order), to[file], packet))
            while waiting and waiting[0][0] <= time.monotonic():
                _, _, end, packet = heapq.heappop(waiting)
                with suppress(OSError):  # a device that is not up yet
                    os.write(end, packet)

    def _late_s(self, packet: bytes, there: bool) -> float | None:
        """How much later a packet is passed on; None: never."""
        state = self._conditions
        if packet[0] >> 4 != 4 or packet[_PROTOCOL] != _UDP:
            return 0.0
        is_cut = state.cut_after is not None and state.passed >= state.cut_after
        if is_cut or state.random.random() < state.loss:
            state.lost += 1
            return None
        state.passed += 1
        return state.random.random() * state.late_s[0 if there else 1]
