"""The words that pages use, and what they mean."""

from __future__ import annotations

from iotrace.report.page.render import WORDS as OF_A_REPORT
from iotrace.report.tables import CAUSES

_OF_A_LIST = {
    "running": "The run goes on.",
    "hung": "No batch has come for long, and no process computes, reads or writes.",
    "computing": "No batch has come for long, and a process computes in one place of the program.",
    "ended, failed": "The command ended with exit code 0, with another one.",
    "killed": "Nothing of the run lives, and no end was written.",
    "unknown": "The run was started on another host, which alone knows whether it goes on; or a sweep is not "
    "complete.",
    "damaged": "Nothing can be shown: the list says why.",
    "baseline": "A report that later runs of the program are compared with.",
    "waits": "The share of each step in which the loop waits for data.",
    "history": "Solid: steps per second. Dashed: waits. Each point is a run of the same command; the circle "
    "is this run.",
}
_OF_A_HISTORY = {
    "worse": "A stage, a file or the step takes at least 5 % longer than in up to five runs before it, "
    "by more than runs of one program differ.",
    "not clear": "The machine hides whether it got worse: other programs took CPUs, or runs differ as much "
    "by chance.",
    "slower, but perhaps not by the program": "The steps of this run take longer for certain; the machine "
    "may be the reason.",
    "faster": "The step takes less time, beyond chance. Later runs are compared with this one.",
}
WORDS = [
    ("In the list", _OF_A_LIST),
    ("Of a run", OF_A_REPORT),
    ("Causes of a wait", CAUSES),
    ("In a history", _OF_A_HISTORY),
]
