"""Colours of Perfetto: it hashes a slice's name to one, or a text that stands beside the name instead.

No trace names a colour, and Perfetto shows that text nowhere but among a slice's arguments. Each was found by
trying numbers behind a word until Perfetto's hash of it had the hue that the page has for the same cause.
"""

from __future__ import annotations

from iotrace.timeline.writers.descriptors import text

_CORRELATION = 53  # correlation_id_str of a TrackEvent: what Perfetto hashes to a colour
_FAILURE, _TRANSPORT, _WAIT = "failure", "transport", "data wait"  # categories of slices
_HASHED = {
    "read": "read848",
    "decode": "decode34",
    "transform": "transform854",
    "collate": "collate199",
    "sampling": "sampling1150",
    "transport": "transport281",
    "queued": "queued621",
    "startup": "startup1459",
    "failure": "failure1060",
}
_FIELDS = {name: text(_CORRELATION, hashed) for name, hashed in _HASHED.items()}


def colour(category: object, cause: object) -> bytes:
    """Return the field of a TrackEvent that colours a slice; empty where its name may."""
    if category == _WAIT:
        return _FIELDS.get(cause, b"") if isinstance(cause, str) else b""
    return _FIELDS[category] if category in (_FAILURE, _TRANSPORT) else b""
