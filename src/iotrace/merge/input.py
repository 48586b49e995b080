"""What a merge knows of one of its inputs, and how its clock leads to the merged one."""

from __future__ import annotations

from dataclasses import dataclass, field

from iotrace.merge.convert import Job, Result
from iotrace.merge.input_files import DFTRACER, SESSION, InputFile
from iotrace.merge.survey import Survey
from iotrace.sources.clocks.session_clock import ClockMap


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


@dataclass
class Input:
    """One input on its way through the merge. Each step fills in its own field."""

    file: InputFile
    survey: Survey
    link: ClockLink = field(init=False)
    job: Job = field(init=False)
    result: Result = field(init=False)

    @property
    def is_trace(self) -> bool:
        """Whether it is a profiler's trace, and no session or log of system calls."""
        return self.file.kind not in (SESSION, DFTRACER)

    @property
    def first_ns(self) -> int | None:
        """Its first time on the merged clock; None where it holds none."""
        found = self.survey.first_ns
        return None if found is None else self.link.map.map_one(found)

    @property
    def last_ns(self) -> int | None:
        """Its last time on the merged clock; None where it holds none."""
        found = self.survey.last_ns
        return None if found is None else self.link.map.map_one(found)
