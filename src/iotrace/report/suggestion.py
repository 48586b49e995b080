"""A suggested fix with its patch: for a terminal, for the summary of a pull request, and as SARIF."""

from __future__ import annotations

import os
import re
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

from iotrace.analysis.rules.model import rule_of
from iotrace.patching.patch import find_root
from iotrace.patching.suggest import Suggestion, Suggestions
from iotrace.report.markdown import escape
from iotrace.report.printing import visible
from iotrace.report.words import gain_text
from iotrace.version import __version__

_PLAIN = frozenset(f"{ascii_letters}{digits}-._~/")
_SARIF = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def lines_of_suggestion(each: Suggestion, session: str) -> list[str]:
    """Say which fix is suggested, what it may gain, and how it is made: lines of plain text."""
    lines = ["", f"Suggested  {visible(each.fix.text)}{_gain(each)}"]
    if each.fix.command:
        lines.append(f"           {visible(each.fix.command)}")
    lines += [f"           {text}" for text in _how(each)]
    by_hand, command = _to_measure(each, session)
    lines.append(f"           its gain is not measured: {by_hand}{visible(command)}")
    return [*lines, "", *diff_lines(each)] if each.patch.diff else lines


def markdown_of_suggestion(each: Suggestion, session: str) -> str:
    """Write the same in Markdown."""
    lines = [f"#### Suggested fix: {escape(each.fix.text)}", ""]
    gain = f"{_gain(each).strip(' ()')}; " if _gain(each) else ""
    by_hand, command = _to_measure(each, session)
    lines.append(f"- **Gain** {escape(gain)}not measured: {by_hand}{_code(command)}")
    if each.fix.command:
        lines.append(f"- **Type** {_code(each.fix.command)}")
    lines += [f"- **Patch** {escape(text)}" for text in _how(each)]
    if each.patch.diff:
        shown = diff_lines(each)
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", "\n".join(shown))), default=0))
        lines += ["", f"{fence}diff", *shown, fence]
    return "\n".join(lines)


def diff_lines(each: Suggestion) -> list[str]:
    """Return the lines of a patch, without what would steer a terminal; tabs stay."""
    diff = each.patch.diff or ""
    return ["\t".join(map(visible, line.rstrip("\r").split("\t"))) for line in diff.split("\n")[:-1]]


def _gain(each: Suggestion) -> str:
    text = gain_text(each.fix)
    return f" ({text})" if text else ""


def _to_measure(each: Suggestion, session: str) -> tuple[str, str]:
    """Say what measures the gain: what is done by hand before, nothing where iotrace can, and the command."""
    if each.can_be_tried:
        return "", f"iotrace try {session} --fix {each.number}"
    return "make the change by hand, run it again, then ", f"iotrace compare {session} NEW"


def _how(each: Suggestion) -> list[str]:
    patch = each.patch
    if patch.diff is None and patch.command is None:
        return [f"there is no patch: {visible(patch.why_not or '')}"]
    return [] if patch.command is None else [f"in the command: {visible(patch.command)}"]


def _code(text: str) -> str:
    return f"`{visible(text).replace('`', '')}`"


def sarif(found: Suggestions) -> dict[str, Any]:
    """Return fixes whose place is known as SARIF 2.1.0, for annotations at file and line.

    The place is the line that the patch changes, else the one that makes the training loader.
    """
    results: list[dict[str, Any]] = []
    rules: dict[str, dict[str, Any]] = {}
    for each in found.found:
        place = _place(each, found)
        if place is None:
            continue
        rule = each.fix.code or each.fix.id
        rules.setdefault(rule, _rule(rule, each))
        uri, line = place
        results.append(
            {
                "ruleId": rule,
                "level": "warning",
                "message": {"text": f"{visible(each.fix.text)}{_gain(each)}; not measured"},
                "locations": [
                    {
                        "physicalLocation": {
                            "artifactLocation": {"uri": uri, "uriBaseId": "%SRCROOT%"},
                            "region": {"startLine": line},
                        }
                    }
                ],
            }
        )
    driver = {"name": "iotrace", "version": __version__, "rules": list(rules.values())}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SARIF, "version": "2.1.0", "runs": [run]}


def _place(each: Suggestion, found: Suggestions) -> tuple[str, int] | None:
    """Return a path from the root of its git tree, and a line."""
    if each.patch.lines:
        file, line = each.patch.lines[0]
    elif found.made is not None and found.made.site:
        file, _, number = found.made.site.rpartition(":")
        line = int(number) if number.isdigit() else 0
    else:
        return None
    path = Path(file)
    if not line or not path.is_file() or {"site-packages", "dist-packages"} & set(path.parts):
        return None
    return _uri(os.path.relpath(path.resolve(), find_root(path, Path.cwd()))), line


def _uri(path: str) -> str:
    """Write a relative path as a reference of RFC 3986."""
    escaped = (chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in os.fsencode(path))
    return "".join(escaped)


def _rule(code: str, each: Suggestion) -> dict[str, Any]:
    about: dict[str, Any] = {"id": code, "shortDescription": {"text": visible(each.fix.text)}}
    if each.fix.code is not None:
        rule = rule_of(each.fix.code)
        about |= {
            "name": rule.name,
            "shortDescription": {"text": rule.summary},
            "help": {"text": rule.meaning},
        }
    return about
