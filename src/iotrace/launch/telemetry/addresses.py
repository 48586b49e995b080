"""The addresses of this host's own network interfaces."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from fcntl import ioctl

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915  # linux/sockios.h
_UP, _LOOPBACK = 0x1, 0x8
_MOST = 8
# What programs are told to communicate over; `^` and `=` of NCCL's are not for us to read.
_CHOICES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def own_addresses() -> list[str]:
    """List IPv4 addresses of interfaces that are up; those that the program is told to use, where it is."""
    found: dict[str, str] = {}
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # an interface without such an address
                (flags,) = struct.unpack_from("<16xH", ioctl(asking, _SIOCGIFFLAGS, request))
                if flags & _UP and not flags & _LOOPBACK:
                    found[name] = socket.inet_ntoa(ioctl(asking, _SIOCGIFADDR, request)[20:24])
    chosen = [word for variable in _CHOICES for word in os.environ.get(variable, "").split(",") if word]
    named = [address for name, address in found.items() if name.startswith(tuple(chosen))] if chosen else []
    return list(dict.fromkeys(named or found.values()))[:_MOST]
