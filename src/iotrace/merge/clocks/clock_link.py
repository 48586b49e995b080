"""How an input's clock leads to the merged one, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass, field

from iotrace.sources.clocks.clock_map import ClockMap


@dataclass
class ClockLink:
    """`map` brings an input to the merged clock, to within `bound_ns` (None: not known).

    `kind` is exact (the host's own clock), measured (by datagrams between sidecars), inferred (from
    collectives that several ranks made together), assumed (time since 1970, of a host that is not known) or
    none (a clock that nothing relates). Sources of one `domain` share a clock; `own_bound_ns` is how far each
    may be from that. Those of one `island` are related to each other, if to nothing else.
    """

    kind: str
    map: ClockMap = field(default_factory=ClockMap)
    bound_ns: int | None = None
    why: str = ""
    domain: str = ""
    own_bound_ns: int = 0
    island: int = 0
