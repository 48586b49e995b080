"""JSON for the records of a traced process.

`import json` costs about 9 ms in every process (it brings `re`); the C string encoder costs nothing.
"""

from __future__ import annotations

from _json import encode_basestring_ascii

TYPE_CHECKING = False  # `typing` costs half of the agent's start-up
if TYPE_CHECKING:
    from typing import Any


def encode(value: Any) -> str:
    """Encode None, bool, int, float, str, list, tuple and dict; anything else by its `repr`."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    kind = type(value)
    if kind is int:
        return str(value)
    if kind is str:
        return encode_basestring_ascii(value)
    if kind is float:
        # NaN and infinities are not JSON.
        return repr(value) if value - value == 0.0 else "null"
    if kind is dict:
        return "{" + ",".join(f"{encode_basestring_ascii(k)}:{encode(v)}" for k, v in value.items()) + "}"
    if kind is list or kind is tuple:
        return "[" + ",".join(map(encode, value)) + "]"
    return encode_basestring_ascii(repr(value))
