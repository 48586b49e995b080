"""What a report says, as plain data: its JSON is the contract (docs/definitions.md has the meanings).

Times are means in ms: of ranks per measured step, of loaders per batch; ``total`` is a sum over the run.
None is unknown, never 0.
"""

# Each struct is named once, in its own module.
# ruff: noqa: F403

from __future__ import annotations

from iotrace.analysis.results.base import *
from iotrace.analysis.results.code import *
from iotrace.analysis.results.device import *
from iotrace.analysis.results.host import *
from iotrace.analysis.results.io import *
from iotrace.analysis.results.loop import *
from iotrace.analysis.results.making import *
from iotrace.analysis.results.program import *
from iotrace.analysis.results.ranks import *
from iotrace.analysis.results.report import *
