"""A tool of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from iotrace.mcp_server.results import Asked


class Tool(NamedTuple):
    """A tool: what it takes, what it answers, and what does it. `runs`: it starts the user's program."""

    name: str
    says: str
    asked: type[Asked]
    answers: type[msgspec.Struct]
    call: Callable[[Any], Any]
    runs: bool = False
