"""The types of the agent's records, a line of records.jsonl each, with the fields that a reader needs.

docs/session-format.md describes all fields.
"""

# Each struct is named once, in its own module.
# ruff: noqa: F403

from __future__ import annotations

from iotrace.sources.records.base import *
from iotrace.sources.records.data import *
from iotrace.sources.records.loop import *
from iotrace.sources.records.process import *
from iotrace.sources.records.torch import *
