"""The clocks of a session: one for each boot of a host, from the anchors of its processes and sidecars."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from iotrace.sources.clocks.session_clock import FOREVER_NS, Clock

Anchor = tuple[int, int, int]
_AGENT_LATE_NS = 500_000_000  # how long after dftracer the agent begins in a process, at most
_AGENT_EARLY_NS = 500_000_000  # how long before its process the agent ends, at most
_UNSEEN_NS = 1_500_000_000  # how long a process without an end lived after its last anchor, at most


class AnchorSource(msgspec.Struct, frozen=True):
    """A process or a sidecar (`pid` None) that recorded anchors of its clock."""

    node: str
    host: str
    boot_id: str
    anchors: list[Anchor]
    pid: int | None = None
    ended: bool = False

    @property
    def domain(self) -> str:
        return domain_of(self.node, self.host, self.boot_id)


def domain_of(node: str, host: str, boot_id: str) -> str:
    """Name what shares one clock: one boot of a kernel.

    A host name that the user set (`host` is not `node`) stands for a separate machine.
    """
    return host if host != node else boot_id or node


class Clocks(msgspec.Struct, frozen=True):
    """The clock of each domain, and the domain of each process."""

    of_domain: dict[str, Clock] = {}
    hosts: dict[str, str] = {}  # by domain: the name that people read
    _domains: dict[tuple[str, int | None], str] = {}
    _lives_ns: dict[tuple[str, int], tuple[int, int]] = {}

    def of(self, node: str, pid: int | None = None) -> Clock | None:
        """The clock of a process, or else of its host; None where neither recorded an anchor."""
        domain = self._domains.get((node, pid), self._domains.get((node, None)))
        return None if domain is None else self.of_domain[domain]

    def life(self, node: str, pid: int) -> tuple[int, int]:
        """Bounds of the process's life: its first and last time, in ns of CLOCK_MONOTONIC."""
        began_ns, ended_ns = self._lives_ns.get((node, pid), (-FOREVER_NS, FOREVER_NS))
        return began_ns - _AGENT_LATE_NS, ended_ns


def clocks_of(sources: Iterable[AnchorSource]) -> Clocks:
    """Make one clock from all anchors of a domain."""
    anchors: dict[str, list[Anchor]] = defaultdict(list)
    hosts: dict[str, str] = {}
    domains: dict[tuple[str, int | None], str] = {}
    lives_ns: dict[tuple[str, int], tuple[int, int]] = {}
    for source in sources:
        domain = source.domain
        anchors[domain] += source.anchors
        hosts.setdefault(domain, source.host or source.node)
        domains[source.node, source.pid] = domain
        domains.setdefault((source.node, None), domain)
        if source.pid is not None:  # a process goes on under its number after an exec
            began_ns = min(mono_ns for mono_ns, _, _ in source.anchors)
            ended_ns = max(mono_ns for mono_ns, _, _ in source.anchors)
            ended_ns += _AGENT_EARLY_NS if source.ended else _UNSEEN_NS
            key = source.node, source.pid
            first, last = lives_ns.get(key, (began_ns, ended_ns))
            lives_ns[key] = min(began_ns, first), max(ended_ns, last)
    return Clocks({domain: Clock(rows) for domain, rows in anchors.items()}, hosts, domains, lives_ns)
