"""Conditions on the figures of a report: ``FIELD OP NUMBER[%]`` over the names of its JSON."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

import msgspec

from iotrace.analysis.compare.results import Condition
from iotrace.analysis.results import Report
from iotrace.analysis.wait.waits import CAUSES
from iotrace.errors import UsageError

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_FORM = re.compile(
    r"\s*(?P<field>[\w.\[\]]+)\s*(?P<sign>>=|<=|==|!=|>|<)\s*(?P<number>[-+.\deE]+)\s*(?P<percent>%?)\s*"
)
_NAMES = "its names: iotrace schema report"
_EXAMPLE = 'write it as "data_wait.raw_wait_fraction > 20%"'
_PART = re.compile(r"(?P<name>\w+)(?:\[(?P<index>\d*)\])?")
_RANKS = "ranks."
_IN_PERCENT = re.compile(r"_(fraction|pct)(_|$)")


class Limit(msgspec.Struct, frozen=True):
    """A condition as it was given, and its parts."""

    text: str
    field: str
    sign: str
    number: float


def parse(text: str) -> Limit:
    """Read a condition.

    Raises:
        UsageError: it is none, or there is no such field; the sentence has the nearest names.
    """
    found = _FORM.fullmatch(text)
    try:
        number = float(found["number"]) if found is not None else None
    except ValueError:
        number = None
    if found is None or number is None:
        raise UsageError(f'--fail-if takes FIELD OP NUMBER, not "{text}"', _EXAMPLE)
    field = _full_name(found["field"], bool(found["percent"]))
    # Of a percentage the number is one already; everything else in percent is a fraction.
    if found["percent"] and "pct" not in field.rpartition(".")[2].split("_"):
        number /= 100
    return Limit(" ".join(text.split()), field, found["sign"], number)


def field_names() -> list[str]:
    """Name the fields that a condition may be on, as they are shortest."""
    return [name.removeprefix(_RANKS) for name, kind in _names() if kind != "string"]


def judge(limit: Limit, report: dict[str, Any]) -> Condition:
    """Say whether any value of the field meets the condition; None where there is no value."""
    holds = _COMPARE[limit.sign]
    unknown = None
    values = list(_values(report, limit.field.split("."), ""))
    for where, value in values:
        if value is not None and holds(float(value), limit.number):
            return Condition(condition=limit.text, holds=True, where=where, value=float(value))
        unknown = unknown or value is None
    known = None if unknown or not values else False
    only = values[0] if len(values) == 1 else (None, None)
    value = None if only[1] is None else float(only[1])
    return Condition(condition=limit.text, holds=known, where=only[0], value=value)


def _values(node: Any, parts: list[str], where: str, index: int | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the values below `node`, each with where it stands; of a list those of `index` alone."""
    if isinstance(node, list):
        for number, item in _numbered(node, where):
            if index is None or index == number:
                yield from _values(item, parts, f"{where}[{number}]")
    elif not parts:
        yield where, node
    elif isinstance(node, dict):
        found = _PART.fullmatch(parts[0])
        assert found is not None
        index = int(found["index"]) if found["index"] else None
        yield from _values(node.get(found["name"]), parts[1:], f"{where}.{found['name']}".lstrip("."), index)
    else:
        yield where, None


def _numbered(items: list[Any], where: str) -> list[tuple[int, Any]]:
    """Number the items of a list: ranks as they are called, all others by their order."""
    return [(item["rank"] if where == "ranks" else number, item) for number, item in enumerate(items)]


def _within(field: str, shown: list[str], percent: bool) -> list[str]:
    """Name three numbers that a field holds, shares first where the condition has a percentage."""
    found = [name for name in shown if name.startswith(f"{field}.")]
    return sorted(found, key=lambda name: percent and not _IN_PERCENT.search(name))[:3]


def _full_name(field: str, percent: bool) -> str:
    """Check a field's name against the schema of a report; without ``ranks[].`` it is any rank's."""
    known = dict(_names())
    plain = re.sub(r"\[\d*\]", "", field)
    for start in ("", _RANKS):
        name = next((name for name in known if _matches(f"{start}{plain}", name)), None)
        if name is not None and known[name] == "string":
            raise UsageError(f"--fail-if: {field} is a text, not a number", _NAMES)
        if name is not None:
            return f"{start}{field}"
    shown = field_names()
    within = _within(plain.removeprefix(_RANKS), shown, percent)
    if within:
        raise UsageError(
            f"--fail-if: {field} is no number; it holds several", f"say which: {', '.join(within)}"
        )
    last = plain.rpartition(".")[2]
    near = get_close_matches(plain.removeprefix(_RANKS), shown, n=3, cutoff=0.6)
    near = [name for name in shown if name.rpartition(".")[2] == last][:3] or near
    raise UsageError(
        f"--fail-if: a report has no field {field}", f"the nearest: {', '.join(near)}" if near else _NAMES
    )


def _matches(field: str, name: str) -> bool:
    """Compare part by part; ``*`` stands for a key that the run names, such as a cause."""
    parts, known = field.split("."), name.split(".")
    return len(parts) == len(known) and all(a == b or b == "*" for a, b in zip(parts, known, strict=True))


def _names() -> Iterator[tuple[str, str]]:
    """Name all fields of a report that hold a value, with its type."""
    schema = msgspec.json.schema(Report)
    yield from _below(schema, schema["$defs"], "")


def _below(node: dict[str, Any], definitions: dict[str, Any], name: str) -> Iterator[tuple[str, str]]:
    if "$ref" in node:
        node = definitions[node["$ref"].rpartition("/")[2]]
    for kind in node.get("anyOf", ()):
        yield from _below(kind, definitions, name)
    for key, value in node.get("properties", {}).items():
        yield from _below(value, definitions, f"{name}.{key}" if name else key)
    if isinstance(node.get("items"), dict):
        yield from _below(node["items"], definitions, name)
    if isinstance(node.get("additionalProperties"), dict):
        keys = CAUSES if name.endswith("causes_ms") else ("*",)
        for key in keys:
            yield from _below(node["additionalProperties"], definitions, f"{name}.{key}")
    if node.get("type") in ("number", "integer", "boolean", "string"):
        yield name, node["type"]
