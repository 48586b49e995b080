"""The clocks of a session: one for each boot of a host, from the anchors of its processes and sidecars.

Hosts are related by the datagrams that their sidecars exchanged: one's CLOCK_MONOTONIC against another's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from operator import itemgetter

import msgspec
import numpy as np
import numpy.typing as npt

from iotrace.sources.clocks.session_clock import FOREVER_NS, Clock, ClockMap, Times

Anchor = tuple[int, int, int]
_AGENT_LATE_NS = 500_000_000  # how long after dftracer the agent begins in a process, at most
_AGENT_EARLY_NS = 500_000_000  # how long before its process the agent ends, at most
_UNSEEN_NS = 1_500_000_000  # how long a process without an end lived after its last anchor, at most
# A process whose CLOCK_REALTIME and CLOCK_MONOTONIC are never as far apart as its sidecar's has clocks of its
# own: a time namespace, a library that shifts the time.
_OWN_CLOCK_NS = 1_000_000


class AnchorSource(msgspec.Struct):
    """A process or a sidecar (`pid` None) that recorded anchors of its clock.

    `domain` names what shares one clock: one boot of a kernel. A host name that the user set (`host` is not
    `node`) is taken for a separate machine; `relate_clocks` renames the domain where the clock is another.
    `sampler` is the directory of a sidecar, `exchanges` are its datagrams with the sidecar in `reference`.
    """

    node: str
    host: str
    boot_id: str
    anchors: list[Anchor]
    pid: int | None = None
    ended: bool = False
    sampler: str = ""
    reference: str = ""
    exchanges: list[Exchange] = []
    why: str = ""  # there are none
    domain: str = ""

    def __post_init__(self) -> None:
        self.domain = self.host if self.host != self.node else self.boot_id or self.node


class Clocks(msgspec.Struct, frozen=True):
    """The clock of each domain, and the domain of each process.

    Times of all domains in `links` are the reference's; those of others are their own host's.
    """

    of_domain: dict[str, Clock] = {}
    hosts: dict[str, str] = {}  # by domain: the name that people read
    reference: str = ""
    links: dict[str, HostLink] = {}
    unrelated: dict[str, str] = {}  # why nothing was measured, by domain, where a sidecar says so
    samplers: dict[str, str] = {}  # the domain of each sidecar, by its directory
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

    def relate(self, domain: str, link: HostLink) -> None:
        """Tell times of `domain` by the reference's clock; `link` leads from its own time there."""
        self.of_domain[domain].to_reference = link.map
        self.links[domain] = link


def relate_clocks(sources: Iterable[AnchorSource]) -> Clocks:
    """Make one clock from all anchors of a domain, related to the reference's where that was measured."""
    sources = list(sources)
    anchors: dict[str, list[Anchor]] = defaultdict(list)
    hosts: dict[str, str] = {}
    domains: dict[tuple[str, int | None], str] = {}
    samplers: dict[str, str] = {}
    lives_ns: dict[tuple[str, int], tuple[int, int]] = {}
    _tell_apart(sources)
    for source in sources:
        domain = source.domain
        anchors[domain] += source.anchors
        hosts.setdefault(domain, source.host or source.node)
        domains[source.node, source.pid] = domain
        domains.setdefault((source.node, None), domain)
        if source.pid is None:
            samplers[source.sampler] = domain
        else:  # a process goes on under its number after an exec
            began_ns = min(mono_ns for mono_ns, _, _ in source.anchors)
            ended_ns = max(mono_ns for mono_ns, _, _ in source.anchors)
            ended_ns += _AGENT_EARLY_NS if source.ended else _UNSEEN_NS
            key = source.node, source.pid
            first, last = lives_ns.get(key, (began_ns, ended_ns))
            lives_ns[key] = min(began_ns, first), max(ended_ns, last)
    of_domain = {domain: Clock(rows) for domain, rows in anchors.items()}
    named = Counter(
        samplers[each.reference] for each in sources if each.exchanges and each.reference in samplers
    )
    reference = max(named, key=lambda domain: named[domain], default="")
    if not reference and sources:  # the first process's, or else the first sidecar's
        first_of = min(sources, key=lambda each: (each.pid is None, min(each.anchors)[1]))
        reference = first_of.domain
    unrelated = {source.domain: source.why for source in sources if source.why}
    clocks = Clocks(of_domain, hosts, reference, {}, unrelated, samplers, domains, lives_ns)
    rows: dict[str, list[Exchange]] = defaultdict(list)
    for source in sources:
        if source.domain != reference and samplers.get(source.reference) == reference:
            rows[source.domain] += source.exchanges
    for domain, exchanges in rows.items():
        times = [mono_ns for mono_ns, _, _ in anchors[domain]]
        link = link_by_exchanges(exchanges, min(times), max(times))
        if link is not None:
            clocks.relate(domain, _between(of_domain[domain], of_domain[reference], link))
    return clocks


def _between(own: Clock, reference: Clock, link: HostLink) -> HostLink:
    """Make of a link between two CLOCK_MONOTONIC one between the times that the two clocks give."""
    before, behind = ClockMap(-own.offset_ns), ClockMap(reference.offset_ns)
    whole = before.compose(link.map).compose(behind).moved_to(link.map.at_ns + own.offset_ns)
    return msgspec.structs.replace(link, map=whole)


def _tell_apart(sources: Sequence[AnchorSource]) -> None:
    """Give a domain of its own to what has other clocks than the sidecar of its host."""
    known: dict[str, list[tuple[AnchorSource, Times]]] = defaultdict(list)
    # Sidecars first: without one in a domain nothing tells a clock of its own from one that was set.
    for source in sorted(sources, key=lambda each: each.pid is not None):
        boot = source.domain
        apart_ns = np.sort([real_ns - mono_ns for mono_ns, real_ns, _ in source.anchors])
        others = sorted(known[boot], key=lambda each: each[0].node != source.node)
        alike = next((other for other, theirs in others if _agree(apart_ns, theirs)), None)
        if alike is not None:
            source.domain = alike.domain
        elif others:
            source.domain += f"@{source.node}" + (f"/{source.pid}" if source.pid is not None else "")
        if source.pid is None or (others and alike is None):
            known[boot].append((source, apart_ns))


def _agree(ours: Times, theirs: Times) -> bool:
    """Whether two clocks were ever as far from CLOCK_MONOTONIC as each other; both sorted."""
    above = np.searchsorted(theirs, ours)
    nearest = theirs[[np.minimum(above, len(theirs) - 1), np.maximum(above - 1, 0)]]
    return bool((np.abs(nearest - ours) <= _OWN_CLOCK_NS).any())


Floats = npt.NDArray[np.float64]
Exchange = tuple[int, int, int, int]

_ROUND_NS = 500_000_000  # exchanges of one round lie closer together, and rounds further apart
# Exchanges up to so many times as long as the quickest one are kept: the choice with the least bound.
_SLOWER = (1.5, 3.0, 10.0, float("inf"))
_STEEPEST = 500e-6  # what two clocks may part by where no drift was measured: Linux slews no faster
_PART = 2 * _STEEPEST  # two clocks that part by more between two rounds did so by a step


class HostLink(msgspec.Struct, frozen=True):
    """How a host's clock leads to the reference's, to within `bound_ns` from its first time to its last.

    `kind`: measured or inferred. `exchanges` of datagrams, the quickest of them in `round_trip_ns`.
    """

    map: ClockMap
    bound_ns: int
    kind: str = "measured"
    why: str = ""
    exchanges: int = 0
    round_trip_ns: int | None = None


def link_by_exchanges(exchanges: Sequence[Exchange], first_ns: int, last_ns: int) -> HostLink | None:
    """Offset and drift by regression over the quickest exchange of each round; None without exchanges.

    An exchange is four times in ns: sent by the own clock, received and answered by the reference's, back by
    the own one. Whatever the two ways took, the offset lies between what each of them alone would say: half
    the round trip on either side of the middle. The bound is the largest half, with the residual there, over
    the exchanges kept. A line that is right to within that at two times is right to within it between
    them; it may err by more towards `first_ns` and `last_ns`, which are times of its own clock. Where one
    clock stepped against the other between two rounds (its host was suspended, or moved), the bound holds
    the step.
    """
    times = np.array(sorted(exchanges), np.int64).reshape(-1, 4)
    sent, received, answered, back = times.T
    delay = (back - sent) - (answered - received)
    sane = (delay >= 0) & (back >= sent)
    sent, received, answered, back, delay = (each[sane] for each in (sent, received, answered, back, delay))
    if not len(delay):
        return None
    quickest = _quickest(sent, delay)
    at, base = int(sent[0]), int(received[0] - sent[0])
    middle = ((received - sent - base) + (answered - back - base)) / 2
    when = (sent - at + (back - sent) / 2).astype(np.float64)
    half = delay / 2 + (back - sent) * _STEEPEST + 1
    before, after = float(first_ns - at), float(last_ns - at)
    trip_ns = int(delay.min())
    why = f"{len(delay)} exchanges of datagrams, the quickest in {trip_ns / 1000:.3g} µs"
    gaps, steps = np.diff(when[quickest]), np.abs(np.diff(middle[quickest]))
    stepped = steps > half[quickest][:-1] + half[quickest][1:] + _PART * gaps
    choices = [quickest[delay[quickest] <= slower * trip_ns + 1] for slower in _SLOWER]
    lines = (
        _line(when[kept], middle[kept], half[kept], before, after)
        for kept in ([quickest] if stepped.any() else choices)
    )
    bound, shift, drift, where = min(lines, key=itemgetter(0))
    if stepped.any():
        beyond = max(float(when[quickest][0]) - before, after - float(when[quickest][-1]), float(gaps.max()))
        bound += beyond * (abs(drift) + _PART)
        why += f"; one clock stepped by {steps[stepped].max() / 1e9:.3g} s against the other in mid-run"
    clock_map = ClockMap(base + round(shift), drift * 1e9, at + round(where))
    return HostLink(clock_map, int(np.ceil(bound)), "measured", why, len(delay), trip_ns)


def _quickest(sent: npt.NDArray[np.int64], delay: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The row of the quickest exchange of each round."""
    rounds = np.cumsum(np.diff(sent, prepend=sent[0]) > _ROUND_NS)
    order = np.lexsort((delay, rounds))
    _, firsts = np.unique(rounds[order], return_index=True)
    return order[firsts]


def _line(
    when: Floats, middle: Floats, half: Floats, before: float, after: float
) -> tuple[float, float, float, float]:
    """Fit a line: its bound, its level, its slope, and the time of that level."""
    weights = 1 / half**2
    where = float(np.average(when, weights=weights))
    level = float(np.average(middle, weights=weights))
    span = float(when[-1] - when[0])
    slope = 0.0
    if span > 0:
        slope = float((weights * (when - where) * (middle - level)).sum())
        slope /= float((weights * (when - where) ** 2).sum())
    off = half + np.abs(middle - level - slope * (when - where))
    beyond = max(0.0, float(when[0]) - before, after - float(when[-1]))
    unsure = (off[0] + off[-1]) / span if span > 0 else _STEEPEST
    return float(off.max() + beyond * min(unsure, _STEEPEST + abs(slope))), level, slope, where
