"""XLA's xplane.proto in Google's protobuf: an independent reader, and a writer of made-up profiles."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_INT64, _UINT64, _DOUBLE, _STRING, _BYTES, _MESSAGE = 3, 4, 1, 9, 12, 11
# Of each message its fields: name, number, type, whether repeated; a text as type is another message.
_MESSAGES: dict[str, list[tuple[str, int, int | str, bool]]] = {
    "XStat": [
        ("metadata_id", 1, _INT64, False),
        ("double_value", 2, _DOUBLE, False),
        ("uint64_value", 3, _UINT64, False),
        ("int64_value", 4, _INT64, False),
        ("str_value", 5, _STRING, False),
        ("bytes_value", 6, _BYTES, False),
        ("ref_value", 7, _UINT64, False),
    ],
    "XEvent": [
        ("metadata_id", 1, _INT64, False),
        ("offset_ps", 2, _INT64, False),
        ("duration_ps", 3, _INT64, False),
        ("stats", 4, "XStat", True),
    ],
    "XLine": [
        ("id", 1, _INT64, False),
        ("name", 2, _STRING, False),
        ("timestamp_ns", 3, _INT64, False),
        ("events", 4, "XEvent", True),
        ("display_name", 11, _STRING, False),
    ],
    "XEventMetadata": [
        ("id", 1, _INT64, False),
        ("name", 2, _STRING, False),
        ("display_name", 4, _STRING, False),
        ("stats", 5, "XStat", True),
    ],
    "XStatMetadata": [("id", 1, _INT64, False), ("name", 2, _STRING, False)],
    "EventEntry": [("key", 1, _INT64, False), ("value", 2, "XEventMetadata", False)],
    "StatEntry": [("key", 1, _INT64, False), ("value", 2, "XStatMetadata", False)],
    "XPlane": [
        ("id", 1, _INT64, False),
        ("name", 2, _STRING, False),
        ("lines", 3, "XLine", True),
        ("event_metadata", 4, "EventEntry", True),
        ("stat_metadata", 5, "StatEntry", True),
        ("stats", 6, "XStat", True),
    ],
    "XSpace": [("planes", 1, "XPlane", True), ("hostnames", 4, _STRING, True)],
}


def _space_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="test_xplane.proto", package="test", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name == "XStat":
            message.oneof_decl.add(name="value")  # so that a 0 is written
        for field, number, kind, repeated in fields:
            of_message = isinstance(kind, str)
            message.field.add(
                oneof_index=0 if name == "XStat" and number > 1 else None,
                name=field,
                number=number,
                type=_MESSAGE if of_message else kind,
                type_name=f".test.{kind}" if of_message else None,
                label=3 if repeated else 1,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.XSpace"))


XSpace = _space_class()


class Maker:
    """Adds to an XSpace as XLA's builders do: names are numbered in each plane."""

    def __init__(self, started_ns: int | None = None) -> None:
        self.space = XSpace()
        self._numbers: dict[tuple[str, bool, str], int] = {}
        self._started_ns = started_ns

    def plane(self, name: str, **stats: int | str | float) -> Any:
        """Add a plane."""
        plane = self.space.planes.add(name=name)
        self.add_stats(plane, plane, stats)
        return plane

    def event(self, plane: Any, line: Any, name: str, start_ns: int, duration_ns: int, **stats: Any) -> None:
        """Add an event to a line of a plane."""
        event = line.events.add(metadata_id=self._number(plane, True, name))
        event.offset_ps, event.duration_ps = start_ns * 1000, duration_ns * 1000
        self.add_stats(plane, event, stats)

    def add_stats(self, plane: Any, owner: Any, stats: dict[str, Any]) -> None:
        """Add stats to a plane or an event; texts are references to names, as XLA writes most of them."""
        for key, value in stats.items():
            stat = owner.stats.add(metadata_id=self._number(plane, False, key))
            if isinstance(value, str):
                stat.ref_value = self._number(plane, False, value)
            elif isinstance(value, float):
                stat.double_value = value
            else:
                stat.int64_value = value

    def _number(self, plane: Any, of_event: bool, name: str) -> int:
        entries = plane.event_metadata if of_event else plane.stat_metadata
        number = self._numbers.setdefault((plane.name, of_event, name), len(entries) + 1)
        if number == len(entries) + 1:
            entry = entries.add(key=number)
            entry.value.id, entry.value.name = number, name
        return number

    def written(self) -> bytes:
        """The file, as a profiler ends it: when it was started, on which host."""
        if self._started_ns is not None:
            self.plane("Task Environment", profile_start_time=self._started_ns)
        self.space.hostnames.append("node1")
        data: bytes = self.space.SerializeToString()
        return data
