"""The addresses of network interfaces, and sockets for datagrams between them."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from fcntl import ioctl
from pathlib import Path

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915  # linux/sockios.h
_UP, _LOOPBACK = 0x1, 0x8
_LOOP_OR_LINK = {0x10, 0x20}  # scopes: what another host cannot reach by the address alone
_UNUSABLE = 0x40 | 0x08  # linux/if_addr.h: tentative, or somebody else's
_MOST = 8
# What programs are told to communicate over; `^` and `=` of NCCL's are not for us to read.
_CHOICES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


Address = tuple[str, int]


def own_addresses() -> list[str]:
    """List addresses of interfaces that are up, or that the program is told to use; IPv4 first."""
    found = [*_of_ipv4(), *_of_ipv6()]
    chosen = [word for variable in _CHOICES for word in os.environ.get(variable, "").split(",") if word]
    named = [address for name, address in found if name.startswith(tuple(chosen))] if chosen else []
    return list(dict.fromkeys(named or [address for _, address in found]))[:_MOST]


def _of_ipv4() -> Iterator[tuple[str, str]]:
    """Yield the name and the IPv4 address of each interface that is up and has one."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):  # an interface without such an address
                (flags,) = struct.unpack_from("<16xH", ioctl(asking, _SIOCGIFFLAGS, request))
                if flags & _UP and not flags & _LOOPBACK:
                    yield name, socket.inet_ntoa(ioctl(asking, _SIOCGIFADDR, request)[20:24])


def _of_ipv6() -> Iterator[tuple[str, str]]:
    """Yield the name and the first IPv6 address of each interface, but those of loops and links."""
    seen = set()
    with suppress(OSError, ValueError):  # a kernel without IPv6
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, scope, flags, name = line.split()
            if int(scope, 16) in _LOOP_OR_LINK or int(flags, 16) & _UNUSABLE or name in seen:
                continue
            seen.add(name)
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))


def bound_to(address: str) -> socket.socket | None:
    """Make a socket for datagrams at `address`, at a free port; None where that cannot be."""
    with suppress(OSError), ExitStack() as failed:
        bound = failed.enter_context(_socket_to(address))
        bound.setblocking(False)
        bound.bind((address, 0))
        failed.pop_all()
        return bound
    return None


def connected_to(address: Address, routed: bool) -> socket.socket | None:
    """Connect to `address`, so that only its datagrams come in; through no gateway unless `routed`."""
    with suppress(OSError), ExitStack() as failed:
        found = failed.enter_context(_socket_to(address[0]))
        if not routed:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
            if found.family == socket.AF_INET6:  # there a gateway is passed all the same: one hop does not
                found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 1)
        found.connect(address)
        failed.pop_all()
        return found
    return None


def _socket_to(address: str) -> socket.socket:
    """Make a socket for datagrams; OSError where the kernel has no IPv6."""
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)


def addresses_of(node: str) -> set[str]:
    """Return the addresses that the names of the reference host lead to, and that of the job's master."""
    found: set[str] = set()
    for name in filter(None, (node, os.environ.get("MASTER_ADDR"))):
        with suppress(OSError, UnicodeError):
            found |= {str(each[4][0]) for each in socket.getaddrinfo(name, None)}
    return found
