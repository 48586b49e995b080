"""Measure the host's clock against that of the job's reference host, by datagrams between their sidecars.

The first sidecar of a session is the reference. It says where it answers in a file of the session, with a
random key that signs every datagram, so only those who may read the session can ask or answer. It is bound
to addresses of its own interfaces; the others ask there alone, and only where no gateway lies between or the
name of the reference host leads to that address. A datagram carries two times and nothing of the program.

The addresses of network interfaces, and sockets for datagrams between them.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from fcntl import ioctl
from pathlib import Path
from typing import Any

from iotrace.launch.telemetry import Record
from iotrace.session import names
from iotrace.session.identity import boot_id

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915  # linux/sockios.h
_UP, _LOOPBACK = 0x1, 0x8
_LOOP_OR_LINK = {0x10, 0x20}  # scopes: what another host cannot reach by the address alone
_UNUSABLE = 0x40 | 0x08  # linux/if_addr.h: tentative, or somebody else's
_MOST = 8
# The interfaces that programs are set to use; `^` and `=` of NCCL's are not for us to read.
_CHOICES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


Address = tuple[str, int]


def own_addresses() -> list[str]:
    """List addresses of interfaces that are up, or that the program is set to use; IPv4 first."""
    addresses = [*_of_ipv4(), *_of_ipv6()]
    chosen = [word for variable in _CHOICES for word in os.environ.get(variable, "").split(",") if word]
    named = [address for name, address in addresses if name.startswith(tuple(chosen))] if chosen else []
    return list(dict.fromkeys(named or [address for _, address in addresses]))[:_MOST]


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
        connection = failed.enter_context(_socket_to(address[0]))
        if not routed:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)
            if connection.family == socket.AF_INET6:  # there a gateway is passed all the same: one hop is not
                connection.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 1)
        connection.connect(address)
        failed.pop_all()
        return connection
    return None


def _socket_to(address: str) -> socket.socket:
    """Make a socket for datagrams; OSError where the kernel has no IPv6."""
    return socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)


def resolve_addresses(node: str) -> set[str]:
    """Return the addresses that the names of the reference host lead to, and that of the job's master."""
    addresses: set[str] = set()
    for name in filter(None, (node, os.environ.get("MASTER_ADDR"))):
        with suppress(OSError, UnicodeError):
            addresses |= {str(each[4][0]) for each in socket.getaddrinfo(name, None)}
    return addresses


_ASK, _ANSWER = b"iotQ", b"iotA"
_BODY = struct.Struct("<4s8sqq")  # what it is, a random number, received and answered in ns
_SIGNED = 16
_SIZE = _BODY.size + _SIGNED
_EXCHANGES, _MOST_EXCHANGES = 8, 32  # in a round: more where none was
_QUICK = 1.2  # times as long as the quickest so far
_WAIT_S = 0.25
_LAST_WAIT_S = 0.05
_LOST = 3  # exchanges in a row without an answer end a round
_EARLY_S = (0.6, 0.6, 1.8, 3.0, 4.0)  # between the first rounds: short runs have a drift, too
_PERIOD_S = 10.0
_SEARCH_S = 1.0  # for the reference, which may not have said where it is yet
_LAST_ROUND_S = 0.4


class ClockExchange:
    """Answers the others' sidecars, or asks the reference's, on a daemon thread."""

    def __init__(self, session: str, directory: str, emit: Callable[[Record], None]) -> None:
        self._path = Path(session, names.CLOCK)
        self._sampler = os.path.basename(directory)
        self._emit = emit
        self._stopping = False
        self._awake, self._wake = os.pipe()
        self._thread: threading.Thread | None = None
        self._key = b""
        self._asks = False
        self._quickest_ns = 1 << 62
        self._why = ""

    def start(self) -> None:
        """Begin, where the session may be of several hosts."""
        if may_be_of_several_hosts(self._path.parent):
            self._thread = threading.Thread(target=self._guarded, name="clock", daemon=True)
            self._thread.start()

    def measure_last(self) -> None:
        """Measure a last time, for a moment; the reference goes on answering the others."""
        if self._asks:
            self.close()

    def close(self) -> None:
        """End the thread, if it does so in a moment."""
        if not self._stopping:
            self._stopping = True
            os.close(self._wake)
            if self._thread is not None:
                self._thread.join(_LAST_ROUND_S)

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # the clocks are then related by other means, or not at all
            self._tell("", repr(error))

    def _run(self) -> None:
        served = self._claim()
        if served:
            self._answer(served)
        elif not self._key:
            self._asks = True
            self._ask()

    def _claim(self) -> list[socket.socket]:
        """Become the reference, where none is, or where it was an earlier sidecar of this host."""
        held = _read(self._path)
        own_host = _host_part(self._sampler), boot_id()  # two machines may have one name
        if held is not None and (_host_part(held["sampler"]), held["boot_id"]) != own_host:
            return []
        served = [bound for bound in map(bound_to, own_addresses()) if bound is not None]
        self._key = bytes.fromhex(held["key"]) if held is not None else secrets.token_bytes(32)
        addresses = [bound.getsockname()[:2] for bound in served]
        about = {"sampler": self._sampler, "boot_id": own_host[1], "key": self._key.hex()}
        text = json.dumps({**about, "addresses": addresses})
        own = self._path.with_name(f"{names.CLOCK}.{self._sampler}")
        try:
            own.write_text(text)
            own.chmod(names.FILE_MODE)
            if held is not None:
                own.replace(self._path)
            else:
                os.link(own, self._path)  # whole or not at all, and for one alone
            return served
        except FileExistsError:
            for bound in served:
                bound.close()
            self._key = b""
            return []
        finally:
            own.unlink(missing_ok=True)

    def _answer(self, served: list[socket.socket]) -> None:
        by_number = {bound.fileno(): bound for bound in served}
        while not self._stopping:
            for number in select.select([*by_number, self._awake], [], [])[0]:
                if number == self._awake:
                    break
                bound = by_number[number]
                with suppress(OSError):
                    data, sender = bound.recvfrom(_SIZE + 1)
                    received = time.monotonic_ns()
                    asked = self._read_datagram(data, _ASK)
                    if asked is not None:
                        answer = self._signed(_ANSWER, asked[0], received, time.monotonic_ns())
                        bound.sendto(answer, sender)

    def _ask(self) -> None:
        early = list(_EARLY_S)
        asking: socket.socket | None = None
        held = None
        while True:
            last = self._stopping
            offer = _read(self._path)
            if offer is not None and (asking is None or offer != held):
                held, self._key = offer, bytes.fromhex(offer["key"])
                asking = self._connect([(host, port) for host, port in offer["addresses"]], offer["sampler"])
            exchanges = self._round(asking, last) if asking is not None else []
            if exchanges and held is not None:
                self._emit({"type": "clock", "reference": held["sampler"], "exchanges": exchanges})
            elif asking is not None and not last:
                asking.close()
                asking = None
            if last:
                return
            pause_s = (early.pop(0) if early else _PERIOD_S) if exchanges else _SEARCH_S
            select.select([self._awake], [], [], pause_s)  # until then, or until `close`

    def _connect(self, addresses: list[Address], sampler: str) -> socket.socket | None:
        """Find an address at which the reference answers: without a gateway, else where its name leads."""
        for routed in (False, True):
            known = resolve_addresses(_node_part(sampler)) if routed else None
            for address in addresses:
                if known is not None and address[0] not in known:
                    continue
                connection = connected_to(address, routed)
                if connection is not None:
                    if self._exchange(connection, _WAIT_S) is not None:
                        return connection
                    connection.close()
        self._tell(sampler, f"{_node_part(sampler)} did not answer at {_listed(addresses)}")
        return None

    def _round(self, asking: socket.socket, last: bool) -> list[list[int]]:
        exchanges: list[list[int]] = []
        lost = 0
        quick = False
        while len(exchanges) < _MOST_EXCHANGES and lost < (1 if last else _LOST):
            if (self._stopping and not last) or (quick and len(exchanges) >= _EXCHANGES):
                break
            one = self._exchange(asking, _LAST_WAIT_S if last else _WAIT_S)
            if one is None:
                lost += 1
            else:
                exchanges.append(one)
                lost = 0
                trip_ns = one[3] - one[0]
                self._quickest_ns = min(self._quickest_ns, trip_ns)
                quick = quick or trip_ns <= _QUICK * self._quickest_ns
        return exchanges

    def _exchange(self, asking: socket.socket, wait_s: float) -> list[int] | None:
        """Ask once: when that was sent, received, answered, and when the answer was back; None: no answer."""
        number = secrets.token_bytes(8)
        deadline = time.monotonic() + wait_s
        datagram = self._signed(_ASK, number, 0, 0)
        try:
            sent = time.monotonic_ns()
            asking.send(datagram)
            while (left := deadline - time.monotonic()) > 0 and select.select([asking], [], [], left)[0]:
                data = asking.recv(_SIZE + 1)
                back = time.monotonic_ns()
                answer = self._read_datagram(data, _ANSWER)
                if answer is not None and answer[0] == number:  # not that of an exchange given up before
                    return [sent, answer[1], answer[2], back]
        except OSError:  # nobody listens there any more
            pass
        return None

    def _signed(self, what: bytes, number: bytes, received: int, answered: int) -> bytes:
        body = _BODY.pack(what, number, received, answered)
        return body + hmac.digest(self._key, body, "sha256")[:_SIGNED]

    def _read_datagram(self, data: bytes, what: bytes) -> tuple[bytes, int, int] | None:
        body, signature = data[: _BODY.size], data[_BODY.size :]
        signed = hmac.digest(self._key, body, "sha256")[:_SIGNED]
        if len(data) != _SIZE or not data.startswith(what) or not hmac.compare_digest(signature, signed):
            return None
        _, number, received, answered = _BODY.unpack(body)
        return number, received, answered

    def _tell(self, reference: str, why: str) -> None:
        if why != self._why:
            self._why = why
            self._emit({"type": "clock", "reference": reference, "why": why})


def may_be_of_several_hosts(session: Path) -> bool:
    """Say whether launchers on other hosts can join the session: it names a job of several."""
    local, world = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    if os.environ.get("SLURM_NNODES") == "1" or (local is not None and local == world):
        return False
    try:
        return bool(json.loads((session / names.MANIFEST).read_bytes()).get("job"))
    except (OSError, ValueError, AttributeError):
        return False


def _read(path: Path) -> dict[str, Any] | None:
    try:
        offer = json.loads(path.read_bytes())
        return offer if {"sampler", "boot_id", "key", "addresses"} <= set(offer) else None
    except (OSError, ValueError, TypeError):
        return None


def _host_part(sampler: str) -> str:
    """Return what a sidecar's directory says of its host: the node and its namespace, without their count."""
    node, _, namespace = sampler.rpartition("-")
    return node if namespace.isdecimal() else sampler


def _node_part(sampler: str) -> str:
    return _host_part(sampler).rpartition("-")[0]


def _listed(addresses: list[Address]) -> str:
    return ", ".join(host for host, _ in addresses) or "any address"
