"""Encode the records of a traced process as JSON.

`import json` costs about 9 ms in every process (it brings `re`); the C string encoder costs nothing.
"""

from __future__ import annotations

import os
from _json import encode_basestring_ascii
from _operator import index

from iotrace.session.guard import ours

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
        return encode_basestring_ascii(readable(value))
    if kind is float:
        # NaN and infinities are not JSON.
        return repr(value) if value - value == 0.0 else "null"
    if kind is dict:
        pairs = (f"{encode_basestring_ascii(readable(k))}:{encode(v)}" for k, v in value.items())
        return "{" + ",".join(pairs) + "}"
    if kind is list or kind is tuple:
        return "[" + ",".join(map(encode, value)) + "]"
    try:
        return str(index(value))  # numpy's integers and the like
    except ours(TypeError):
        return encode_basestring_ascii(readable(repr(value)))


def readable(text: str) -> str:
    """Return `text` as JSON can hold it: bytes that are no UTF-8, in names of files, become ``\\xNN``."""
    if text.isascii():
        return text
    try:
        return os.fsencode(text).decode(errors="backslashreplace")
    except ours(UnicodeEncodeError):
        return text.encode(errors="backslashreplace").decode()
