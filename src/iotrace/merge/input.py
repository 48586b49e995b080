"""What a merge knows of one of its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from iotrace.merge.clocks.clock_link import ClockLink
from iotrace.merge.convert import Job, Result
from iotrace.merge.input_files import DFTRACER, SESSION, InputFile
from iotrace.merge.survey import Survey


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
